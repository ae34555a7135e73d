"""A mixture of experts reads more experts for more rows: the union grows with each row of verify."""

from __future__ import annotations

import msgspec

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import (
    cited,
    excess_ms,
    looks_sparse,
    matters,
    of_figures,
    shape_of,
    verify_rows,
)
from alula.plan.experts import expected_union
from alula.plan.gpus import find_gpu
from alula.plan.served import forward_bytes
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_MAIN, _SMALL = 0.5, 0.25  # of the excess to explain
_NEARLY_ALL = 1.15  # experts of a verify over those of a plain step


class ExpertUnion(Hypothesis):
    id = "expert_union"
    title = "Verify's rows read more experts than a plain step"
    predicts = "bytes of the extra experts over the memory's bandwidth make up most of verify's excess"
    refuted_by = "a dense model, or extra bytes that explain a small part of the excess"
    needs = ("model", "gpu", "tp", "verify_ms", "experiment:rows_that_route_alike")

    def judge(self, case: Case) -> Finding:
        rows, shape = verify_rows(case), shape_of(case)
        seen = cited(case.both(Quantity.MODEL), case.both(Quantity.NUM_EXPERTS), case.both(Quantity.GPU))
        if shape is not None and not shape.sparse:
            return self.refuted(f"{shape.name} is dense.", evidence=seen, confidence=0.9)
        step = advise(case, "expert_rows") if "llama" in case.engine else advise(case, "phase_times")
        if (by_rows := _measured(case)) is not None and looks_sparse(case):
            return self._by_rows(case, by_rows, step)
        extra = extra_traffic(case)
        if extra is None:
            return self._ratio(case, rows, seen, step)
        return self._traffic(case, extra, seen, step)

    def _traffic(self, case: Case, extra: ExtraTraffic, seen: tuple[Evidence, ...], step: str) -> Finding:
        over = excess_ms(case)
        told = (
            f"{extra.rows} rows are expected to touch {shown(extra.union)} experts a layer where a plain step "
            f"touches "
            f"{extra.experts_plain:.0f}: {shown(extra.bytes / 1e9)} GB more a GPU, {shown(extra.ms)} ms at "
            f"{extra.bandwidth} (at most {shown(extra.ms_most)} ms, if no two rows share an expert)."
        )
        seen = cited(seen, case.both(Quantity.TP), of_figures(case.sums.plain_ms, case.sums.known_cycle_ms))
        if over is None or over <= 0:
            return self.unknown(
                f"{told} The excess to explain is not known.", evidence=seen, next_step=step, confidence=0.2
            )
        what = f"{told} That is {100 * extra.ms / over:.0f} % of the {shown(over)} ms to explain."
        if extra.ms_most < _SMALL * over or extra.ms < _SMALL * over:
            return self.refuted(
                f"Extra weight traffic explains less than {shown(_rounded_up(extra.ms_most))} ms of the "
                f"{shown(over)} ms. "
                f"{what}",
                ms=extra.ms,
                part="verify",
                evidence=seen,
                removable=False,
                confidence=0.8,
            )
        if extra.ms >= _MAIN * over:
            return self.confirmed(
                what,
                ms=min(extra.ms, over),
                part="verify",
                confidence=0.65,
                evidence=seen,
                removable=False,
                fix="fewer rows a verify (smaller k, no tree); the bytes themselves cannot be avoided",
                next_step=step,
            )
        return self.suspected(what, ms=extra.ms, part="verify", evidence=seen, removable=False, next_step=step)

    def _by_rows(self, case: Case, by_rows: dict[int, Evidence], step: str) -> Finding:
        one, most = by_rows[min(by_rows)].number or 1.0, max(by_rows)
        rows = case.sums.width or min((width for width in by_rows if width > 1), default=most)
        nearest = min(by_rows, key=lambda width: abs(width - rows))
        factor = (by_rows[nearest].number or one) / one
        shown_rows = ", ".join(
            f"{width}: {shown((found.number or 0) / one)}" for width, found in sorted(by_rows.items())
        )
        told = f"A forward of n rows in plain steps: {shown_rows}."
        seen = cited(tuple(by_rows.values()))
        if factor < 1.25:
            return self.refuted(told, evidence=seen)
        return self.confirmed(
            f"{told} On this mixture of experts a verify of {nearest} rows costs {shown(factor)} plain steps "
            f"before any draft "
            "cost.",
            ms=(by_rows[nearest].number or one) - one,
            part="verify",
            confidence=0.65,
            evidence=seen,
            removable=False,
            fix="fewer rows a verify (smaller k); faster kernels for a few rows where one row takes another path",
            next_step=step,
        )

    def _ratio(self, case: Case, rows: int | None, seen: tuple[Evidence, ...], step: str) -> Finding:
        """Without a known shape or bandwidth: how many times the experts of a plain step."""
        shape = shape_of(case)
        experts = case.number(Quantity.NUM_EXPERTS) or (shape.num_experts if shape else None)
        each = case.number(Quantity.EXPERTS_PER_TOKEN) or (shape.experts_per_token if shape else None)
        if experts and each and rows and 1 <= each <= experts:
            plain_rows = max(1, round(case.sums.batch))
            union, plain = (expected_union(int(experts), int(each), count) for count in (rows, plain_rows))
            told = (
                f"{rows} rows are expected to touch {shown(union)} of {experts:.0f} experts, {shown(union / plain)} "
                f"times the {shown(plain)} of a plain step"
            )
            if union < _NEARLY_ALL * plain:
                return self.refuted(
                    f"{told}: with {plain_rows} requests a plain step reads nearly as many.",
                    evidence=seen,
                    confidence=0.6,
                )
            return self.suspected(
                f"{told}; what that costs needs {_unknown(case)}.",
                evidence=seen,
                confidence=0.3,
                suspect=matters(case),
                next_step=step,
            )
        if looks_sparse(case):
            return self.suspected(
                "The name is that of a mixture of experts: verify may read several times the experts of a "
                "plain step.",
                evidence=seen,
                confidence=0.25,
                suspect=matters(case),
                next_step=step,
            )
        return self.unknown("Whether the model is a mixture of experts is not known.", next_step=step)


class ExtraTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What a verify reads beyond a plain step, on one GPU. ms_most: if no two rows share an expert."""

    rows: int
    union: float
    experts_plain: float
    bytes: float
    ms: float
    ms_most: float
    bandwidth: str


def extra_traffic(case: Case) -> ExtraTraffic | None:
    """From the built-in shape and the bandwidth; None where either, the rows or the number of ranks is not known."""
    shape, rows = shape_of(case), verify_rows(case)
    name = case.text(Quantity.GPU)
    gpu = find_gpu(name) if name else None
    tp = case.tp
    if shape is None or gpu is None or rows is None or tp is None or not shape.sparse:
        return None
    plain_rows = max(1, round(case.sums.batch))
    plain = forward_bytes(shape, rows=plain_rows, tp=tp)
    verify = forward_bytes(shape, rows=rows, tp=tp)
    per_ms = gpu.memory_bytes_per_s / 1000.0
    return ExtraTraffic(
        rows=rows,
        union=expected_union(shape.num_experts, shape.experts_per_token, rows),
        experts_plain=expected_union(shape.num_experts, shape.experts_per_token, plain_rows),
        bytes=verify.total - plain.total,
        ms=(verify.total - plain.total) / per_ms,
        ms_most=(verify.total_most - plain.total) / per_ms,
        bandwidth=f"{shown(gpu.memory_bytes_per_s / 1e12)} TB/s ({gpu.source})",
    )


def _unknown(case: Case) -> str:
    """What is missing to turn experts into milliseconds."""
    name = case.text(Quantity.GPU)
    parts = [
        ("the GPU's bandwidth (--gpu)", find_gpu(name) if name else None),
        ("the model's size (--model)", shape_of(case)),
        ("the number of ranks (--tp)", case.tp),
    ]
    missing = [what for what, known in parts if known is None]
    return " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing) or "a measurement"


def _measured(case: Case) -> dict[int, Evidence] | None:
    """Forwards by width, from one row on."""
    found: dict[int, Evidence] = {}
    for one in case.both(Quantity.FORWARD_MS):
        if one.scope.width and one.number and one.scope.variant in (None, "graph"):
            found.setdefault(one.scope.width, one)
    return found if 1 in found and len(found) > 1 else None


def _rounded_up(ms: float) -> float:
    """A bound that reads well: 1.66 -> 2, 0.13 -> 0.2."""
    scale = 1.0 if ms > 1 else 10.0
    return (int(ms * scale) + 1) / scale
