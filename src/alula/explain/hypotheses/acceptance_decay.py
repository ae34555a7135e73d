"""Acceptance that falls with the context's length or over time."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.quantities import Quantity

_FALL = 0.85  # late over early, of the drafts accepted


class AcceptanceDecays(Hypothesis):
    id = "acceptance_decays"
    title = "Acceptance falls with context or over time"
    predicts = "fewer tokens per cycle late in the run, or behind longer contexts"
    refuted_by = "the same tokens per cycle in the first and the last third"
    needs = ("tokens_per_cycle", "kv_tokens")

    def judge(self, case: Case) -> Finding:
        found = case.spec.all(Quantity.TOKENS_PER_CYCLE)
        by_context = sorted(
            (one.scope.kv_tokens, one.number, one) for one in found if one.scope.kv_tokens and one.number
        )
        if len(by_context) >= 2:
            (short, early, first), (long, late, last) = by_context[0], by_context[-1]
            return self._judged(early, late, f"behind {short} and {long} tokens", cited(first, last))
        trend = next((one for one in found if one.early is not None and one.late is not None), None)
        if trend is None or trend.early is None or trend.late is None:
            return self.unknown("No series over time or context to judge by.")
        return self._judged(trend.early, trend.late, "in the first and the last third of the log", cited(trend))

    def _judged(self, early: float, late: float, where: str, evidence: tuple[object, ...]) -> Finding:
        told = f"{shown(early)} and {shown(late)} tokens per cycle {where}."
        if early > 1.1 and (late - 1) < _FALL * (early - 1):
            return self.confirmed(
                f"Acceptance falls: {told}",
                confidence=0.7,
                evidence=evidence,
                weight=0.6,
                fix="draft only while the context is short, or use a head trained for longer ones; if it "
                "falls over hours "
                "of traffic, look for a fault with reused prefixes",
                next_step="repeat the same prompt after a restart: a fall over time that a restart cures is a "
                "fault",
            )
        return self.refuted(f"Steady: {told}", evidence=evidence)
