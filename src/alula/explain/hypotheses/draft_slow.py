"""A draft that is too slow: its forwards and its extend cost a large part of a plain step."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.quantities import Quantity

_HEAVY, _LIGHT = 0.4, 0.25  # of a plain step, all drafting of a cycle
_HEAVY_STEP = 0.25  # one draft step


class DraftTooSlow(Hypothesis):
    id = "draft_too_slow"
    title = "Drafting costs too much"
    predicts = "draft and extend together cost a large part of a plain step"
    refuted_by = "drafting under a quarter of a plain step"
    needs = ("draft_ms", "extend_ms", "plain_step_ms", "experiment:draft_alone")

    def judge(self, case: Case) -> Finding:
        sums = case.sums
        if sums.draft_ms is None and sums.extend_ms is None:
            return self.unknown("The draft's time is not known.", next_step=advise(case, "phase_times"))
        if sums.plain_ms is None:
            return self.unknown("The plain step is not known.", next_step=advise(case, "plain_rate"))
        parts = [one for one in (sums.draft_ms, sums.extend_ms) if one is not None]
        total = sum(one.value for one in parts)
        share = total / sums.plain_ms.value
        told = (
            " + ".join(one.words() for one in parts)
            + f": {shown(share)} of a plain step ({shown(sums.plain_ms.value)} ms)."
        )
        seen = cited(of_figures(*parts, sums.plain_ms))
        one_step = case.spec.number(Quantity.DRAFT_STEP_MS)
        heavy = share >= _HEAVY or (one_step is not None and one_step / sums.plain_ms.value >= _HEAVY_STEP)
        if heavy:
            floor = case.spec.number(Quantity.FLOOR_MS, phase="draft")
            removable = total - floor if floor is not None and floor < total else None
            return self.confirmed(
                told + (f" Its floor is {shown(floor)} ms." if floor is not None else ""),
                ms=total,
                part="draft",
                confidence=0.8,
                evidence=seen,
                fix="fewer drafts, a smaller draft or draft vocabulary, graphs for its forwards, one rank "
                "instead of many",
                next_step=advise(case, "draft_graph"),
                predicted_speedup=sums.speedup_without(removable),
            )
        if share <= _LIGHT:
            return self.refuted(told, evidence=seen)
        return self.suspected(told, evidence=seen, confidence=0.3, next_step=advise(case, "draft_graph"))
