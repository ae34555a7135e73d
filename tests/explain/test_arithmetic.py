"""The identities of speculation's arithmetic, from whatever form the numbers have."""

from __future__ import annotations

import pytest
from evidence_builder import Found, found, sink_of, verdict_of
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InvalidOption
from alula.explain.arithmetic import Arithmetic
from alula.explain.judge import explain
from alula.explain.sweep import CycleLine, SweepPoint, fit_line
from alula.explain.typed import Typed, conflicts
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

_MS = st.floats(0.1, 500.0)
_TOKENS = st.floats(1.0, 6.0)


def sums_of(spec: list[Found], plain: list[Found] | None = None) -> Arithmetic:
    return verdict_of(spec, plain).case.sums


def value(figure: object) -> float:
    return figure.value  # type: ignore[attr-defined]


@given(plain_ms=_MS, cycle_ms=_MS, tokens=_TOKENS, batch=st.integers(1, 64))
def test_rates_and_times_imply_each_other(plain_ms: float, cycle_ms: float, tokens: float, batch: int) -> None:
    plain_tps, spec_tps = 1000 * batch / plain_ms, 1000 * batch * tokens / cycle_ms
    by_rate = explain(
        [], Typed(plain_tps=plain_tps, spec_tps=spec_tps, tokens_per_cycle=tokens, steps=6, batch=batch)
    )
    by_time = explain(
        [], Typed(plain_ms=plain_ms, cycle_ms=cycle_ms, tokens_per_cycle=tokens, steps=6, batch=batch)
    )
    implied = explain([], Typed(plain_ms=plain_ms, cycle_ms=cycle_ms, spec_tps=spec_tps, steps=6, batch=batch))
    for verdict in (by_rate, by_time, implied):
        sums = verdict.case.sums
        assert value(sums.tokens_per_cycle) == pytest.approx(tokens)
        assert value(sums.cycle_ms) == pytest.approx(cycle_ms)
        assert value(sums.break_even) == pytest.approx(cycle_ms / plain_ms)
        assert value(sums.speedup) == pytest.approx(tokens * plain_ms / cycle_ms)
        assert value(sums.ceiling) == 7
        assert sums.pays == (value(sums.speedup) > 1.0)


@given(plain_ms=_MS, cycle_ms=_MS, tokens=_TOKENS)
def test_it_pays_exactly_above_break_even(plain_ms: float, cycle_ms: float, tokens: float) -> None:
    sums = explain([], Typed(plain_ms=plain_ms, cycle_ms=cycle_ms, tokens_per_cycle=tokens, steps=8)).case.sums
    assert sums.pays == (value(sums.tokens_per_cycle) * plain_ms / cycle_ms > 1.0)
    assert value(sums.needed_cycle_ms) == pytest.approx(tokens * plain_ms)


def test_partial_cycles_give_bounds_that_say_so() -> None:
    sums = sums_of([found(Q.PLAIN_STEP_MS, 10.0), found(Q.VERIFY_MS, 25.0), found(Q.STEPS, 1)])
    assert sums.break_even is not None and sums.break_even.at_least
    assert sums.cycle_ms is None
    assert sums.pays is False  # 2.5 plain steps at least, and never more than 2 tokens


@pytest.mark.parametrize(
    "evidence,tokens",
    [
        ([found(Q.TOKENS_PER_CYCLE, 2.4)], 2.4),
        ([found(Q.NUM_CYCLES, 100), found(Q.NUM_ACCEPTED, 140)], 2.4),
        ([found(Q.NUM_DRAFTED, 300), found(Q.NUM_ACCEPTED, 140)], 2.4),
        ([found(Q.ACCEPTED_PER_DRAFTED, 1.4 / 3)], 2.4),
        ([found(Q.ACCEPTANCE, share, position=at) for at, share in enumerate((0.7, 0.45, 0.25))], 2.4),
        ([found(Q.CHUNK_MS, 8.4), found(Q.TOKEN_MS, 3.5)], 2.4),
    ],
)
def test_every_definition_of_acceptance_becomes_tokens_per_cycle(evidence: list[Found], tokens: float) -> None:
    sums = sums_of([*evidence, found(Q.STEPS, 3)])
    assert value(sums.tokens_per_cycle) == pytest.approx(tokens)
    assert sums.tokens_per_cycle is not None and sums.tokens_per_cycle.formula


def test_rates_are_compared_at_one_load_only() -> None:
    spec = [found(Q.TOKENS_PER_S, 900.0, batch=16), found(Q.TOKENS_PER_S, 150.0, batch=1, times=5)]
    same = sums_of([*spec, found(Q.STEPS, 3)], [found(Q.TOKENS_PER_S, 100.0, batch=1)])
    assert value(same.speedup) == pytest.approx(1.5)
    other = sums_of([spec[0], found(Q.STEPS, 3)], [found(Q.TOKENS_PER_S, 100.0, batch=1)])
    assert other.speedup is None and other.pays is None


def test_a_chain_of_known_rows_has_one_draft_less() -> None:
    assert sums_of([found(Q.NUM_DRAFT_TOKENS, 4)]).steps == 3
    tree = sums_of([found(Q.NUM_DRAFT_TOKENS, 32), found(Q.TOPK, 10)])
    assert tree.steps is None and tree.width == 32


@given(once=st.floats(1, 100), each=st.floats(0, 50), lengths=st.sets(st.integers(1, 12), min_size=2, max_size=6))
def test_the_line_through_draft_lengths_is_found_again(once: float, each: float, lengths: set[int]) -> None:
    points = [
        SweepPoint(steps=k, tokens_per_cycle=None, tokens_per_s=None, cycle_ms=once + each * k, speedup=None)
        for k in lengths
    ]
    line = fit_line(points)
    assert isinstance(line, CycleLine)
    assert line.once_ms == pytest.approx(once, abs=1e-6) and line.per_draft_ms == pytest.approx(each, abs=1e-6)
    assert line.misfit_ms == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "typed,word",
    [
        (Typed(plain_tps=82.2, plain_ms=20.0), "--plain-ms"),
        (Typed(spec_tps=60.0, cycle_ms=30.0, tokens_per_cycle=2.9, steps=2), "--tokens-per-cycle"),
        (Typed(tokens_per_cycle=3.5, steps=2), "can yield"),
        (Typed(verify_ms=20.0, draft_ms=5.0, cycle_ms=20.0), "exceed"),
        (Typed(spec_tps=200.0, verify_ms=29.0, steps=2), "implies"),
    ],
)
def test_typed_numbers_that_do_not_fit_are_pointed_out(typed: Typed, word: str) -> None:
    assert word in " ".join(conflicts(typed))
    verdict = explain([], typed)
    assert verdict.findings[0].id == "contradictory_evidence" or any(
        one.id == "contradictory_evidence" and one.suspect for one in verdict.findings
    )


def test_typed_numbers_that_fit_are_left_alone() -> None:
    typed = Typed(plain_tps=82.2, spec_tps=60.5, steps=2, plain_ms=12.2, verify_ms=29, tp=8)
    assert list(conflicts(typed)) == []


@pytest.mark.parametrize(
    "name,bad", [("plain_tps", 0), ("steps", -1), ("verify_ms", 1e300), ("tokens_per_cycle", 0.5)]
)
def test_impossible_numbers_are_refused_by_name(name: str, bad: float) -> None:
    with pytest.raises(InvalidOption, match=f"--{name.replace('_', '-')}"):
        Typed(**{name: bad})


def test_a_plain_rate_in_a_file_of_its_own_is_the_baseline() -> None:
    spec = sink_of(found(Q.STEPS, 3), found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.TOKENS_PER_S, 80.0), source="s.log")
    plain = sink_of(found(Q.TOKENS_PER_S, 100.0), source="p.log")
    verdict = explain([spec, plain])
    assert verdict.case.plain.label is Label.BASELINE
    assert value(verdict.case.sums.speedup) == pytest.approx(0.8)
