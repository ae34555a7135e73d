"""More rows than the largest captured graph: the step falls to eager, for verify sooner than for plain decoding."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.graphs import replays
from alula.explain.hypotheses.support import cited, number_of
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_DOCUMENTED = 4


class BatchOverGraph(Hypothesis):
    id = "batch_over_captured_graph"
    title = "The batch exceeds the largest captured graph"
    predicts = "running requests (times rows a request) above the largest captured size; eager steps at that load"
    refuted_by = "graphs for the whole load"
    needs = ("graph_max_requests", "graph_max_tokens", "num_running", "num_draft_tokens")

    def judge(self, case: Case) -> Finding:
        running = running_requests(case)
        if off := tuple(one for one in case.spec.all(Quantity.GRAPHS_DISABLED) if one.value is True):
            return self.refuted("Graphs are switched off altogether: no size is the cause.", evidence=cited(off))
        sizes = (Quantity.GRAPH_MAX_REQUESTS, Quantity.GRAPH_MAX_TOKENS)
        limits = tuple(tuple(one for one in case.spec.all(size) if one.number) for size in sizes)
        if running is None or not (limits[0] or limits[1]):
            return self.unknown(
                "The load or the captured sizes are not known.", next_step=advise(case, "verify_graph")
            )
        count, load = running
        width = case.sums.width or 1
        over = _over(limits, count, width)
        seen = cited(*limits, load, case.spec.all(Quantity.NUM_DRAFT_TOKENS), case.spec.all(Quantity.STEPS))
        if over is None:
            return self.refuted(f"Graphs reach over {count:.0f} requests of {width} rows.", evidence=seen)
        told = replays(case.spec, ("verify", "target"))
        if told.replayed and not told.eager:
            return self.suspected(
                f"{over} Yet the log says that graphs were replayed.",
                evidence=cited(seen, told.replayed),
                confidence=0.3,
            )
        return self._confirmed(case, over, count, limits, cited(seen, told.eager), bool(told.eager))

    def _confirmed(
        self,
        case: Case,
        over: str,
        count: float,
        limits: tuple[tuple[Evidence, ...], ...],
        seen: tuple[Evidence, ...],
        eager: bool,
    ) -> Finding:
        text = over
        if (number_of(limits[0]) or _DOCUMENTED + 1) <= _DOCUMENTED:
            text += " A cap this small is made for one or two requests, as examples in documentation have it."
        if _fits_plain(case.plain, count):
            text += (
                f" A plain step of {count:.0f} rows fits the baseline's graphs: one side has graphs, the "
                f"other none."
            )
        return self.confirmed(
            text,
            part="verify",
            confidence=0.9 if eager else 0.75,
            evidence=seen,
            weight=2.5,
            fix=_fix(case, round(count)),
            next_step=advise(case, "verify_graph"),
        )


def _fix(case: Case, count: int) -> str:
    """With the option that the engine's own dump names; else the one of its version."""
    if (option := case.spec.text(Quantity.GRAPH_SIZE_OPTION)) is not None:
        return f"{option} {count}"
    return advise(case, "raise_graph_batch", size=count, rows=count * (case.sums.width or 1))


def running_requests(case: Case) -> tuple[float, Evidence] | None:
    """How many requests ran at once: seen in the log, else asked for by the load generator or configured."""
    cap = case.spec.number(Quantity.MAX_RUNNING)
    for quantity in (Quantity.NUM_RUNNING, Quantity.CONCURRENCY, Quantity.BATCH):
        found = [one for one in case.spec.all(quantity) if one.number]
        if found:
            most = max(found, key=lambda one: one.number or 0.0)
            number = most.number or 0.0
            return (min(number, cap) if cap else number), most
    found = [one for one in case.spec.all(Quantity.MAX_RUNNING) if one.number]
    return (found[0].number or 0.0, found[0]) if found else None


def _over(limits: tuple[tuple[Evidence, ...], ...], count: float, width: int) -> str | None:
    requests = max((one.number or 0.0 for one in limits[0]), default=None)
    tokens = max((one.number or 0.0 for one in limits[1]), default=None)
    if requests is not None and count > requests:
        return (
            f"{count:.0f} requests run at once, but graphs end at {requests:.0f}: verify (and decode) of "
            f"larger batches "
            "runs eagerly."
        )
    if tokens is not None and count * width > tokens:
        return (
            f"A verify of {count:.0f} x {width} = {count * width:.0f} rows exceeds the largest captured graph "
            f"({tokens:.0f} rows): it runs eagerly."
        )
    return None


def _fits_plain(plain: RunFacts, count: float) -> bool:
    tokens, requests = plain.number(Quantity.GRAPH_MAX_TOKENS), plain.number(Quantity.GRAPH_MAX_REQUESTS)
    limit = tokens if tokens is not None else requests
    return limit is not None and count <= limit
