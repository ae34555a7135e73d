"""How phases ran: counted from records, and put into words."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from alula.bench.graph_report import captured, how_phases_ran
from alula.bench.results import Answer, PhaseRuns, count_outcomes, summarise_side
from alula.core.records import PhaseOutcome
from fake_llm import cycle

REPLAYED = PhaseOutcome(replayed=True)
REASONS = st.sampled_from([REPLAYED, PhaseOutcome(replayed=False, reason="a"), PhaseOutcome(replayed=False)])


def _cycle(**outcomes: PhaseOutcome) -> object:
    return msgspec.structs.replace(cycle(1), outcomes=outcomes)


def test_decode_cycles_alone_are_counted() -> None:
    failed = PhaseOutcome(replayed=False, reason="capture_failed: no")
    prompt = msgspec.structs.replace(cycle(0, prefill=7), outcomes={"prompt": failed, "verify": failed})
    cycles = [prompt, _cycle(verify=REPLAYED, accept=failed), _cycle(verify=failed, draft=REPLAYED)]
    counted = count_outcomes(cycles)
    assert list(counted) == ["draft", "verify", "accept"]
    assert counted["verify"] == PhaseRuns(
        cycles=2, replayed=1, replayed_share=0.5, eager_because={"capture_failed: no": 1}
    )
    side = summarise_side([Answer(token_ids=(1,), finish_reason="length", cycles=tuple(cycles))], 0)
    assert side.outcomes == counted
    said = "draft replayed; verify 50.0% replayed, else eager (capture_failed: no 1); accept eager ("
    assert how_phases_ran(counted) == f"{said}capture_failed: no 1)"


@given(st.lists(st.dictionaries(st.sampled_from(["draft", "verify", "extend", "catch_up"]), REASONS)))
def test_every_outcome_is_counted_once(outcomes: list[dict[str, PhaseOutcome]]) -> None:
    counted = count_outcomes([_cycle(**each) for each in outcomes])
    for phase, runs in counted.items():
        assert runs.cycles == sum(phase in each for each in outcomes) > 0
        assert runs.replayed + sum(runs.eager_because.values()) == runs.cycles
        assert runs.replayed_share == runs.replayed / runs.cycles
    assert set(counted) == {phase for each in outcomes for phase in each}
    assert "  " not in how_phases_ran(counted)


def test_facts_of_an_engine_that_says_nothing_of_graphs() -> None:
    assert captured({}) == [] and captured({"device_cycle": {"kernels": "triton", "refusal": None}}) == []
