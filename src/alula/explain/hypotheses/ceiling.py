"""Break-even above k + 1: no draft, however good, could make this configuration pay."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import of_figures


class BreakEvenAboveCeiling(Hypothesis):
    id = "break_even_above_ceiling"
    title = "Break-even lies above what the drafts could ever yield"
    predicts = "a cycle costs more plain steps than k + 1"
    refuted_by = "a cycle of fewer plain steps than k + 1"
    needs = ("plain_step_ms", "cycle_ms", "steps")

    def judge(self, case: Case) -> Finding:
        sums = case.sums
        if sums.break_even is None or sums.ceiling is None:
            missing = [
                name
                for name, known in (("the cost of a cycle in plain steps", sums.break_even), ("k", sums.ceiling))
                if known is None
            ]
            topic = "plain_rate" if sums.break_even is None else "steps"
            return self.unknown(f"Not known: {' and '.join(missing)}.", next_step=advise(case, topic, steps="K"))
        cited = of_figures(sums.break_even, sums.ceiling)
        told = f"{sums.break_even.words()}; {sums.ceiling.words()}."
        if sums.break_even.value > sums.ceiling.value:
            return self.confirmed(
                f"No draft could make this pay: {told}{_others(case)} Stop tuning the draft; the cost lies "
                f"in the cycle.",
                tier=Tier.CEILING,
                confidence=0.95 * sums.break_even.confidence,
                evidence=cited,
                fix=f"bring the cycle under {shown(sums.ceiling.value)} plain steps first (the costs below)",
                next_step=advise(case, "phase_times"),
            )
        if sums.break_even.at_least:
            return self.unknown(
                f"So far below the ceiling, but only part of the cycle is known: {told}", evidence=cited
            )
        return self.refuted(
            f"Below the ceiling: {told}", evidence=cited, confidence=0.9 * sums.break_even.confidence
        )


def _others(case: Case) -> str:
    """The other draft lengths that were measured: break-even against their ceiling."""
    told = [
        f"k = {point.name}: {shown(point.tokens_per_cycle / point.speedup)} against {point.steps + 1}"
        for point in case.sweep
        if point.tokens_per_cycle and point.speedup and point.steps != case.sums.steps and not point.variant
    ]
    return f" Other lengths: {', '.join(told[:6])}." if told else ""
