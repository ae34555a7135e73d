"""Figures from made-up records: known values, and what must hold for any records."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.bench.results import (
    Answer,
    PromptRun,
    Speculation,
    decode_cycles,
    is_looping,
    mismatched_tokens,
    prompt_speedup,
    summarise,
    summarise_side,
)
from alula.core.records import PHASES, CycleRecord, RequestCycle
from fake_llm import CYCLE_MS, PLAIN_STEP_MS, PREFILL_MS, cycle

STEPS = 4
UNPROFITABLE = [
    "plain: unprofitable (1.00 tokens per cycle, break-even 1.25)",
    "plain: unprofitable (1.02 tokens per cycle, break-even 1.25)",
    "plain: measuring a plain step",
    "plain: nothing to draft",
    None,
]


def _answer(tokens: tuple[int, ...], *cycles: CycleRecord) -> Answer:
    return Answer(token_ids=tokens, finish_reason="length", cycles=cycles)


def _run(plain_tokens: tuple[int, ...] = (1, 2, 3), eagle3_tokens: tuple[int, ...] = (1, 2, 3)) -> PromptRun:
    return PromptRun(
        prompt_id="p",
        plain=_answer(plain_tokens, cycle(0, prefill=5), cycle(1), cycle(2)),
        eagle3=_answer(eagle3_tokens, cycle(0, prefill=5), cycle(1, drafted=STEPS, accepted=2, emitted=3)),
    )


def test_known_figures() -> None:
    figures = summarise([_run()], STEPS)
    assert figures.plain.tokens_per_s == pytest.approx(1000 / PLAIN_STEP_MS)
    assert figures.plain.prefill_ms == PREFILL_MS
    assert figures.plain.acceptance_per_position == ()
    assert figures.eagle3 is not None
    assert figures.eagle3.tokens_per_s == pytest.approx(3000 / CYCLE_MS)
    assert figures.eagle3.tokens_per_cycle == 3.0
    assert figures.eagle3.acceptance_per_position == (1.0, 1.0, 0.0, 0.0)
    assert figures.eagle3.conditional_acceptance_per_position == (1.0, 1.0, 0.0, None)
    assert figures.speedup == pytest.approx(1.5)
    assert figures.break_even_tokens_per_cycle == pytest.approx(2.0)
    assert figures.ceiling_tokens_per_cycle == STEPS + 1
    assert figures.verify_over_plain_step == pytest.approx(13 / 9)
    assert figures.mismatched_tokens == 0


def test_truncation_lowers_tokens_per_s_but_not_tokens_per_cycle() -> None:
    side = summarise_side([_answer((1,), cycle(0, drafted=4, accepted=4, emitted=2))], STEPS)
    assert (side.tokens_per_cycle, side.emitted_tokens, side.num_truncated_cycles) == (5.0, 2, 1)
    assert side.tokens_per_s == pytest.approx(2000 / CYCLE_MS)


def test_plain_cycles_of_the_drafting_side_count_in_its_speed_alone() -> None:
    """What a drafted cycle costs and brings is not mixed with cycles that were decoded plainly."""
    drafted = [cycle(0, drafted=4, accepted=2, emitted=3), cycle(1, drafted=4, accepted=0, emitted=1)]
    late = msgspec.structs.replace(cycle(2, drafted=4, accepted=1, emitted=2), wall_ms=90.0, num_caught_up=30)
    plain = [msgspec.structs.replace(cycle(3), speculation=said) for said in UNPROFITABLE]
    alone = summarise_side([_answer((1,), *drafted)], STEPS)
    mixed = summarise_side([_answer((1,), *drafted, *plain)], STEPS)
    assert (mixed.cycle_ms, mixed.tokens_per_cycle, mixed.phases_ms) == (CYCLE_MS, 2.0, alone.phases_ms)
    assert mixed.acceptance_per_position == alone.acceptance_per_position
    assert mixed.emitted_tokens == 4 + len(plain)
    assert mixed.tokens_per_s == pytest.approx(
        1000 * (4 + len(plain)) / (2 * CYCLE_MS + len(plain) * PLAIN_STEP_MS)
    )
    assert mixed.speculation == Speculation(
        drafted_cycles=2,
        plain_cycles=5,
        plain_share=pytest.approx(5 / 7),
        plain_because={
            "unprofitable": 2,
            "measuring a plain step": 1,
            "nothing to draft": 1,
            "no drafts asked for": 1,
        },
    )
    with_late = summarise_side([_answer((1,), *drafted, late)], STEPS)
    assert with_late.cycle_ms == CYCLE_MS and with_late.num_cycles == 3
    assert with_late.tokens_per_cycle == 2.0 and with_late.tokens_per_s == pytest.approx(6000 / (2 * CYCLE_MS + 90))
    assert summarise_side([_answer((1,), *plain)], 0).speculation is None


def test_prefill_and_resume_are_no_decode_cycles() -> None:
    assert decode_cycles([cycle(0, prefill=5), cycle(1), cycle(2, prefill=1)]) == [cycle(1)]


def test_a_position_that_was_never_proposed_has_no_acceptance() -> None:
    side = summarise_side([_answer((1,), cycle(0, drafted=2, accepted=2, emitted=3))], STEPS)
    assert side.acceptance_per_position == (1.0, 1.0, None, None)


def test_without_decode_cycles_means_are_absent() -> None:
    run = PromptRun(prompt_id="p", plain=_answer((1,), cycle(0, prefill=5)), eagle3=_answer((1,)))
    figures = summarise([run], STEPS)
    assert figures.plain.tokens_per_s is None and figures.plain.phases_ms is None
    assert figures.speedup is None and figures.speedup_spread is None


def test_plain_only() -> None:
    figures = summarise([PromptRun(prompt_id="p", plain=_answer((1, 2), cycle(0, prefill=5), cycle(1)))], STEPS)
    assert figures.eagle3 is None and figures.mismatched_tokens is None
    assert figures.ceiling_tokens_per_cycle is None
    assert figures.plain.tokens_per_s == pytest.approx(100)


def test_looping_prompts_count_as_mismatched_but_in_no_figure() -> None:
    looping = _run((7,) * 70, (8,) * 70)
    figures = summarise([_run(), looping], STEPS)
    assert (figures.num_prompts, figures.num_looping) == (2, 1)
    assert figures.mismatched_tokens == 70
    assert figures.plain == summarise([_run()], STEPS).plain


def test_one_looping_side_is_enough() -> None:
    assert _run((1, 2, 3), (7,) * 70).looping and _run((7,) * 70, (1, 2, 3)).looping


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [
        ([], False),
        ([1], False),
        (list(range(100)), False),
        ([*range(50), *[1, 2, 3] * 4], False),  # four times is not more than four
        ([*range(50), *[1, 2, 3] * 4, 1], True),  # cut inside the fifth
        ([*[1, 2, 3] * 10, *range(50)], False),  # a loop that the answer left long ago
        ([*range(100, 200), *list(range(12)) * 5], True),
        (list(range(17)) * 8, False),  # a longer period
        (list(range(15)) * 8, True),
    ],
)
def test_looping_rule(tokens: list[int], looping: bool) -> None:
    assert is_looping(tokens) is looping


def test_the_end_of_turn_token_does_not_hide_a_loop() -> None:
    assert is_looping([*[1, 2, 3] * 10, 99], "stop") and not is_looping([*[1, 2, 3] * 10, 99], "length")


@given(
    st.lists(st.integers(0, 50), max_size=80),
    st.lists(st.integers(0, 9), min_size=1, max_size=15),
    st.integers(0, 14),
)
def test_any_short_period_that_fills_the_window_is_a_loop(start: list[int], period: list[int], cut: int) -> None:
    assert is_looping([*start, *period * (80 // len(period) + 1), *period[: cut % len(period)]])


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_mismatched_tokens_is_symmetric_and_bounded(left: list[int], right: list[int]) -> None:
    count = mismatched_tokens(left, right)
    assert count == mismatched_tokens(right, left)
    assert 0 <= count <= max(len(left), len(right))
    assert (count == 0) == (left == right)
    same = max(len(left), len(right)) - count
    assert left[:same] == right[:same]


@st.composite
def _cycles(draw: st.DrawFn, steps: int) -> CycleRecord:
    drafted = draw(st.integers(0, steps))
    accepted = draw(st.integers(0, drafted))
    emitted = draw(st.integers(1, accepted + 1))
    phases = {phase: draw(st.floats(0, 5)) for phase in PHASES if phase != "other"}
    request = RequestCycle(
        request_id="0",
        width=drafted + 1,
        num_prefill=0,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        truncated=emitted <= accepted,
        kv_tokens=1,
    )
    wall_ms = sum(phases.values()) + draw(st.floats(0.125, 5))
    return CycleRecord(
        index=0, wall_ms=wall_ms, phases_ms=phases, requests=(request,), outcomes={}, num_rows=drafted + 1
    )


@given(st.lists(_cycles(STEPS), min_size=1, max_size=20), st.lists(_cycles(0), min_size=1, max_size=20))
def test_invariants(eagle3_cycles: list[CycleRecord], plain_cycles: list[CycleRecord]) -> None:
    run = PromptRun(prompt_id="p", plain=_answer((1,), *plain_cycles), eagle3=_answer((1,), *eagle3_cycles))
    figures = summarise([run], STEPS)
    side, plain = figures.eagle3, figures.plain
    assert side is not None and side.speculation is not None
    assert side.num_cycles == side.speculation.drafted_cycles
    assert side.num_cycles + side.speculation.plain_cycles == len(eagle3_cycles)
    assert side.emitted_tokens <= side.accepted + len(eagle3_cycles)
    assert prompt_speedup(run) == pytest.approx(figures.speedup)
    if not side.num_cycles:
        assert side.cycle_ms is None and figures.break_even_tokens_per_cycle is None
        return
    for one in (side, plain):
        assert one.phases_ms is not None and list(one.phases_ms) == list(PHASES)
        assert sum(one.phases_ms.values()) == pytest.approx(one.cycle_ms)
    assert plain.tokens_per_cycle == 1.0
    assert plain.tokens_per_s == pytest.approx(1000 / plain.cycle_ms)
    assert side.tokens_per_cycle is not None and 1.0 <= side.tokens_per_cycle <= STEPS + 1
    if side.speculation.plain_cycles:
        return
    # Truncation only ever loses tokens, so the identity of speed-up and break-even is an upper bound.
    bound = side.tokens_per_cycle / figures.break_even_tokens_per_cycle
    assert figures.speedup <= bound * (1 + 1e-9)
    if not side.num_truncated_cycles:
        assert figures.speedup == pytest.approx(bound)


@given(st.lists(_cycles(STEPS), min_size=1, max_size=20))
def test_acceptance_by_position(cycles: list[CycleRecord]) -> None:
    side = summarise_side([_answer((1,), *cycles)], STEPS)
    proposed = [sum(c.requests[0].drafted > i for c in cycles) for i in range(STEPS)]
    shares = side.acceptance_per_position
    assert sum(share * n for share, n in zip(shares, proposed, strict=True) if n) == pytest.approx(side.accepted)
    assert [share is None for share in shares] == [n == 0 for n in proposed]
    for unconditional, conditional in zip(shares, side.conditional_acceptance_per_position, strict=True):
        assert conditional is None or unconditional is None or unconditional <= conditional <= 1


def test_answers_without_text_cannot_loop() -> None:
    """Random weights and forced acceptance give tokens that repeat as they will; their costs count all the same."""
    run = msgspec.structs.replace(_run((7,) * 70, (8,) * 70), textless=True)
    figures = summarise([run], STEPS)
    assert not run.looping and figures.num_looping == 0 and figures.plain.num_answers == 1
    assert run.mismatched_tokens == figures.mismatched_tokens == 70


def test_forced_acceptance_has_no_mismatches() -> None:
    run = msgspec.structs.replace(_run((7,) * 70, (8,) * 70), textless=True, forced=True)
    figures = summarise([run], STEPS, forced_tokens_per_cycle=2.8)
    assert run.mismatched_tokens is figures.mismatched_tokens is None
    assert figures.forced_tokens_per_cycle == 2.8 and figures.speedup is not None
