"""Acceptance below break-even: the head works, but its tokens per cycle do not pay for what a cycle costs."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import of_figures


class AcceptanceBelowBreakEven(Hypothesis):
    id = "acceptance_below_break_even"
    title = "Fewer tokens per cycle than a cycle costs in plain steps"
    predicts = "tokens per cycle under the break-even"
    refuted_by = "tokens per cycle over the break-even"
    needs = ("tokens_per_cycle", "plain_step_ms", "cycle_ms")

    def judge(self, case: Case) -> Finding:
        sums = case.sums
        tokens, needed = sums.tokens_per_cycle, sums.break_even
        if tokens is None or needed is None:
            topic = "acceptance" if tokens is None else "plain_rate"
            return self.unknown(
                "Tokens per cycle or the cost of a cycle is not known.", next_step=advise(case, topic)
            )
        cited = of_figures(tokens, needed, sums.speedup)
        told = f"{tokens.words()}; {needed.words()}."
        if sums.pays:
            return self.refuted(f"Above break-even: {told}", evidence=cited, confidence=0.9 * needed.confidence)
        bounds = tokens.at_least or needed.at_least
        if sums.pays is None:
            return self.unknown(
                f"Bounds do not decide: {told}", evidence=cited, next_step=advise(case, "phase_times")
            )
        ways = ""
        if sums.needed_cycle_ms is not None:
            ways = f" With these tokens the cycle would have to take under {shown(sums.needed_cycle_ms.value)} ms."
        sure = 0.75 if bounds else 0.9
        return self.confirmed(
            f"Break-even is not reached: {told}{ways}{_bands(sums.by_position)}",
            tier=Tier.TUNING if bounds else Tier.COST,
            weight=0.5,
            confidence=sure * min(needed.confidence, tokens.confidence),
            evidence=cited,
            fix="a cheaper cycle (the costs named here) or a head that is accepted more often",
            next_step=advise(case, "acceptance") if tokens.at_least else None,
        )


def _bands(by_position: tuple[float, ...]) -> str:
    """What the first position's acceptance is usually a sign of. Bands from published heads, not laws."""
    if not by_position:
        return ""
    first = by_position[0]
    if first >= 0.6:
        word = "in the band of heads that work (over 60 %)"
    elif first >= 0.3:
        word = "in the band of weak heads or foreign text (30 to 60 %)"
    else:
        word = "under the band of weak heads (30 %)"
    return f" Acceptance at position 0 is {100 * first:.1f} %, {word}; these are bands, not limits."
