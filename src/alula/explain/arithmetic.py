"""The arithmetic of speculation: cycle in plain steps, break-even, ceiling, what the rates imply.

Every result shows its inputs.

With t tokens per cycle, a plain step of p ms and a cycle of c ms, speculation is t * p / c times as fast: it pays where
t > c / p (the break-even), and can never pay where c / p > k + 1 (the ceiling). Rates over b requests together are
1000 * b / ms. Knows no engine; takes what `RunFacts` hold of the plain and of the speculative run.
"""

from __future__ import annotations

import msgspec

from alula.explain.facts import FAR_APART, RunFacts
from alula.explain.figures import Figure, derived, shown
from alula.explain.rates import Side, acceptance_by_position, read_side
from alula.profile.quantities import Quantity

_STEPS_APART = 1 / 3  # of the larger load: a step's time hardly changes within it, a rate does


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the numbers of a case. None is unknown.

    plain_ms: a plain step at the speculative run's load; a step at another load is none. loads: requests at once of the
    plain and of the speculative run, where they are too far apart to compare anything.
    other_speedup: by the cycle's cost, where the rates give a speed-up far from it: then one of the numbers is wrong.
    break_even: cycle in plain steps (tokens per cycle above which speculation pays); only a lower bound (`at_least`)
    where some phases of the cycle are not known. by_position: share of cycles that accepted the draft at 0, 1, ...
    """

    plain_ms: Figure | None = None
    cycle_ms: Figure | None = None
    known_cycle_ms: Figure | None = None  # the cycle, or the sum of the phases that are known
    verify_ms: Figure | None = None
    draft_ms: Figure | None = None
    extend_ms: Figure | None = None
    verify_steps: Figure | None = None
    tokens_per_cycle: Figure | None = None
    speedup: Figure | None = None
    break_even: Figure | None = None
    ceiling: Figure | None = None
    needed_cycle_ms: Figure | None = None
    other_speedup: Figure | None = None
    by_position: tuple[float, ...] = ()
    steps: int | None = None
    width: int | None = None  # rows a request in verify
    batch: float = 1.0
    loads: tuple[float, float] | None = None

    def figures(self) -> tuple[Figure, ...]:
        """All that is known, in the order of the fields."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(value for value in values if isinstance(value, Figure))

    @property
    def pays(self) -> bool | None:
        """Whether speculation is faster; None where the numbers do not say."""
        if self.speedup is not None and not self.speedup.at_least:
            other = self.other_speedup or self.speedup
            return self.speedup.value > 1.0 if (self.speedup.value > 1.0) is (other.value > 1.0) else None
        if self.break_even is None:
            return None
        if self.ceiling is not None and self.break_even.value > self.ceiling.value:
            return False
        tokens = self.tokens_per_cycle
        if tokens is not None and not tokens.at_least and tokens.value < self.break_even.value:
            return False
        return None

    def speedup_without(self, ms: float | None, plain_ms: float = 0.0) -> float | None:
        """The speed-up if a cycle lost `ms` and a plain step `plain_ms`; None where it cannot be said."""
        if ms is None or self.plain_ms is None or self.cycle_ms is None or self.tokens_per_cycle is None:
            return None
        cycle, plain = self.cycle_ms.value - ms, self.plain_ms.value - plain_ms
        return self.tokens_per_cycle.value * plain / cycle if cycle > 0 and plain > 0 else None


def work_out(plain: RunFacts, spec: RunFacts) -> Arithmetic:
    """Everything that the two runs' numbers imply."""
    first, second = read_side(plain, spec, speculative=False), read_side(spec, plain, speculative=True)
    if first.batch != second.batch and not (first.batch_known and second.batch_known):
        known = first if first.batch_known else second
        first, second = first.at_batch(known.batch), second.at_batch(known.batch)
    apart = not first.comparable(second, _STEPS_APART)
    speedup = _speedup(first, second)
    plain_ms = None if apart else first.step_ms()
    phases = _phases(second)
    known_cycle = _known_cycle(second, plain_ms, speedup, phases)
    cycle = known_cycle if known_cycle is not None and not known_cycle.at_least else None
    tokens = second.tokens_per_cycle or _implied_tokens(second, plain_ms, speedup, known_cycle)
    by_cycle = _speedup_of_cycle(plain_ms, cycle, tokens)
    other = by_cycle if _far_apart(speedup, by_cycle) else None
    speedup = speedup or by_cycle
    opposed = other is not None and speedup is not None and (other.value > 1.0) is not (speedup.value > 1.0)
    break_even = None if opposed else _break_even(plain_ms, known_cycle, speedup, second.tokens_per_cycle)
    steps, width = second.steps, second.width
    return Arithmetic(
        plain_ms=plain_ms,
        cycle_ms=cycle,
        known_cycle_ms=known_cycle,
        verify_ms=phases.get("verify"),
        draft_ms=phases.get("draft"),
        extend_ms=phases.get("extend"),
        verify_steps=_in_steps("verify in plain steps", phases.get("verify"), plain_ms),
        tokens_per_cycle=tokens,
        speedup=speedup,
        break_even=break_even,
        ceiling=_ceiling(steps, second),
        other_speedup=other,
        needed_cycle_ms=_needed_cycle(tokens, plain_ms),
        by_position=acceptance_by_position(spec),
        steps=steps,
        width=width,
        batch=second.batch if second.batch_known else first.batch,
        loads=(first.batch, second.batch) if apart else None,
    )


def _phases(side: Side) -> dict[str, Figure]:
    """The phases of a cycle that are known, in ms."""
    names = {"verify": Quantity.VERIFY_MS, "draft": Quantity.DRAFT_MS, "extend": Quantity.EXTEND_MS}
    found = {name: side.figure(f"{name} time", quantity, "ms") for name, quantity in names.items()}
    one = side.figure("one draft step", Quantity.DRAFT_STEP_MS, "ms")
    if found["draft"] is None and one is not None and side.steps:
        text = f"{side.steps} draft steps x {shown(one.value)} ms"
        found["draft"] = derived("draft time", one.value * side.steps, "ms", text, one)
    return {name: figure for name, figure in found.items() if figure is not None}


def _speedup(plain: Side, spec: Side) -> Figure | None:
    """From two rates, or two times per token, at the same load."""
    if plain.rate is not None and spec.rate is not None and plain.comparable(spec):
        text = f"{shown(spec.rate.value)} / {shown(plain.rate.value)} tokens/s"
        return derived("speed-up", spec.rate.value / plain.rate.value, "x", text, spec.rate, plain.rate)
    if plain.token_ms is not None and spec.token_ms is not None and plain.comparable(spec):
        text = f"{shown(plain.token_ms.value)} / {shown(spec.token_ms.value)} ms per token"
        return derived(
            "speed-up", plain.token_ms.value / spec.token_ms.value, "x", text, plain.token_ms, spec.token_ms
        )
    return None


def _speedup_of_cycle(plain_ms: Figure | None, cycle: Figure | None, tokens: Figure | None) -> Figure | None:
    """From what a cycle costs and yields, where both are known and not bounds."""
    if plain_ms is None or cycle is None or tokens is None or tokens.at_least:
        return None
    text = f"{shown(tokens.value)} tokens per cycle x {shown(plain_ms.value)} ms / {shown(cycle.value)} ms"
    return derived("speed-up", tokens.value * plain_ms.value / cycle.value, "x", text, tokens, plain_ms, cycle)


def _far_apart(first: Figure | None, second: Figure | None) -> bool:
    """Whether two ways to one number disagree; what is approximate to begin with may."""
    if first is None or second is None or min(first.confidence, second.confidence) < 1.0:
        return False
    return max(first.value, second.value) > FAR_APART * min(first.value, second.value)


def _known_cycle(
    spec: Side, plain_ms: Figure | None, speedup: Figure | None, phases: dict[str, Figure]
) -> Figure | None:
    """The cycle's time: measured, from a rate, from the speed-up; else the sum of known phases as a lower bound."""
    if (own := spec.step_ms()) is not None:
        return own
    tokens = spec.tokens_per_cycle
    if tokens is not None and speedup is not None and plain_ms is not None:
        text = f"{shown(tokens.value)} tokens per cycle x {shown(plain_ms.value)} ms / {shown(speedup.value)}"
        return derived(
            "cycle", tokens.value * plain_ms.value / speedup.value, "ms", text, tokens, plain_ms, speedup
        )
    if "verify" not in phases:
        return None
    text = " + ".join(f"{name} {shown(figure.value)} ms" for name, figure in phases.items())
    total = sum(figure.value for figure in phases.values())
    return derived("cycle", total, "ms", text, *phases.values(), at_least=True)


def _implied_tokens(
    spec: Side, plain_ms: Figure | None, speedup: Figure | None, cycle: Figure | None
) -> Figure | None:
    """Tokens per cycle that the rate and the cycle's time imply; a lower bound where the cycle is one."""
    if cycle is None:
        return None
    if spec.rate is not None:
        value = spec.rate.value * cycle.value / (1000.0 * spec.batch)
        text = f"{shown(spec.rate.value)} tokens/s x {shown(cycle.value)} ms"
        text += f" / {shown(spec.batch)} requests" if spec.batch != 1 else ""
        return derived("tokens per cycle", value, "", text, spec.rate, cycle)
    if speedup is not None and plain_ms is not None:
        text = f"{shown(speedup.value)} x {shown(cycle.value)} ms / {shown(plain_ms.value)} ms"
        return derived(
            "tokens per cycle", speedup.value * cycle.value / plain_ms.value, "", text, speedup, cycle, plain_ms
        )
    return None


def _break_even(
    plain_ms: Figure | None, cycle: Figure | None, speedup: Figure | None, tokens: Figure | None
) -> Figure | None:
    name = "break-even tokens per cycle"
    if tokens is not None and speedup is not None:
        text = f"{shown(tokens.value)} tokens per cycle / {shown(speedup.value)}"
        return derived(name, tokens.value / speedup.value, "", text, tokens, speedup)
    return _in_steps(name, cycle, plain_ms)


def _in_steps(name: str, time: Figure | None, plain_ms: Figure | None) -> Figure | None:
    if time is None or plain_ms is None:
        return None
    text = f"{shown(time.value)} ms / {shown(plain_ms.value)} ms"
    return derived(name, time.value / plain_ms.value, "", text, time, plain_ms)


def _ceiling(steps: int | None, spec: Side) -> Figure | None:
    if steps is None:
        return None
    cited = spec.steps_evidence
    return Figure(
        name="ceiling of tokens per cycle",
        value=float(steps + 1),
        unit="",
        formula=f"{steps} drafts + 1",
        evidence=(cited,) if cited else (),
    )


def _needed_cycle(tokens: Figure | None, plain_ms: Figure | None) -> Figure | None:
    if tokens is None or plain_ms is None or tokens.at_least:
        return None
    text = f"{shown(tokens.value)} tokens per cycle x {shown(plain_ms.value)} ms"
    return derived("cycle that would break even", tokens.value * plain_ms.value, "ms", text, tokens, plain_ms)
