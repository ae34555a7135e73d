"""k too large or too small for this acceptance."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited, of_figures
from alula.explain.sweep import SweepPoint
from alula.profile.quantities import Quantity

_WORKS = 0.15  # acceptance at position 0 under which a head is broken or wired wrongly
_WORTH_IT = 1.03  # another k must promise this much more to be named


class DraftLength(Hypothesis):
    id = "draft_length"
    title = "k does not suit this acceptance"
    predicts = "another draft length yields more tokens/s, measured or from acceptance by position and the costs"
    refuted_by = "the k in use is the best one measured or computed"
    needs = ("steps", "tokens_per_s", "acceptance", "draft_ms")

    def judge(self, case: Case) -> Finding:
        rated = [point for point in case.sweep if point.tokens_per_s]
        if len(rated) > 1:
            return self._measured(case, rated)
        if case.sums.by_position and case.sums.by_position[0] < _WORKS:
            return self.unknown(
                "The first draft is hardly ever accepted: the head is the matter, not how often it is asked.",
                evidence=cited(case.spec.all(Quantity.ACCEPTANCE, position=0)),
                next_step=advise(case, "acceptance"),
            )
        computed = _computed(case)
        if not computed or case.sums.steps is None:
            return self._last_position(case)
        best, used = max(computed, key=lambda k: computed[k]), case.sums.steps
        told = "Tokens per ms by k, from acceptance by position and phase times: " + ", ".join(
            f"{k}: {computed[k]:.3g}" for k in sorted(computed)
        )
        seen = cited(case.spec.all(Quantity.ACCEPTANCE), of_figures(case.sums.draft_ms, case.sums.cycle_ms))
        if best != used and computed[best] > _WORTH_IT * computed[used]:
            gain = case.sums.speedup.value * computed[best] / computed[used] if case.sums.speedup else None
            return self.confirmed(
                f"{told}. k = {best} promises {shown(computed[best] / computed[used])} times the tokens of k "
                f"= {used}.",
                tier=Tier.TUNING,
                evidence=seen,
                confidence=0.6,
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
        if len(positions) > 1 and positions[-1] < 0.1 and case.sums.pays is False:
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


def _computed(case: Case) -> dict[int, float]:
    """k -> tokens per ms for k up to the positions known, if a cycle is fixed + k x one draft step."""
    sums = case.sums
    if not sums.by_position or sums.cycle_ms is None or sums.draft_ms is None or not sums.steps:
        return {}
    each = sums.draft_ms.value / sums.steps
    fixed = sums.cycle_ms.value - sums.draft_ms.value
    if fixed <= 0 or len(sums.by_position) < sums.steps:
        return {}
    return {k: (1 + sum(sums.by_position[:k])) / (fixed + k * each) for k in range(1, len(sums.by_position) + 1)}
