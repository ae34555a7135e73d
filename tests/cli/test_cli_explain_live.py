"""`alula explain MODEL` on tiny models, as a call: exit codes, the document, the page, Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from alula.cli.main import main
from alula.lab.experiments.width_sweep import WidthSweep

CHECKPOINT = str(tiny_models.checkpoint("plain"))
SHORT = ["--limit", "3", "--max-tokens", "16", "--kv-memory", "8M", "--threads", "1", "--budget", "600"]


def explain(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "verdict.json"
    code = main(["explain", CHECKPOINT, *SHORT, "--json", str(target), *arguments])
    return code, json.loads(target.read_text())


def test_a_head_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "verdict.html"
    head = str(tiny_models.head("plain"))
    code, document = explain(tmp_path, "--draft", head, "--steps", "2", "--html", str(html))
    assert code == (3 if document["pays"] is False else 0)
    assert document["error"] is None and document["schema"] == 1 and document["ceiling_tokens_per_cycle"] == 3
    told = {one["name"]: one for one in document["facts"]["experiments"]}
    assert told["width_sweep"]["status"] == "done" and told["clocks"]["why"] == "there is no GPU"
    assert sum(part["ms"] for part in document["waterfall"]) == pytest.approx(document["cycle_ms"])
    assert "One cycle, phase by phase" in html.read_text()
    assert "From a plain step to a cycle" in capsys.readouterr().out


def test_without_a_head_the_plain_step_is_explained(tmp_path: Path) -> None:
    code, document = explain(tmp_path, "--draft", "none")
    assert code == 0 and document["pays"] is None and document["plain_step_ms"] > 0
    assert "Nothing speculates here" in document["answer"]


def test_ctrl_c_prints_and_writes_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WidthSweep, "run", interrupted)
    code, document = explain(tmp_path, "--draft", str(tiny_models.head("plain")))
    assert code == 130 and document["error"]["kind"] == "Interrupted"
    assert document["cycle_ms"] is not None and "width_sweep: partly: interrupted" in document["facts"]["notes"]
    assert "cycle" in capsys.readouterr().out


def test_a_shape_is_measured_by_cost_alone(tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    shape = str(Path(CHECKPOINT) / "config.json")
    forced = ["--tokens-per-cycle", "2.5", "--prompt-tokens", "16", "--device", "cpu"]
    code = main(["explain", "--shape", shape, *SHORT, *forced, "--json", str(target)])
    document = json.loads(target.read_text())
    assert code in (0, 3) and document["tokens_per_cycle"] == pytest.approx(2.5, abs=0.3)
    told = {one["name"]: one["why"] for one in document["facts"]["experiments"]}
    assert "forced acceptance" in told["other_layers"]
