"""Rows that should be nearly free and are not: the cost of a target forward by its width, in a dense model."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, looks_sparse
from alula.profile.quantities import Quantity

_STEEP, _FLAT = 1.3, 1.15
_STEEP_ROW = 0.1  # of a row's time, what each further row must cost


class VerifyRowsCost(Hypothesis):
    id = "verify_rows_cost"
    title = "A target forward of a few rows costs much more than one of a single row"
    predicts = "time that rises with width from 2 rows on, everything else equal"
    refuted_by = "a flat curve up to k + 1 rows"
    needs = ("forward_ms", "experiment:width_sweep")

    def judge(self, case: Case) -> Finding:
        found = {
            one.scope.width: one
            for one in case.both(Quantity.FORWARD_MS)
            if one.scope.width and one.number and one.scope.variant in (None, "graph")
        }
        if 1 not in found or len(found) < 2:
            return self.unknown(
                "No forwards of several widths under equal conditions.", next_step=advise(case, "expert_rows")
            )
        if looks_sparse(case):
            return self.unknown("A mixture of experts: see the experts that its rows touch.")
        one = found[1].number or 1.0
        wanted = case.sums.width or 4
        width = min((width for width in found if width > 1), key=lambda width: abs(width - wanted))
        factor = (found[width].number or one) / one
        told = (
            f"{width} rows cost {shown(factor)} times one row ({shown(found[width].number or 0)} against "
            f"{shown(one)} ms)."
        )
        seen = cited(tuple(found[width] for width in sorted(found)))
        if factor >= _STEEP and factor - 1 >= _STEEP_ROW * (width - 1):
            return self.confirmed(
                told,
                ms=(found[width].number or one) - one,
                part="verify",
                evidence=seen,
                confidence=0.75,
                fix="kernels that share the weights between rows (small-batch matrix products, decode-shaped "
                "attention), or a "
                "smaller k",
                next_step=advise(case, "attention"),
            )
        if factor <= max(_FLAT, 1 + 0.5 * _STEEP_ROW * (width - 1)):
            return self.refuted(told, evidence=seen)
        return self.suspected(told, evidence=seen, confidence=0.3, next_step=advise(case, "attention"))
