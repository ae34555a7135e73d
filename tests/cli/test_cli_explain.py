"""`alula explain` as a process and as a call: exit codes, JSON, pages, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from alula.cli.main import main

_NUMBERS = {"plain-tps": 82.2, "spec-tps": 60.5, "steps": 2, "plain-ms": 12.2, "verify-ms": 29, "tp": 8}
_NAMES = {"model": "kimi-k2.5", "gpu": "rtx-pro-6000"}
FOUNDING = ["explain"]
for name, value in {**_NUMBERS, **_NAMES}.items():
    FOUNDING += [f"--{name}", str(value)]
_WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "transformers", "matplotlib"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from alula.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_founding_story_typed_by_hand(tmp_path: Path) -> None:
    target, html = tmp_path / "v.json", tmp_path / "v.html"
    command = [sys.executable, "-c", _WITHOUT_TORCH, *FOUNDING, "--json", str(target), "--html", str(html)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "verify alone costs 2.38 plain steps" in done.stdout
    document = json.loads(target.read_text())
    assert document["pays"] is False and document["error"] is None
    assert document["break_even_tokens_per_cycle"] == pytest.approx(2.377, abs=1e-3)
    assert document["tokens_per_cycle"] == pytest.approx(1.7545)
    assert document["ceiling_tokens_per_cycle"] == 3 and document["cycle_ms"] is None
    assert "break-even tokens per cycle" in document["facts"]["lower_bounds"]
    assert "<svg" in html.read_text()


def test_what_pays_exits_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["explain", "--plain-tps", "100", "--spec-tps", "150", "--tokens-per-cycle", "2.2", "--steps", "3"])
        == 0
    )
    assert "Speculation pays: it is 1.5x" in capsys.readouterr().out


def test_json_on_stdout_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FOUNDING, "--json", "-"]) == 3
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.mark.parametrize(
    "arguments,word",
    [
        ([], "nothing to explain"),
        (["smollm2-135m", "--from", "a.log"], "expected one of the two"),
        (["smollm2-135m", "--plain-tps", "3"], "--plain-tps"),
        (["smollm2-135m", "--budget", "0"], "--budget"),
        (["--plain-tps", "-3"], "--plain-tps"),
        (["--tokens-per-cycle", "0.2"], "--tokens-per-cycle"),
        (["--compare", "a"], "two files"),
        (["--from", "/no/such/file"], "/no/such/file"),
        (["--url", "localhost:30000"], "--url"),
    ],
)
def test_errors_name_what_to_change(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert word in capsys.readouterr().err


def test_unrecognised_files_are_said_and_the_json_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise, empty, target = tmp_path / "noise.bin", tmp_path / "empty.log", tmp_path / "v.json"
    noise.write_bytes(bytes(range(256)) * 40)
    empty.write_bytes(b"")
    assert main(["explain", "--from", str(noise), str(empty), "--json", str(target)]) == 0
    out = capsys.readouterr()
    assert "Nothing was recognised" in out.out and "SGLang" in out.out
    document = json.loads(target.read_text())
    assert document["pays"] is None and document["recognised"] == []


def test_an_error_stands_in_the_json(tmp_path: Path) -> None:
    target = tmp_path / "v.json"
    assert main(["explain", "--plain-tps", "0", "--json", str(target)]) == 2
    assert json.loads(target.read_text())["error"]["kind"] == "InvalidOption"
