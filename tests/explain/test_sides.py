"""Two sides, several runs: what may be compared, what belongs to one side alone, what disagrees."""

from __future__ import annotations

import pytest
from evidence_builder import Found, finding, found, sink_of, verdict_of
from hypothesis import assume, given
from hypothesis import strategies as st

from alula.explain.finding import Status
from alula.explain.judge import explain
from alula.explain.typed import Typed
from alula.explain.verdict import Verdict
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

_SUBJECTS = [
    (Q.ENGINE, "sglang", "vllm"),
    (Q.MODEL, "org/Qwen3-235B-A22B", "meta/Llama-3.1-70B"),
    (Q.TP, 4, 8),
    (Q.GPU, "NVIDIA H100", "NVIDIA L40S"),
    (Q.DRAFT_MODEL, "a/eagle3-head", "b/other-draft"),
]


def _run(steps: int, rate: float, *more: Found) -> list[Found]:
    return [found(Q.STEPS, steps), found(Q.TOKENS_PER_CYCLE, 1 + 0.4 * steps), found(Q.TOKENS_PER_S, rate), *more]


def _two(first: Found, second: Found) -> Verdict:
    """Two runs that speculate with k = 3 and k = 4, the second much faster."""
    sinks = [sink_of(*_run(3, 62.0, first), source="a"), sink_of(*_run(4, 205.0, second), source="b")]
    return explain(sinks)


@pytest.mark.parametrize("quantity,left,right", _SUBJECTS)
def test_runs_of_different_things_are_no_sweep(quantity: Q, left: str | int, right: str | int) -> None:
    apart = _two(found(quantity, left), found(quantity, right))
    assert apart.case.sweep == ()
    assert finding(apart, "draft_length").status is Status.UNDECIDED
    assert finding(apart, "fixed_or_per_draft_cost").status is Status.UNDECIDED
    alike = _two(found(quantity, left), found(quantity, left))
    assert [point.steps for point in alike.case.sweep] == [3, 4]
    assert finding(alike, "draft_length").status is Status.CONFIRMED


def test_runs_at_different_loads_are_no_sweep() -> None:
    assert _two(found(Q.CONCURRENCY, 1), found(Q.CONCURRENCY, 16)).case.sweep == ()


@given(
    st.floats(20, 2000),
    st.floats(20, 2000),
    st.integers(1, 40),
    st.integers(2, 9),
    st.sampled_from([Q.CONCURRENCY, Q.NUM_RUNNING, Q.BATCH]),
    st.booleans(),
)
def test_numbers_are_compared_at_one_load_only(
    plain_rate: float, spec_rate: float, batch: int, factor: int, load: Q, swapped: bool
) -> None:
    loads = (batch, batch * factor) if swapped else (batch * factor, batch)
    plain = [found(Q.TOKENS_PER_S, plain_rate), found(Q.TOKEN_MS, 9.0), found(load, loads[0])]
    verdict = verdict_of(_run(3, spec_rate, found(load, loads[1]), found(Q.TOKEN_MS, 5.0)), plain)
    assert verdict.case.sums.pays is None and verdict.exit_code == 0
    assert verdict.case.sums.speedup is None and verdict.case.sums.break_even is None
    assert "one load only" in verdict.answer and f"{loads[0]} requests" in verdict.answer
    assert finding(verdict, "not_like_for_like").status is Status.CONFIRMED
    same = verdict_of(
        _run(3, spec_rate, found(load, batch)), [found(Q.TOKENS_PER_S, plain_rate), found(load, batch)]
    )
    assert same.case.sums.speedup is not None


_REFUSED = found(Q.ALLREDUCE_REFUSED, "not supported on more than two PCIe-only GPUs", name="custom")
_OFF, _ON = found(Q.CUSTOM_ALLREDUCE_DISABLED, True), found(Q.CUSTOM_ALLREDUCE_DISABLED, False)
_ENGAGED = found(Q.ALLREDUCE_ENGAGED, True, name="custom")
_NCCL = found(Q.ALLREDUCE_ENGAGED, True, name="nccl")


@pytest.mark.parametrize(
    "spec,plain,where",
    [
        ([_OFF], [_ON], "in the speculative run alone"),
        ([_OFF], [_ENGAGED], "in the speculative run alone"),
        ([_REFUSED], [_ENGAGED], "in the speculative run alone"),
        ([_REFUSED], [_ON], "in plain steps and in verify"),  # that no warning was printed proves nothing
        ([_REFUSED], [_REFUSED], "in plain steps and in verify"),
        ([_OFF], [_NCCL], "in plain steps and in verify"),
        ([_OFF], [], "in plain steps and in verify"),
    ],
)
def test_a_refused_backend_is_told_of_the_side_that_lacks_it(
    spec: list[Found], plain: list[Found], where: str
) -> None:
    told = finding(verdict_of([found(Q.TP, 4), *spec], [found(Q.TP, 4), *plain]), "allreduce_backend_refused")
    assert told.status is Status.CONFIRMED and where in told.text
    assert told.confidence >= 0.8


@pytest.mark.parametrize("plain,spec", [([_OFF], [_ON]), ([_OFF], [_ENGAGED]), ([_REFUSED], [_ENGAGED])])
def test_a_backend_that_the_plain_run_alone_lacks_is_no_cause(plain: list[Found], spec: list[Found]) -> None:
    told = finding(verdict_of([found(Q.TP, 4), *spec], [found(Q.TP, 4), *plain]), "allreduce_backend_refused")
    assert told.status is Status.REFUTED


def test_nccls_own_kernels_are_no_fast_backend() -> None:
    told = finding(verdict_of([found(Q.TP, 4), _NCCL]), "allreduce_backend_refused")
    assert told.status is Status.UNDECIDED


@pytest.mark.parametrize("reason,cure", [("an unsupported world size: 16", "number of ranks"), ("this process group spans across nodes", "one node")])  # fmt: skip
@pytest.mark.parametrize("version", ["0.5.4", "0.11.0", "0.40.0"])
def test_the_fix_of_a_refusal_fits_its_reason(reason: str, cure: str, version: str) -> None:
    spec = [found(Q.ENGINE, "vllm"), found(Q.ENGINE_VERSION, version), found(Q.TP, 16)]
    told = finding(verdict_of([*spec, found(Q.ALLREDUCE_REFUSED, reason)]), "allreduce_backend_refused")
    assert cure in (told.fix or "") and "PCIE" not in (told.fix or "")


@pytest.mark.parametrize("engine,version", [("sglang", "0.5.9"), ("vllm", "0.11.0"), ("sglang", None)])
def test_no_fix_removes_an_option_that_was_not_given(engine: str, version: str | None) -> None:
    spec = [found(Q.ENGINE, engine), found(Q.TP, 4), _ON, _REFUSED]
    spec += [found(Q.ENGINE_VERSION, version)] if version else []
    told = finding(verdict_of(spec), "allreduce_backend_refused")
    assert "disable-custom" not in (told.fix or "") and "PCIE_IPC" in (told.fix or "")


@given(st.floats(2.0, 40.0), st.floats(1.5, 3.5), st.floats(1.1, 3.0), st.floats(2.0, 5.0))
def test_two_ways_to_the_speed_up_that_disagree_decide_nothing(
    plain_ms: float, tokens: float, cost: float, wrong: float
) -> None:
    assume(abs(tokens - cost) > 0.05)
    cycle_ms = plain_ms * cost
    spec = [found(Q.CYCLE_MS, cycle_ms), found(Q.TOKENS_PER_CYCLE, tokens), found(Q.STEPS, 5)]
    spec_tps = 1000.0 * tokens / cycle_ms
    honest = explain(
        [sink_of(*spec, label=Label.SPECULATIVE), sink_of(found(Q.PLAIN_STEP_MS, plain_ms), label=Label.BASELINE)],
        Typed(plain_tps=1000.0 / plain_ms, spec_tps=spec_tps),
    )
    assert honest.case.sums.pays is (tokens > cost) and not honest.case.contradicts_itself
    factor = wrong * max(1.0, tokens / cost)  # a plain rate that turns the verdict round, or makes it far worse
    muddled = explain(
        [sink_of(*spec, label=Label.SPECULATIVE), sink_of(found(Q.PLAIN_STEP_MS, plain_ms), label=Label.BASELINE)],
        Typed(plain_tps=factor * 1000.0 / plain_ms, spec_tps=spec_tps),
    )
    told = finding(muddled, "contradictory_evidence")
    assert told.status is Status.CONFIRMED and told.evidence and told.next_step
    assert muddled.case.sums.pays is (None if tokens > cost else False)
    if tokens > cost:
        assert "disagree" in muddled.answer and muddled.exit_code == 0
        assert finding(muddled, "break_even_above_ceiling").status is Status.UNDECIDED


@pytest.mark.parametrize(
    "typed",
    [
        Typed(plain_tps=100, spec_tps=150, plain_ms=5, cycle_ms=10, tokens_per_cycle=4.5, steps=3),
        Typed(plain_tps=50, spec_tps=45, tokens_per_cycle=2, cycle_ms=90, steps=3),
        Typed(plain_tps=80, spec_tps=90, verify_ms=20.0, draft_ms=5.0, cycle_ms=20.0, steps=3),
    ],
)
def test_typed_contradictions_are_in_the_answer_and_lower_every_confidence(typed: Typed) -> None:
    verdict = explain([], typed)
    assert "contradicts itself" in verdict.answer and "Nothing wrong" not in verdict.answer
    told = finding(verdict, "contradictory_evidence")
    assert {one.source for one in told.evidence} == {"typed"}
    assert "--from" not in (told.next_step or "") and " ," not in told.text
    for one in verdict.findings:
        assert one.id == "contradictory_evidence" or one.confidence <= 0.75
