"""Several draft lengths measured: what each costs and yields, and the straight line through their cycles.

A line through cycle times over k separates what a cycle pays once (host work, metadata, the verify itself) from what
each further draft costs. Two points give a line without a residual: that is said, not hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.explain.facts import RunFacts
from alula.explain.rates import best, read_side
from alula.profile.evidence import Evidence, Scope
from alula.profile.quantities import Quantity


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One draft length (k = steps), or one tree of it, as measured. None is unknown.

    variant: how the row was called where k alone does not name it ("3,1,4"); width: rows a request, where told.
    """

    steps: int
    tokens_per_cycle: float | None
    tokens_per_s: float | None
    cycle_ms: float | None
    speedup: float | None
    evidence: tuple[Evidence, ...] = ()
    variant: str | None = None
    width: int | None = None

    @property
    def name(self) -> str:
        return self.variant or str(self.steps)


class CycleLine(msgspec.Struct, frozen=True, kw_only=True):
    """cycle(k) = once_ms + per_draft_ms * k. misfit_ms: the largest distance of a point from the line."""

    once_ms: float
    per_draft_ms: float
    misfit_ms: float
    num_points: int


def sweep_of(plain: RunFacts, runs: Sequence[RunFacts]) -> tuple[SweepPoint, ...]:
    """The points found, by k and variant; of the same the first. Fewer than two are no sweep and give ()."""
    plain_side = read_side(plain, runs[0] if runs else RunFacts(), speculative=False)
    plain_rate = plain_side.rate.value if plain_side.rate else None
    points: dict[tuple[int, str], SweepPoint] = {}
    for run in runs:
        scoped = {(one.scope.steps, one.scope.variant) for one in run if one.scope.steps}
        for steps, variant in sorted(scoped, key=lambda key: (key[0] or 0, key[1] or "")):
            part = RunFacts(one for one in run if (one.scope.steps, one.scope.variant) == (steps, variant))
            point = _point(steps or 0, part, plain_rate)
            points.setdefault((point.steps, variant or ""), msgspec.structs.replace(point, variant=variant))
        own = run.number(Quantity.STEPS)
        if not scoped and own and own >= 1:
            points.setdefault((int(own), ""), _point(int(own), run, plain_rate))
    found = [point for _, point in sorted(points.items()) if point.cycle_ms or point.tokens_per_s]
    return tuple(found) if len(found) > 1 else ()


def _point(steps: int, run: RunFacts, plain_tokens_per_s: float | None) -> SweepPoint:
    side = read_side(run, RunFacts(), speculative=True)
    rate = best(run, Quantity.SPEC_TOKENS_PER_S) or best(run, Quantity.TOKENS_PER_S)
    tokens_per_s = rate.number if rate else None
    cycle = side.step_ms()
    tokens = side.tokens_per_cycle
    cited = [*(tokens.evidence if tokens else ()), *((rate,) if rate else ()), *(cycle.evidence if cycle else ())]
    faster = tokens_per_s / plain_tokens_per_s if tokens_per_s and plain_tokens_per_s else None
    return SweepPoint(
        steps=steps,
        tokens_per_cycle=tokens.value if tokens else None,
        tokens_per_s=tokens_per_s,
        cycle_ms=cycle.value if cycle else None,
        speedup=faster,
        evidence=tuple(dict.fromkeys(cited)),
        width=next((one.scope.width for one in cited if one.scope.width), None),
    )


def focused(spec: RunFacts, points: Sequence[SweepPoint]) -> RunFacts:
    """The run to do arithmetic with: of a run that is nothing but a sweep, its fastest point; else the run itself.

    A point's values lose the scope that told them from the others.
    """
    scoped = [point for point in points if any(one.scope.steps == point.steps for one in point.evidence)]
    if not scoped or spec.all(Quantity.STEPS):
        return spec
    best_point = max(scoped, key=lambda point: (point.tokens_per_s or 0.0, -(point.cycle_ms or 0.0)))
    view = RunFacts(label=spec.label, name=spec.name)
    for one in spec:
        if one.scope.steps is None:
            view.add(one)
        elif (one.scope.steps, one.scope.variant) == (best_point.steps, best_point.variant):
            view.add(msgspec.structs.replace(one, scope=_without_point(one.scope)))
    for quantity, value in ((Quantity.STEPS, best_point.steps), (Quantity.NUM_DRAFT_TOKENS, best_point.width)):
        if value is not None:
            view.add(_told(best_point.evidence[0], quantity, value))
    return view


def _without_point(scope: Scope) -> Scope:
    return msgspec.structs.replace(scope, steps=None, variant=None, width=None)


def _told(cited: Evidence, quantity: Quantity, value: int) -> Evidence:
    """A fact that stands in the scope of evidence, as evidence of its own at the same place."""
    return Evidence(
        quantity=quantity, value=value, source=cited.source, line=cited.line, text=cited.text, run=cited.run
    )


def fit_line(points: Sequence[SweepPoint]) -> CycleLine | None:
    """Least squares over the points whose cycle is known; None with fewer than two, or for trees."""
    if any(point.variant for point in points):
        return None
    known = [(point.steps, point.cycle_ms) for point in points if point.cycle_ms is not None]
    if len({steps for steps, _ in known}) < 2:
        return None
    mean_k = sum(steps for steps, _ in known) / len(known)
    mean_ms = sum(ms for _, ms in known) / len(known)
    spread = sum((steps - mean_k) ** 2 for steps, _ in known)
    slope = sum((steps - mean_k) * (ms - mean_ms) for steps, ms in known) / spread
    once = mean_ms - slope * mean_k
    misfit = max(abs(ms - once - slope * steps) for steps, ms in known)
    return CycleLine(once_ms=once, per_draft_ms=slope, misfit_ms=misfit, num_points=len(known))
