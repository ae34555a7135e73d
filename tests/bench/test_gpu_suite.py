"""The GPU suite goes all its ways in a dry run on a CPU, what fails in it is told, and its targets are judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_models

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gpu
import gpu_prompts
import gpu_shapes
import gpu_targets

TWELVE = Path(__file__).resolve().parents[1] / "data" / "twelve.json"


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = gpu.main(["--dry", "--out", str(out), *arguments])
    return code, json.loads((out / "gpu.json").read_text())


def test_a_dry_run_fills_every_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, head = tiny_models.checkpoint("plain"), tiny_models.head("plain")
    code, document = run(tmp_path, "--model", str(model), "--head", str(head), "--commit", "abc")
    assert code == 0, capsys.readouterr().out
    sections = document["sections"]
    assert list(sections) == list(gpu.SECTIONS)
    assert document["commit"] == "abc" and document["dry"]
    assert all("seconds" in section for section in sections.values())
    large = sections[gpu.LARGE]
    assert [(row["batch"], row["kv_tokens"]) for row in large["replays"]] == [(1, 24), (2, 24), (1, 157), (2, 157)]
    assert [row["width"] for row in large["widths"]] == [1, 2, 4]
    # On a CPU a matrix product's rounding depends on its rows; a wrong token or position would show far more.
    assert max(row["largest_difference"] for row in large["bits"]["rows"]) < 1e-4
    assert large["served_kv24_batch2"]["cycle"]["batch"] == 2
    assert sections["real"]["exactness"]["mismatched_tokens"] == 0
    assert [row["k"] for row in sections["real"]["twelve"]["rows"]] == [2, 3]
    # Every row has a figure, but for batch 16 and for a ratio over a plain step that misses its own row.
    assert all(
        row["first_met"] is row["then_met"] is None for row in document["must_show"]
    )  # figures of no meaning
    missing = {row["figure"] for row in document["must_show"] if row["measured"] is None}
    assert missing <= {"8B plain step, batch 16, KV 512 / floor", "SmolLM2 EAGLE-3 / plain, twelve"}


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a part is broken")

    monkeypatch.setattr(gpu_shapes, "widths", broken)
    monkeypatch.setattr(gpu_shapes, "bandwidth", broken)
    code, document = run(tmp_path, "--only", gpu.BANDWIDTH, gpu.LARGE)
    sections = document["sections"]
    assert code == 1
    assert "a part is broken" in sections[gpu.BANDWIDTH]["error"]["error"]
    assert "broken" in sections[gpu.LARGE]["widths"]["error"]["traceback"]
    assert sections[gpu.LARGE]["served_kv24_batch1"]["cycle"]["cycles"] > 0
    figures = {row["figure"]: row for row in document["must_show"]}
    assert figures["SmolLM2 mismatched tokens"]["measured"] is None


def test_a_run_whose_time_is_up_says_what_it_left_out(tmp_path: Path) -> None:
    _, document = run(tmp_path, "--only", gpu.LARGE, "--budget", "-1")
    assert document["sections"][gpu.LARGE]["replays"] == {"left_out": "the run's time was up"}


def test_a_second_process_keeps_what_the_first_found(tmp_path: Path) -> None:
    run(tmp_path, "--only", gpu.BANDWIDTH)
    _, document = run(tmp_path, "--resume", "--only", gpu.PYTORCH)
    assert list(document["sections"]) == [gpu.BANDWIDTH, gpu.PYTORCH]


def test_some_sections_do_not_replace_a_file_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpu.json").write_text("{}")
    assert run(tmp_path, "--only", gpu.BANDWIDTH) == (2, {})
    assert "--resume" in capsys.readouterr().err


def test_the_command_for_the_rest() -> None:
    given = ["--out", "x", "--only", "bandwidth", "real", "--commit", "abc"]
    assert gpu._arguments_for(given, ["real"]) == ["--out", "x", "--commit", "abc", "--resume", "--only", "real"]
    assert gpu._arguments_for(["--resume"], ["real"]) == ["--resume", "--only", "real"]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", "nowhere"]) == 2
    assert "--dry" in capsys.readouterr().err


def test_the_twelve_prompts_are_the_references() -> None:
    answers = json.loads(TWELVE.read_text(encoding="utf-8"))["answers"]
    assert [answer["prompt"] for answer in answers] == list(gpu_prompts.TWELVE)


@pytest.mark.parametrize(("plain_ms", "speedup"), [(0.44, 1.7), (0.46, None)])
def test_a_ratio_over_a_slow_plain_step_does_not_count(plain_ms: float, speedup: float | None) -> None:
    twelve = {"plain_ms": plain_ms, "best_speedup": 1.7, "best_k": 3}
    row = {"kv_tokens": 512, "batch": 1, "plain": {"ms": 0.3}}
    document = {"sections": {gpu.SMALL: {"replays": [row]}, "real": {"twelve": twelve}}, "seconds": 1.0}
    rows = {found["figure"]: found for found in gpu_targets.rows(document)}
    assert rows["SmolLM2 EAGLE-3 / plain, twelve"]["measured"] == speedup
    assert rows["SmolLM2 plain step, ms"]["first_met"] == ("yes" if speedup else "no")
    assert rows["SmolLM2 mismatched tokens"]["first_met"] == "not measured"
