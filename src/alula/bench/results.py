"""From cycle records to figures: pure functions, defined in docs/metrics.md.

Sees token ids and records only; does not run an engine, read a clock, or print.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from alula.core.records import PHASES, PLAIN, CycleRecord, PhaseOutcome

LOOP_WINDOW_TOKENS = 64
LOOP_MAX_PERIOD = 16
LOOP_MAX_REPEATS = 4


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one prompt, with every cycle that it took, prefill included."""

    token_ids: tuple[int, ...]
    finish_reason: str
    cycles: tuple[CycleRecord, ...]


class PromptRun(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one prompt. `eagle3` is None where there was no draft.

    textless: the answers are no text (random weights, forced acceptance), so none of them counts as looping. forced:
    acceptance was, so the two answers differ by intent.
    """

    prompt_id: str
    category: str | None = None
    plain: Answer
    eagle3: Answer | None = None
    textless: bool = False
    forced: bool = False

    @property
    def looping(self) -> bool:
        if self.textless:
            return False
        answers = (self.plain, self.eagle3)
        return any(is_looping(answer.token_ids, answer.finish_reason) for answer in answers if answer is not None)

    @property
    def mismatched_tokens(self) -> int | None:
        if self.eagle3 is None or self.forced:
            return None
        return mismatched_tokens(self.plain.token_ids, self.eagle3.token_ids)


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """How many decode cycles drafted, how many did not, and why not: a count for each reason."""

    drafted_cycles: int
    plain_cycles: int
    plain_share: float | None
    plain_because: dict[str, int]


class PhaseRuns(msgspec.Struct, frozen=True, kw_only=True):
    """How a phase ran over decode cycles: as the replay of a graph, or eagerly, with a count for each reason."""

    cycles: int
    replayed: int
    replayed_share: float
    eager_because: dict[str, int]


class SideFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one side over its decode cycles; of a side that drafts, over those that did. Every mean is None where
    there was no such cycle.

    Tokens, tokens per second and outcomes (by phase; `accept` and `catch_up` are there in the cycles that had them) are
    over all decode cycles. speculation: None where the side is not to draft.
    """

    num_answers: int
    num_cycles: int
    num_truncated_cycles: int
    drafted: int
    accepted: int
    emitted_tokens: int
    tokens_per_s: float | None
    cycle_ms: float | None
    cycle_ms_median: float | None
    tokens_per_cycle: float | None
    acceptance_per_position: tuple[float | None, ...]
    conditional_acceptance_per_position: tuple[float | None, ...]
    phases_ms: dict[str, float] | None
    prefill_ms: float | None  # mean time of an answer before its first decode cycle
    speculation: Speculation | None = None
    outcomes: dict[str, PhaseRuns] = {}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt by prompt, EAGLE-3 tokens/s over plain tokens/s."""

    median: float
    lowest: float
    highest: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides and what follows from them. Absent values are None, never invented.

    forced_tokens_per_cycle: what acceptance was forced to; then the speed-up is one of costs, not of a head.
    """

    num_prompts: int
    num_looping: int
    plain: SideFigures
    eagle3: SideFigures | None
    speedup: float | None
    speedup_spread: Spread | None
    break_even_tokens_per_cycle: float | None
    ceiling_tokens_per_cycle: int | None
    mismatched_tokens: int | None
    verify_over_plain_step: float | None
    forced_tokens_per_cycle: float | None = None


def is_looping(token_ids: Sequence[int], finish_reason: str = "length") -> bool:
    """Whether the answer ends in a loop: a period of at most 16 tokens, more than 4 times, in its last 64 tokens.

    The loop may be cut anywhere inside its period. The token that ended an answer (end of turn) is not part of it.
    """
    body = token_ids[:-1] if finish_reason == "stop" else token_ids
    return any(_ends_in_loop(tokens) for tokens in (body, token_ids))


def _ends_in_loop(token_ids: Sequence[int]) -> bool:
    window = token_ids[-LOOP_WINDOW_TOKENS:]
    for period in range(1, LOOP_MAX_PERIOD + 1):
        length = period  # of the stretch at the end that repeats with this period
        while length < len(window) and window[-length - 1] == window[-length - 1 + period]:
            length += 1
        if length > LOOP_MAX_REPEATS * period:
            return True
    return False


def mismatched_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens from the first difference on, counted in the longer answer; 0 for equal answers."""
    same = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        same += 1
    return max(len(left), len(right)) - same


def decode_cycles(cycles: Iterable[CycleRecord]) -> list[CycleRecord]:
    """The cycles that only decoded: no row of them fed a known token (prompt, or a resume after preemption)."""
    return [cycle for cycle in cycles if cycle.requests and not any(r.num_prefill for r in cycle.requests)]


def summarise_side(answers: Sequence[Answer], steps: int) -> SideFigures:
    """Figures of one side; `steps` is how many draft positions to report (0 for plain decoding)."""
    every = [cycle for answer in answers for cycle in decode_cycles(answer.cycles)]
    cycles = [cycle for cycle in every if cycle.drafted] if steps else every
    rows = [request for cycle in cycles for request in cycle.requests]
    # What a cycle costs is not what it costs after plain ones, when the draft has their features to read first.
    steady = [cycle for cycle in cycles if not cycle.num_caught_up] or cycles
    wall_ms = sum(cycle.wall_ms for cycle in every)
    emitted = sum(row.emitted for cycle in every for row in cycle.requests)
    accepted = sum(row.accepted for row in rows)
    unconditional, conditional = _acceptance([(row.drafted, row.accepted) for row in rows], steps)
    prefill_ms = sum(cycle.wall_ms for answer in answers for cycle in answer.cycles) - wall_ms
    return SideFigures(
        num_answers=len(answers),
        num_cycles=len(cycles),
        num_truncated_cycles=sum(row.truncated for row in rows),
        drafted=sum(row.drafted for row in rows),
        accepted=accepted,
        emitted_tokens=emitted,
        tokens_per_s=_over(1000.0 * emitted, wall_ms),
        cycle_ms=statistics.fmean(cycle.wall_ms for cycle in steady) if steady else None,
        cycle_ms_median=statistics.median(cycle.wall_ms for cycle in steady) if steady else None,
        tokens_per_cycle=_over(accepted + len(rows), len(rows)),
        acceptance_per_position=unconditional,
        conditional_acceptance_per_position=conditional,
        phases_ms=_mean_phases(steady) if steady else None,
        prefill_ms=_over(prefill_ms, len(answers)),
        speculation=count_speculation(every) if steps else None,
        outcomes=count_outcomes(every),
    )


def count_outcomes(cycles: Iterable[CycleRecord]) -> dict[str, PhaseRuns]:
    """Counts by phase, over decode cycles, how its forwards ran."""
    every: dict[str, list[PhaseOutcome]] = {}
    for cycle in decode_cycles(cycles):
        for phase, outcome in cycle.outcomes.items():
            every.setdefault(phase, []).append(outcome)
    counted = {}
    for phase in sorted(every, key=lambda name: (*PHASES, name).index(name)):
        eager = Counter(outcome.reason or "not said" for outcome in every[phase] if not outcome.replayed)
        replayed = len(every[phase]) - eager.total()
        counted[phase] = PhaseRuns(
            cycles=len(every[phase]),
            replayed=replayed,
            replayed_share=replayed / len(every[phase]),
            eager_because=dict(eager.most_common()),
        )
    return counted


def count_speculation(cycles: Iterable[CycleRecord]) -> Speculation:
    """Counts decode cycles by what was decided for them."""
    decoding = decode_cycles(cycles)
    plain = Counter(_why_plain(cycle) for cycle in decoding if not cycle.drafted)
    return Speculation(
        drafted_cycles=len(decoding) - plain.total(),
        plain_cycles=plain.total(),
        plain_share=_over(plain.total(), len(decoding)),
        plain_because=dict(plain.most_common()),
    )


def _why_plain(cycle: CycleRecord) -> str:
    """The reason that the record gives, without its figures."""
    if cycle.speculation is None:  # no request of it could have drafted
        return "no drafts asked for"
    reason = cycle.speculation.removeprefix(PLAIN).removeprefix(": ").partition(" (")[0]
    return reason or "not said"


def summarise(runs: Sequence[PromptRun], steps: int, forced_tokens_per_cycle: float | None = None) -> Figures:
    """Figures of a whole run. Looping prompts count in `mismatched_tokens` and nowhere else."""
    kept = [run for run in runs if not run.looping]
    plain = summarise_side([run.plain for run in kept], 0)
    with_draft = [run.eagle3 for run in kept if run.eagle3 is not None]
    drafted = any(run.eagle3 is not None for run in runs)
    eagle3 = summarise_side(with_draft, steps) if drafted else None
    return Figures(
        num_prompts=len(runs),
        num_looping=len(runs) - len(kept),
        plain=plain,
        eagle3=eagle3,
        speedup=_over(eagle3.tokens_per_s, plain.tokens_per_s) if eagle3 else None,
        speedup_spread=_spread([ratio for run in kept if (ratio := prompt_speedup(run)) is not None]),
        break_even_tokens_per_cycle=_over(eagle3.cycle_ms, plain.cycle_ms) if eagle3 else None,
        ceiling_tokens_per_cycle=steps + 1 if eagle3 else None,
        mismatched_tokens=_sum_known([run.mismatched_tokens for run in runs]) if eagle3 else None,
        verify_over_plain_step=_over(_verify_ms(eagle3), _verify_ms(plain)) if eagle3 else None,
        forced_tokens_per_cycle=forced_tokens_per_cycle,
    )


def prompt_speedup(run: PromptRun) -> float | None:
    """EAGLE-3 tokens/s over plain tokens/s of one prompt."""
    if run.eagle3 is None:
        return None
    return _over(summarise_side([run.eagle3], 0).tokens_per_s, summarise_side([run.plain], 0).tokens_per_s)


def _acceptance(
    rows: Sequence[tuple[int, int]], steps: int
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """(P(position accepted | proposed), P(position accepted | proposed and all before it accepted))."""
    proposed = [sum(drafted > i for drafted, _ in rows) for i in range(steps)]
    accepted = [sum(taken > i for _, taken in rows) for i in range(steps)]
    reached = [sum(drafted > i and taken >= i for drafted, taken in rows) for i in range(steps)]
    return (
        tuple(_over(hit, all_) for hit, all_ in zip(accepted, proposed, strict=True)),
        tuple(_over(hit, all_) for hit, all_ in zip(accepted, reached, strict=True)),
    )


def _mean_phases(cycles: Sequence[CycleRecord]) -> dict[str, float]:
    """Means over cycles; `other` is what the named phases leave of the wall time, so the parts add up."""
    named = {
        phase: sum(cycle.phases_ms.get(phase, 0.0) for cycle in cycles) / len(cycles)
        for phase in PHASES
        if phase != "other"
    }
    wall_ms = sum(cycle.wall_ms for cycle in cycles) / len(cycles)
    return {**named, "other": wall_ms - sum(named.values())}


def _verify_ms(side: SideFigures) -> float | None:
    return side.phases_ms["verify"] if side.phases_ms else None


def _spread(ratios: Sequence[float]) -> Spread | None:
    if not ratios:
        return None
    return Spread(median=statistics.median(ratios), lowest=min(ratios), highest=max(ratios))


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """None where there were counts and none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known or not counts else None


def _over(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or not denominator:
        return None
    return numerator / denominator
