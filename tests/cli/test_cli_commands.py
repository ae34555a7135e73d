"""`alula run`, `bench` and `check` from argv to exit code, against the fake engine."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from alula import __version__
from fake_llm import ANSWER, DIES, DIFFERS, GIVES_UP, SLOW, TOO_LONG, FakeLLM

Alula = Callable[..., Any]


def test_version_and_help(alula: Alula) -> None:
    assert alula("--version").out == f"alula {__version__}\n"
    top = alula("--help")
    assert top.code == 0 and all(command in top.out for command in ("run", "bench", "check"))
    for command in ("run", "bench", "check"):
        assert alula(command, "--help").code == 0


def test_no_command_and_an_unknown_one(alula: Alula) -> None:
    nothing = alula()
    assert nothing.code == 2 and "Usage" in nothing.out
    unknown = alula("explain")
    assert unknown.code == 2 and "explain" in unknown.err and not unknown.out


def test_run_prints_the_answer_and_a_closing_line(alula: Alula) -> None:
    outcome = alula("run", "m", "--prompt", "hi")
    assert outcome.code == 0 and outcome.out == ANSWER + "\n"
    assert "73 tokens (stop), 150.0 tokens/s, 3.00 tokens per cycle, 20.0 ms a cycle" in outcome.err


def test_run_json(alula: Alula) -> None:
    outcome = alula("run", "m", "--prompt", "hi", "--json", "-", "--max-tokens", 9, "--draft", "none")
    assert outcome.json["answers"][0]["text"] == ANSWER[:9]
    assert outcome.json["answers"][0]["finish_reason"] == "length"
    assert outcome.json["answers"][0]["tokens_per_cycle"] == 1.0
    assert outcome.json["draft"] is None and outcome.json["error"] is None
    assert ANSWER[:9] in outcome.err


def test_run_says_what_was_decoded_plainly(alula: Alula) -> None:
    """73 tokens: one of the prompt's cycle, four cycles of three, and sixty plain ones."""
    outcome = alula("run", "m", "--prompt", GIVES_UP)
    assert "73 tokens (stop), 105.9 tokens/s, 1.12 tokens per cycle" in outcome.err
    assert "; 60 of 64 cycles (93.8%) were plain: unprofitable 60" in outcome.err
    told = alula("run", "m", "--prompt", GIVES_UP, "--json", "-", "--speculate", "auto").json
    assert told["speculate"] == "auto"
    assert told["answers"][0]["speculation"] == {
        "drafted_cycles": 4,
        "plain_cycles": 60,
        "plain_share": 60 / 64,
        "plain_because": {"unprofitable": 60},
    }
    plain = alula("run", "m", "--prompt", "hi", "--draft", "none", "--json", "-").json
    assert plain["answers"][0]["speculation"] is None


def test_run_reads_stdin(alula: Alula, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    outcome = alula("run", "m", "--json", "-")
    assert outcome.json["answers"][0]["prompt"] == "two\nlines"


@pytest.mark.parametrize("stdin", [io.StringIO(""), io.StringIO(" \n"), None])
def test_run_without_a_prompt(alula: Alula, monkeypatch: pytest.MonkeyPatch, stdin: Any) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = alula("run", "m")
    assert outcome.code == 2 and "--prompt TEXT" in outcome.err


def test_run_sends_what_it_says(alula: Alula) -> None:
    FakeLLM.closed.clear()
    alula("run", "m", "--prompt", "hi", "--system", "be brief")
    alula("run", "m", "--prompt", "hi", "--raw")
    assert [llm.requests for llm in FakeLLM.closed] == [
        [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]],
        ["hi"],
    ]
    assert alula("run", "m", "--prompt", "hi", "--raw", "--system", "x").code == 2
    assert alula("run", "m", "--prompt", " ").code == 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_run_converses_until_the_end_of_stdin(alula: Alula, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLLM.closed.clear()
    monkeypatch.setattr(sys, "stdin", _Terminal("first\n\nsecond\n"))
    outcome = alula("run", "m")
    assert outcome.code == 0 and outcome.out == f"{ANSWER}\n{ANSWER}\n"
    assert outcome.err.count("> ") == 4
    conversation = FakeLLM.closed[0].requests[-1]
    assert [message["role"] for message in conversation] == ["user", "assistant", "user", "assistant"]
    assert conversation[1]["content"] == ANSWER


def test_run_budget(alula: Alula) -> None:
    outcome = alula("run", "m", "--prompt", SLOW, "--budget", 0.12, "--json", "-")
    answer = outcome.json["answers"][0]
    assert outcome.code == 0 and answer["finish_reason"] == "abort" and 0 < len(answer["text"]) < len(ANSWER)


@pytest.mark.parametrize(("prompt", "code", "kind"), [(TOO_LONG, 2, "PromptTooLong"), (DIES, 1, "RankFailure")])
def test_run_errors(alula: Alula, prompt: str, code: int, kind: str) -> None:
    outcome = alula("run", "m", "--prompt", prompt, "--json", "-")
    assert outcome.code == code and outcome.json["error"]["kind"] == kind
    assert "alula: error: " in outcome.err and "Traceback" not in outcome.err


def test_no_such_model(alula: Alula) -> None:
    for command in (("run", "missing", "--prompt", "x"), ("bench", "missing")):
        outcome = alula(*command)
        assert outcome.code == 2 and "no model 'missing'" in outcome.err and not outcome.out


def test_bench_prints_and_writes(alula: Alula, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2\n", encoding="utf-8")
    page = tmp_path / "page.html"
    outcome = alula(
        "bench", "m", "--prompts", tmp_path / "a", tmp_path / "b", "--limit", 3, "--html", page, "--json", "-"
    )
    assert outcome.code == 0 and outcome.json["prompts"] == 3 and outcome.json["speedup"] == pytest.approx(1.5)
    assert [entry["id"] for entry in outcome.json["per_prompt"]] == ["a:1", "a:2", "b:1"]
    assert "EAGLE-3 is faster" in outcome.err and "<svg" in page.read_text(encoding="utf-8")


def test_bench_counts_mismatches(alula: Alula, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(f"fine\n{DIFFERS}\n", encoding="utf-8")
    outcome = alula("bench", "m", "--prompts", tmp_path / "p.txt", "--json", "-")
    assert outcome.json["mismatched_tokens"] == len(ANSWER) - 10


def test_bench_plain_only(alula: Alula) -> None:
    outcome = alula("bench", "m", "--draft", "none", "--limit", 1)
    assert outcome.code == 0 and "Plain decoding only" in outcome.out


def test_bench_keeps_results_when_a_rank_dies(alula: Alula, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(f"fine\n{DIES}\n", encoding="utf-8")
    outcome = alula("bench", "m", "--prompts", tmp_path / "p.txt", "--json", "-")
    assert outcome.code == 1 and outcome.json["prompts"] == 1 and outcome.json["stopped"] == "fault"
    assert outcome.json["error"]["kind"] == "RankFailure" and "rank 1 died" in outcome.err


def test_bench_skips_what_does_not_fit(alula: Alula, tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text(f"fine\n{TOO_LONG}\n", encoding="utf-8")
    outcome = alula("bench", "m", "--prompts", prompts)
    assert outcome.code == 0 and "Skipped p.txt:2: the prompt has 9000 tokens" in outcome.out
    prompts.write_text(f"{TOO_LONG}\n", encoding="utf-8")
    assert alula("bench", "m", "--prompts", prompts).code == 2


def test_bench_budget(alula: Alula) -> None:
    outcome = alula("bench", "m", "--budget", 0.000001)
    assert outcome.code == 0 and "Stopped after 1 prompts: the budget was spent." in outcome.out


def test_bench_bad_options(alula: Alula, tmp_path: Path) -> None:
    assert alula("bench", "m", "--limit", 0).code == 2
    assert alula("bench", "m", "--html", tmp_path / "absent" / "x.html").code == 2
    assert alula("bench", "m", "--record", tmp_path / "absent" / "x.jsonl").code == 2
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{\n", encoding="utf-8")
    outcome = alula("bench", "m", "--prompts", bad)
    assert outcome.code == 2 and f"{bad}:1" in outcome.err


def test_check(alula: Alula) -> None:
    outcome = alula("check", "--json", "-")
    assert outcome.code == 0 and outcome.json["machine"]["torch"]
    assert {row["backend"] for row in outcome.json["collectives"]} >= {"shared_memory", "torch_distributed"}
    assert alula("check", "--tp", 1).code == 2


def test_check_describes_a_model(alula: Alula, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "model.safetensors")
    outcome = alula("check", tmp_path, "--json", "-")
    assert outcome.code == 0 and outcome.json["model"]["possible_tp"] == [1, 2, 4]
    assert alula("check", tmp_path / "absent").code == 2
