"""Where words go, and the one JSON document."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from alula.cli.output import Output, check_writable, write_file
from alula.core.errors import InvalidOption, ModelNotFound, RecordWriteError


def test_document_is_written_with_a_null_error(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    with Output("run", str(target)) as output:
        output.document = {"schema": 1, "value": float("nan"), "text": "é"}
    assert json.loads(target.read_text(encoding="utf-8")) == {
        "schema": 1,
        "value": None,
        "text": "é",
        "error": None,
    }
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ModelNotFound("no model"), KeyboardInterrupt(), ValueError("a bug")])
def test_document_is_written_after_an_error(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "r.json"
    with pytest.raises(type(error)), Output("run", str(target)) as output:
        output.document = {"schema": 1, "answers": ["half"]}
        raise error
    written = json.loads(target.read_text(encoding="utf-8"))
    assert written["answers"] == ["half"] and written["error"]["message"]


def test_stdout_holds_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Output("run", "-") as output:
        output.write("text")
        output.human.print("table")
        output.note("note")
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": 1, "command": "run", "error": None}
    assert err.split() == ["text", "table", "note"] or "text" in err


def test_loading_says_each_kind_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output("run").loading() as say:
        for text in ("loading weights: 1 of 2", "loading weights: 2 of 2", "loading the head"):
            say(text)
    assert capsys.readouterr().err.splitlines() == ["loading weights", "loading the head"]


def test_bad_targets_are_refused_at_the_start(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "absent" / "r.json"):
        with pytest.raises(InvalidOption, match="--json"):
            Output("run", str(target))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # tests may run as root, whom no permission stops
    with pytest.raises(InvalidOption, match="no permission"):
        check_writable("--html", tmp_path / "page.html")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not run: this system has no /dev/full")
def test_a_full_disk_is_an_error_with_a_remedy() -> None:
    with pytest.raises(RecordWriteError, match="No space left on device; free space"):
        write_file(Path("/dev/full"), "text")


def test_a_failed_write_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "r.json"
    target.write_text("former", encoding="utf-8")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(RecordWriteError):
        write_file(target, "new")
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["former"]


def test_streams_closed_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with Output("run") as output:
        output.write("nobody reads this")
        output.note("nor this")
