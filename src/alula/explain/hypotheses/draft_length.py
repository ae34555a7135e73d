"""k too large or too small for this acceptance."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import FORCED_ACCEPTANCE, cited, of_figures
from alula.explain.sweep import SweepPoint
from alula.profile.quantities import Quantity

_WORTH_IT = 1.03  # another k must promise this much more to be named
_WORTH_COMPUTED = 1.06  # the same where it is computed, not measured
_NOTHING = 0.05  # of the cycles
_LARGE_GAIN = 1.1  # from here on the wrong k is a cost, not fine tuning


class DraftLength(Hypothesis):
    id = "draft_length"
    title = "k does not suit this acceptance"
    predicts = "another draft length yields more tokens/s, measured or from acceptance by position and the costs"
    refuted_by = "the k in use is the best one measured or computed"
    needs = ("steps", "tokens_per_s", "acceptance", "draft_ms")

    def judge(self, case: Case) -> Finding:
        forced = case.spec.all(Quantity.FLAG, name=FORCED_ACCEPTANCE)
        if forced:
            return self.unknown("Acceptance was forced, so no k is better than another.", evidence=forced)
        rated = [point for point in case.sweep if point.tokens_per_s]
        if len(rated) > 1:
            return self._measured(case, rated)
        if case.sums.by_position and case.sums.by_position[0] < _NOTHING:
            return self.unknown("Next to nothing is accepted: no number of drafts suits that.")
        costs = _costs(case)
        computed = {k: (1 + sum(case.sums.by_position[:k])) / cost for k, cost in costs.items()}
        if not computed or case.sums.steps is None:
            return self._last_position(case)
        best, used = max(computed, key=lambda k: computed[k]), case.sums.steps
        told = "Tokens per ms by k, from acceptance by position and phase times: " + ", ".join(
            f"{k}: {computed[k]:.3g}" for k in sorted(computed)
        )
        seen = cited(case.spec.all(Quantity.ACCEPTANCE), of_figures(case.sums.draft_ms, case.sums.cycle_ms))
        if best != used and computed[best] > _WORTH_COMPUTED * computed[used]:
            gain = case.sums.speedup.value * computed[best] / computed[used] if case.sums.speedup else None
            large = computed[best] > _LARGE_GAIN * computed[used] and _rows_known(case)
            return self.confirmed(
                f"{told}. k = {best} promises {shown(computed[best] / computed[used])} times the tokens of k "
                f"= {used}.",
                tier=Tier.COST if large else Tier.TUNING,
                ms=costs[used] - costs[best] if large else None,
                evidence=seen,
                confidence=0.8 if large else 0.6,
                weight=3.0 if large else 1.0,
                fix=advise(case, "steps", steps=best),
                predicted_speedup=gain,
            )
        return self.refuted(f"{told}. k = {used} is the best.", evidence=seen, confidence=0.6)

    def _measured(self, case: Case, rated: list[SweepPoint]) -> Finding:
        best = max(rated, key=lambda point: point.tokens_per_s or 0.0)
        curve = ", ".join(f"{point.name}: {shown(point.tokens_per_s or 0.0)}" for point in rated)
        told = f"Tokens/s by k: {curve}.{_odd(rated)}"
        seen = cited(*(point.evidence for point in rated))
        in_use = case.spec.number(Quantity.STEPS)  # of a table of draft lengths none is in use
        used = next((point for point in rated if point.steps == in_use), None)
        lost = best.speedup is not None and best.speedup < 1.0
        end = " Even the best loses against plain decoding." if lost else ""
        if used is not None and used.steps == best.steps:
            return self.refuted(f"{told} k = {best.steps}, in use, is the best measured.{end}", evidence=seen)
        if used is not None and (best.tokens_per_s or 0.0) <= _WORTH_IT * (used.tokens_per_s or 0.0):
            return self.refuted(f"{told} k = {used.steps}, in use, is as good as the best.{end}", evidence=seen)
        return self.confirmed(
            f"{told} The best depth by this curve is {best.name}.{end}",
            tier=Tier.TUNING,
            evidence=seen,
            confidence=0.8,
            weight=0.7,
            fix=advise(case, "steps", steps=best.steps),
            predicted_speedup=best.speedup,
        )

    def _last_position(self, case: Case) -> Finding:
        positions = case.sums.by_position
        if positions and len(positions) > 1 and positions[-1] < 0.1 and case.sums.pays is False:
            return self.suspected(
                f"The last draft is accepted in {100 * positions[-1]:.0f} % of the cycles: it hardly earns "
                f"its row.",
                tier=Tier.TUNING,
                evidence=cited(case.spec.all(Quantity.ACCEPTANCE)),
                confidence=0.35,
                weight=0.3,
                fix=advise(case, "steps", steps=max(1, sum(rate >= 0.1 for rate in positions))),
                next_step=advise(case, "phase_times"),
            )
        return self.unknown(
            "One draft length, without acceptance by position and phase times.",
            next_step=f"measure another: {advise(case, 'steps', steps='K')}",
        )


def _odd(rated: list[SweepPoint]) -> str:
    """Two shapes with the same steps and the same rows that differ clearly: noise, or another path."""
    for first in rated:
        for second in rated:
            same = first.steps == second.steps and first.width == second.width and first.width is not None
            if same and (first.tokens_per_s or 0.0) > 1.1 * (second.tokens_per_s or 0.0):
                return (
                    f" {first.name} and {second.name} have the same draft steps and verify rows and differ "
                    f"by more than "
                    "acceptance explains: noise, or another path (a graph) for one of them."
                )
    return ""


def _costs(case: Case) -> dict[int, float]:
    """k -> ms of a cycle, for k up to the k in use: what it is now less the draft steps and the rows of verify that
    it would not have. Rows are taken as free where no width sweep says what they cost."""
    sums = case.sums
    if not sums.by_position or sums.cycle_ms is None or sums.draft_ms is None or not sums.steps:
        return {}
    if len(sums.by_position) < sums.steps:
        return {}
    own = "alula" in case.engine  # there the first of k drafts is the extend's, so that k drafts take k - 1 steps
    each = sums.draft_ms.value / max(1, sums.steps - 1 if own else sums.steps)
    rows = _rows(case)
    costs = {}
    for k in range(1, sums.steps + 1):
        saved = (sums.steps - k) * each
        if sums.steps + 1 in rows and k + 1 in rows:
            saved += max(0.0, rows[sums.steps + 1] - rows[k + 1])
        costs[k] = sums.cycle_ms.value - saved
    return costs if all(cost > 0 for cost in costs.values()) else {}


def _rows(case: Case) -> dict[int, float]:
    """Width -> ms of a target forward, from a width sweep."""
    return {
        one.scope.width: one.number
        for one in case.both(Quantity.FORWARD_MS)
        if one.scope.width and one.number and one.scope.variant in (None, "graph")
    }


def _rows_known(case: Case) -> bool:
    return case.sums.steps is not None and case.sums.steps + 1 in _rows(case)
