"""`alula bench --shape` and `--tokens-per-cycle`: the choice of a target, and whole runs of the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from alula.cli.main import main
from alula.core.records import CycleRecord, RequestRecord, RunRecord, read_records
from fake_llm import FakeLLM

Alula = Callable[..., Any]
ALWAYS = ("--speculate", "always")  # what "auto" does depends on times
SMALL = ("--dtype", "float32", "--device", "cpu", "--threads", "1", "--kv-memory", "8M")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text((tiny_models.checkpoint("plain") / "config.json").read_text())
    return path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A run of the real engine, as its exit code, its JSON and its words."""

    def call(*arguments: object) -> tuple[int, Any, str]:
        result = tmp_path / "result.json"
        code = main(["bench", *map(str, (*arguments, *SMALL, "--json", result))])
        out, err = capsys.readouterr()
        return code, json.loads(result.read_text()), out + err

    yield call


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "found neither"),
        (("m", "--shape", "llama-3.1-8b"), "found both"),
        (("--shape", "nonsense"), "llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, smollm2-135m"),
        (("--shape", "smollm2-135m", "--raw"), "--raw needs text"),
        (("--shape", "smollm2-135m", "--prompts", "x.txt"), "--prompts needs text"),
        (("--shape", "smollm2-135m", "--prompt-tokens", "0"), "--prompt-tokens is 0"),
        (("m", "--prompt-tokens", "5"), "--prompt-tokens is for --shape"),
        (("m", "--tokens-per-cycle", "5"), "--tokens-per-cycle is 5.0; with 3 drafts a cycle, expected 1 to 4"),
        (("m", "--tokens-per-cycle", "2.5", "--steps", "1"), "expected 1 to 2"),
    ],
)
def test_what_cannot_be_meant(alula: Alula, arguments: tuple[str, ...], words: str) -> None:
    outcome = alula("bench", *arguments)
    assert outcome.code == 2 and words in outcome.err and not outcome.out


def test_a_shape_gets_random_ids(alula: Alula, tiny: Path) -> None:
    FakeLLM.closed.clear()
    outcome = alula("bench", "--shape", tiny, "--limit", 2, "--prompt-tokens", 30, "--seed", 4, "--json", "-")
    assert outcome.code == 0 and outcome.json["model"] == str(tiny)
    assert [entry["id"] for entry in outcome.json["per_prompt"]] == ["random-30-1", "random-30-2"]
    assert outcome.json["sampling"]["ignore_eos"] is True
    (llm,) = FakeLLM.closed
    assert {len(request) for request in llm.requests} == {30}
    assert max(max(request) for request in llm.requests) < tiny_models.VOCAB_SIZE


def test_forced_acceptance_is_announced(alula: Alula) -> None:
    outcome = alula("bench", "m", "--limit", 1, "--tokens-per-cycle", 2.8, "--json", "-")
    assert outcome.code == 0 and outcome.json["forced_tokens_per_cycle"] == 2.8
    assert outcome.json["mismatched_tokens"] is None and outcome.json["sampling"]["ignore_eos"] is True
    assert "acceptance is forced to 2.8" in outcome.err and "ACCEPTANCE IS FORCED" in outcome.err
    run = alula("run", "m", "--prompt", "hi", "--tokens-per-cycle", 2)
    assert run.code == 0 and "acceptance is forced to 2 tokens per cycle" in run.err


def test_a_shape_end_to_end(bench: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    record = tmp_path / "records.jsonl"
    code, result, words = bench(
        *("--shape", tiny, "--tokens-per-cycle", 2.5, "--steps", 3, "--limit", 2, "--max-tokens", 120),
        *("--prompt-tokens", 40, "--record", record),
    )
    assert code == 0, words
    assert result["model"] == f"{tiny} (a shape with random weights)" and result["draft"] == "random"
    assert (result["prompts"], result["looping_prompts"], result["mismatched_tokens"]) == (2, 0, None)
    assert result["forced_tokens_per_cycle"] == 2.5 and result["exact"] is False
    assert result["facts"]["forced_tokens_per_cycle"] == 2.5
    assert "random weights of the shape" in result["facts"]["weights"]
    assert result["facts"]["head"]["draft_vocab"] == tiny_models.VOCAB_SIZE
    assert result["exactness_off"] == ["acceptance_forced"]
    assert "ACCEPTANCE FORCED" in words.replace("\n", " ")
    records = list(read_records(record))
    assert isinstance(records[0], RunRecord) and records[0].facts["forced_tokens_per_cycle"] == 2.5
    requests = [line for line in records if isinstance(line, RequestRecord)]
    assert {line.num_output_tokens for line in requests} == {16, 120}  # of the warm-up, and all of the others


def test_drafted_cycles_bring_what_was_forced(bench: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    record = tmp_path / "records.jsonl"
    code, result, words = bench(
        *("--shape", tiny, "--tokens-per-cycle", 2.5, "--steps", 3, "--limit", 2, "--max-tokens", 200),
        *("--prompt-tokens", 8, "--record", record, *ALWAYS),
    )
    assert code == 0, words
    assert result["eagle3"]["tokens_per_cycle"] == pytest.approx(2.5, abs=0.06)
    cycles = [line for line in read_records(record) if isinstance(line, CycleRecord)]
    full = [request for cycle in cycles for request in cycle.requests if request.drafted == 3]
    assert {request.accepted for request in full} == {1, 2}
    assert {cycle.exactness for cycle in cycles if any(r.drafted for r in cycle.requests)} == {"acceptance_forced"}


def test_a_shape_is_exact_without_force(bench: Callable[..., Any], tiny: Path) -> None:
    """The random model is a model like any other: fp32 is exact, whatever its random head proposes."""
    code, result, words = bench("--shape", tiny, "--limit", 1, "--max-tokens", 60, "--prompt-tokens", 20, *ALWAYS)
    assert code == 0, words
    assert result["mismatched_tokens"] == 0 and result["forced_tokens_per_cycle"] is None
    assert result["exactness_off"] == []


def test_a_shape_plainly(bench: Callable[..., Any], tiny: Path) -> None:
    code, result, words = bench(
        "--shape", tiny, "--limit", 1, "--max-tokens", 8, "--prompt-tokens", 9, "--draft", "none"
    )
    assert code == 0, words
    assert result["draft"] is None and result["eagle3"] is None
    code, result, words = bench("--shape", tiny, "--draft", "none", "--tokens-per-cycle", 2)
    assert code == 2 and "nothing drafts here" in result["error"]["message"]


def test_prompts_longer_than_the_context(bench: Callable[..., Any], tiny: Path) -> None:
    code, result, _ = bench("--shape", tiny, "--limit", 1, "--prompt-tokens", 5000)
    assert code == 2 and "5000 tokens" in result["error"]["message"]


def test_a_shape_over_two_ranks(bench: Callable[..., Any], tiny: Path) -> None:
    code, result, words = bench(
        *("--shape", tiny, "--limit", 1, "--max-tokens", 24, "--prompt-tokens", 20, "--tp", 2),
        *("--tokens-per-cycle", 3),
    )
    assert code == 0, words
    assert result["tp"] == 2 and result["forced_tokens_per_cycle"] == 3
