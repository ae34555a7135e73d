"""Verdicts on engines whose times are made up: what is named first, its milliseconds, sums. No clock, no model."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import REDUCTIONS, FakeEngine

from alula.core.errors import OutOfMemory, PromptTooLong, RankFailure
from alula.explain.finding import Finding, Status
from alula.explain.report.page import page
from alula.explain.verdict import as_document
from alula.lab.budget import Budget
from alula.lab.experiment import DONE, FAILED, NOT_APPLICABLE, NOT_RUN, PARTLY
from alula.lab.live import Live, explain_live


def examine(engine: FakeEngine, seconds: float = 60.0, **workload: Any) -> Live:
    return explain_live(engine, engine.workload(**workload), Budget(seconds, lambda: engine.now))


def confirmed(live: Live) -> list[Finding]:
    return [one for one in live.verdict.findings if one.status is Status.CONFIRMED]


def checked(live: Live) -> None:
    """What holds of every verdict with both sides: parts add up, and little is left over."""
    sums, parts = live.verdict.case.sums, live.verdict.waterfall
    assert sums.cycle_ms is not None
    assert sum(part.ms for part in parts) == pytest.approx(sums.cycle_ms.value)
    assert abs(live.verdict.remainder_ms or 0.0) <= 0.15 * sums.cycle_ms.value


def test_nothing_is_wrong_with_a_healthy_engine() -> None:
    live = examine(FakeEngine())
    assert confirmed(live) == [] and live.verdict.exit_code == 0
    assert live.verdict.case.sums.tokens_per_cycle is not None
    assert live.verdict.case.sums.tokens_per_cycle.value == pytest.approx(2.2, abs=0.05)
    assert "pays" in live.verdict.answer and "over its floor" in page(live.verdict)
    checked(live)


def test_a_host_that_sleeps() -> None:
    live = examine(FakeEngine(host_ms=2.1))
    (first,) = confirmed(live)
    assert first.id == "host_or_launch_bound" and first.ms == pytest.approx(2.12)
    sums = live.verdict.case.sums
    assert sums.tokens_per_cycle is not None and sums.cycle_ms is not None and sums.plain_ms is not None
    after = sums.tokens_per_cycle.value * (sums.plain_ms.value - 2.12) / (sums.cycle_ms.value - 2.12)
    assert first.predicted_speedup == pytest.approx(after)  # plain steps lose their part of it too
    checked(live)


def test_a_draft_that_is_slow_for_its_size() -> None:
    live = examine(FakeEngine(draft_step_ms=2.0, extend_ms=2.2))
    (first,) = confirmed(live)
    assert first.id == "draft_too_slow" and first.ms is not None
    assert 3.5 < first.ms < 6.2  # of 6.2 ms what its size does not explain
    checked(live)


def test_a_large_draft_is_not_called_slow() -> None:
    """The target's layers take 0.45 ms each; three passes of a layer that reads twice as much, and a small head."""
    live = examine(FakeEngine(plain_ms=3.0, draft_step_ms=0.45, extend_ms=0.6))
    assert "draft_too_slow" not in [one.id for one in confirmed(live)]


def test_too_many_drafts() -> None:
    live = examine(FakeEngine(steps=8, accepted=(1, 0, 2, 1), row_ms=0.4))
    first = confirmed(live)[0]
    assert first.id == "draft_length" and first.fix is not None and "--steps 2" in first.fix
    assert first.ms == pytest.approx(6 * 0.6 + 6 * 0.4)  # six draft steps and six rows less
    checked(live)


def test_a_random_head() -> None:
    live = examine(FakeEngine(accepted=(0,)))
    assert confirmed(live)[0].id == "head_broken" and live.verdict.exit_code == 3


def test_a_head_that_reads_the_layers_above_its_own() -> None:
    live = examine(FakeEngine(shift=-1, accepted=(1, 0)))
    first = confirmed(live)[0]
    assert first.id == "head_broken" and first.fix == "let the head read boundaries 1,9,16"


def test_answers_that_loop() -> None:
    assert confirmed(examine(FakeEngine(looping=True, accepted=(3,))))[0].id == "acceptance_too_good"


def test_every_collective_is_late() -> None:
    live = examine(FakeEngine(tp=2, call_ms=1.02, large_call_ms=1.02))
    first = confirmed(live)[0]
    assert first.id == "collectives_slow" and first.ms == pytest.approx(REDUCTIONS * 1.0)
    checked(live)


def test_only_large_collectives_are_late() -> None:
    live = examine(FakeEngine(tp=2, large_call_ms=0.12))
    first = confirmed(live)[0]
    assert first.id == "allreduce_paths_differ" and first.ms == pytest.approx(REDUCTIONS * 0.1)
    assert "collectives_slow" not in [one.id for one in confirmed(live)]
    checked(live)


def test_a_slow_rank() -> None:
    live = examine(FakeEngine(tp=2, late_ms=0.1))
    first = confirmed(live)[0]
    assert first.id == "rank_skew" and first.ms == pytest.approx(REDUCTIONS * 0.1) and "Rank 1" in first.text
    html = page(live.verdict)
    assert "cycle, rank 1" in html and "waits 4.1 ms" in html and "Collectives of decode against verify" in html


def test_a_variable_that_one_rank_lost() -> None:
    live = examine(FakeEngine(tp=2, lost_variable=True))
    first = confirmed(live)[0]
    assert first.id == "variables_not_in_force" and "rank 1" in first.text
    assert "NCCL_PROTO" in page(live.verdict)


def test_two_at_once_stand_in_the_order_of_their_cost() -> None:
    live = examine(FakeEngine(host_ms=2.1, draft_step_ms=2.5, extend_ms=2.5))
    assert [one.id for one in confirmed(live)][:2] == ["draft_too_slow", "host_or_launch_bound"]
    checked(live)


def test_without_a_head_the_plain_step_is_explained() -> None:
    live = examine(FakeEngine(draft=None))
    assert "Nothing speculates here" in live.verdict.answer and "plain step takes 10.1" in live.verdict.answer
    assert "its bytes need" in live.verdict.answer
    assert live.verdict.exit_code == 0 and as_document(live.verdict)["pays"] is None
    assert ("draft_alone", NOT_APPLICABLE) in [(one.name, one.status) for one in live.outcome.ran]


def test_a_run_that_is_too_short_says_what_it_could_not_establish() -> None:
    live = examine(FakeEngine(), seconds=0.01, num_prompts=1, max_tokens=12)
    notes = " ".join(live.verdict.case.notes)
    assert "drafted cycles were measured: too few" in notes and "width_sweep: not run" in notes
    assert {one.status for one in live.outcome.ran} == {DONE, NOT_RUN, NOT_APPLICABLE}


@pytest.mark.parametrize("where", [7, "time_forwards", "memory_bytes_per_s"])
def test_ctrl_c_keeps_what_was_measured(where: str | int) -> None:
    live = examine(FakeEngine(raises={where: KeyboardInterrupt()}))
    assert live.outcome.interrupted and live.verdict.case.sums.pays is True
    assert PARTLY in [one.status for one in live.outcome.ran]
    assert any("interrupted" in note for note in live.verdict.case.notes)
    checked(live)


def test_ctrl_c_at_once_says_nothing() -> None:
    live = examine(FakeEngine(raises={1: KeyboardInterrupt()}))
    assert live.outcome.interrupted and live.verdict.case.sums.pays is None


def test_a_rank_that_dies_ends_the_experiments_not_the_verdict() -> None:
    live = examine(FakeEngine(tp=2, raises={"serve": RankFailure("rank 1 died", rank=1)}))
    assert isinstance(live.outcome.fault, RankFailure)
    assert live.verdict.case.sums.pays is not None
    assert ("collectives", FAILED) in [(one.name, one.status) for one in live.outcome.ran]


def test_the_budget_is_kept_by_every_experiment() -> None:
    engine = FakeEngine()
    examine(engine, seconds=20.0, num_prompts=400)
    assert engine.now < 30.0  # made-up seconds: answers and rounds are finished, none is begun behind the end


def test_more_time_means_more_cycles() -> None:
    short, long = (examine(FakeEngine(), seconds=seconds, num_prompts=200) for seconds in (10.0, 60.0))
    samples = []
    for live in (short, long):
        cycle = live.verdict.case.sums.cycle_ms
        assert cycle is not None
        samples.append(cycle.evidence[0].num_samples)
    assert samples[1] > 3 * samples[0]


def test_a_prompt_that_does_not_fit_is_left_out() -> None:
    live = examine(FakeEngine(raises={3: PromptTooLong("the prompt has 9000 tokens")}))
    assert live.outcome.fault is None and live.verdict.case.sums.pays is True
    assert "prompt 1 was left out: the prompt has 9000 tokens" in live.verdict.case.notes


def test_an_experiment_without_memory_leaves_the_others() -> None:
    live = examine(FakeEngine(raises={"memory_bytes_per_s": OutOfMemory("out of memory for two blocks")}))
    told = {one.name: (one.status, one.why) for one in live.outcome.ran}
    assert told["memory_bandwidth"] == (FAILED, "out of memory for two blocks")
    assert told["forced_acceptance"][0] == DONE and live.outcome.fault is None
