"""The draft's extend without a graph: one more eager forward in every cycle, of which no line tells."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.graphs import eager_cost, has_graphs, replays
from alula.explain.hypotheses.support import cited
from alula.explain.known_faults import extend_is_captured
from alula.profile.quantities import Quantity


class ExtendWithoutGraph(Hypothesis):
    id = "extend_without_graph"
    title = "The draft's extend runs without a graph"
    predicts = "an eager pass of the draft over the committed rows in every cycle; no capture line of its graph"
    refuted_by = "a captured and replayed extend"
    needs = ("graph_replayed", "graph_captured", "attention_backend", "experiment:eager_against_graph")

    def judge(self, case: Case) -> Finding:
        if not has_graphs(case):
            return self.refuted("A CPU has no graphs.", evidence=cited(case.both(Quantity.GPU)))
        told = replays(case.spec, ("extend",))
        captured = tuple(one for one in case.spec.all(Quantity.GRAPH_CAPTURED, phase="extend") if one.value is True)
        cost = eager_cost(case, ("extend",))
        common = {"part": "extend", "next_step": advise(case, "extend_graph"), "weight": 0.8}
        if told.only_eager or told.share_eager >= 0.5:
            return self.confirmed(
                "The extend ran eagerly.",
                evidence=cited(told.eager, case.spec.all(Quantity.GRAPH_REASON, phase="extend")),
                ms=cost,
                confidence=0.85,
                fix="let the extend be captured",
                predicted_speedup=case.sums.speedup_without(cost),
                **common,
            )
        if told.replayed or captured:
            return self.refuted(
                "The extend has its graph.", evidence=cited(told.replayed, captured), confidence=0.8
            )
        return self._missing(case)

    def _missing(self, case: Case) -> Finding:
        """By what the log of a start-up has and has not."""
        common = {"part": "extend", "next_step": advise(case, "extend_graph"), "weight": 0.8}
        others = case.spec.all(Quantity.GRAPH_CAPTURED)
        complete = tuple(one for one in case.spec.all(Quantity.GRAPH_LOG_COMPLETE) if one.value is True)
        if not ("sglang" in case.engine and others and complete):
            return self.unknown("Nothing tells how the extend ran.", next_step=advise(case, "extend_graph"))
        backend = case.spec.first(Quantity.ATTENTION_BACKEND)
        seen = cited(others, complete, backend)
        if backend is not None and extend_is_captured(str(backend.value), case.version) is False:
            return self.confirmed(
                f"Other graphs were captured, the extend's was not, and this release does not capture it for "
                f"attention "
                f"backend {backend.value}: it runs eagerly in every cycle, and no line says so.",
                evidence=seen,
                confidence=0.7,
                fix=advise(case, "extend_graph"),
                **common,
            )
        return self.suspected(
            "Other graphs were captured, but no line tells of the extend's: it may run eagerly in every cycle.",
            evidence=seen,
            confidence=0.4,
            **common,
        )
