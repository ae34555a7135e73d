"""The comparison's order, warm-up, budget, and what is kept when it is cut short."""

from __future__ import annotations

import time
from typing import Any

import pytest

from alula.bench.compare import WARM_UP_TOKENS, Workload, measure
from alula.bench.prompts import Prompt
from alula.core.errors import RankFailure
from alula.core.sampling import SamplingParams
from fake_llm import DIES, TOO_LONG, FakeLLM


class Watched(FakeLLM):
    """Notes each call as (text, steps, max_tokens)."""

    def __init__(self, **options: Any) -> None:
        super().__init__("m", **options)
        self.calls: list[tuple[str, int | None, int]] = []

    def _complete(self, conversation: Any, sampling: SamplingParams, steps: int | None) -> Any:
        text = conversation if isinstance(conversation, str) else conversation[0]["content"]
        self.calls.append((text, steps, sampling.max_tokens))
        return super()._complete(conversation, sampling, steps)


def _workload(*texts: str, **options: Any) -> Workload:
    prompts = tuple(Prompt(id=text, messages=({"role": "user", "content": text},)) for text in texts)
    return Workload(prompts=prompts, sampling=SamplingParams(max_tokens=40), **options)


def test_sides_swap_after_a_warm_up() -> None:
    llm, done = Watched(), []
    measurement = measure(llm, _workload("a", "b", "c"), lambda: done.append(1))
    warm_up = [("a", 0, WARM_UP_TOKENS), ("a", None, WARM_UP_TOKENS)]
    measured = [("a", 0, 40), ("a", None, 40), ("b", None, 40), ("b", 0, 40), ("c", 0, 40), ("c", None, 40)]
    assert llm.calls == warm_up + measured
    assert [run.prompt_id for run in measurement.runs] == ["a", "b", "c"] and len(done) == 3
    assert measurement.stopped is None
    # Cycles of the warm-up and of the other side stay out.
    assert [len(run.plain.cycles) for run in measurement.runs] == [40, 40, 40]
    assert all(run.eagle3 and len(run.eagle3.cycles) == 14 for run in measurement.runs)


def test_plain_only_and_raw() -> None:
    llm = Watched(draft=None)
    measurement = measure(llm, _workload("a", drafting=False, raw=True))
    assert {steps for _, steps, _ in llm.calls} == {0}
    assert llm.requests == ["a", "a"] and measurement.runs[0].eagle3 is None


def test_a_spent_budget_still_measures_one_prompt() -> None:
    measurement = measure(Watched(), _workload("a", "b", deadline=time.monotonic() - 1))
    assert [run.prompt_id for run in measurement.runs] == ["a"] and measurement.stopped == "budget"


def test_a_prompt_that_does_not_fit_is_skipped() -> None:
    measurement = measure(Watched(), _workload(TOO_LONG, "b"))
    assert [run.prompt_id for run in measurement.runs] == ["b"]
    assert [entry.prompt_id for entry in measurement.skipped] == [TOO_LONG]
    assert "9000 tokens" in measurement.skipped[0].error


def test_a_fault_keeps_what_was_measured() -> None:
    measurement = measure(Watched(), _workload("a", DIES, "c"))
    assert [run.prompt_id for run in measurement.runs] == ["a"]
    assert measurement.stopped == "fault" and isinstance(measurement.fault, RankFailure)


def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    measurement = measure(Watched(), _workload("a", "b"), interrupt)
    assert [run.prompt_id for run in measurement.runs] == ["a"] and measurement.stopped == "interrupted"


def test_token_ids_are_sent_as_they_are() -> None:
    class Noting(FakeLLM):
        def generate(self, prompts: Any, sampling: SamplingParams, *, steps: int | None = None) -> Any:
            sent.extend(prompts)
            return super().chat(["a"], sampling, steps=steps)

    sent: list[Any] = []
    workload = Workload(
        prompts=(Prompt(id="random", token_ids=(3, 1, 2)),), sampling=SamplingParams(max_tokens=40), textless=True
    )
    measurement = measure(Noting("m"), workload)
    assert sent == [[3, 1, 2]] * 4
    assert measurement.runs[0].textless and measurement.runs[0].mismatched_tokens == 0


def test_forced_acceptance_is_passed_on() -> None:
    measurement = measure(Watched(), _workload("a", forced_tokens_per_cycle=2.8))
    assert measurement.runs[0].forced and measurement.runs[0].textless
