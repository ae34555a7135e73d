"""What a cycle costs once and what each further draft costs, from two or more draft lengths."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.explain.sweep import fit_line

_HEAVY = 0.5  # of a plain step


class FixedOrPerDraft(Hypothesis):
    id = "fixed_or_per_draft_cost"
    title = "What a cycle costs once, and what each further draft costs"
    predicts = "cycle times that lie on a line over k, with a large constant or a large slope"
    refuted_by = "a constant near a plain step and a slope far under one"
    needs = ("steps", "cycle_ms", "experiment:width_sweep")

    def judge(self, case: Case) -> Finding:
        line, plain = fit_line(case.sweep), case.sums.plain_ms
        if line is None:
            return self.unknown(
                "Fewer than two draft lengths were measured.", next_step=advise(case, "steps", steps="another K")
            )
        seen = cited(*(point.evidence for point in case.sweep))
        told = (
            f"cycle(k) = {shown(line.once_ms)} + {shown(line.per_draft_ms)} x k ms over {line.num_points} "
            f"draft lengths"
            f" (misfit up to {shown(line.misfit_ms)} "
            f"ms{'; two points always fit' if line.num_points == 2 else ''})."
        )
        if plain is None:
            return self.suspected(
                f"{told} The plain step is not known.", evidence=seen, next_step=advise(case, "plain_rate")
            )
        once = line.once_ms - plain.value
        heavy_once, heavy_each = once > _HEAVY * plain.value, line.per_draft_ms > _HEAVY * plain.value
        told = (
            f"{told} Beyond a plain step of {shown(plain.value)} ms a cycle pays {shown(once)} ms once and "
            f"{shown(line.per_draft_ms)} ms for each draft."
        )
        if not (heavy_once or heavy_each) or line.per_draft_ms < 0:
            return self.refuted(told, evidence=seen, confidence=0.6)
        return self.confirmed(
            f"{told}{_points_to(heavy_once, heavy_each)}",
            evidence=seen,
            confidence=0.6 if line.num_points == 2 else 0.75,
            weight=1.6,
            fix="cut the larger of the two first",
            next_step=advise(case, "phase_times"),
        )


def _points_to(heavy_once: bool, heavy_each: bool) -> str:
    text = " The part paid once points to the host, metadata or a lost graph." if heavy_once else ""
    if heavy_each:
        text += (
            " The part per draft points to the draft's forward (eager, too large, tensor-parallel) or to "
            "verify's rows "
            "(expert union)."
        )
    return text
