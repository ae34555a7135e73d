"""Draft forwards without a graph: k small forwards a cycle, each launched kernel by kernel."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.graphs import eager_cost, graph_modes, has_graphs, replays
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity


class DraftWithoutGraph(Hypothesis):
    id = "draft_without_graph"
    title = "Draft forwards run without a graph"
    predicts = "eager draft steps; no capture line of the draft's graph"
    refuted_by = "every draft step replayed a graph"
    needs = ("graph_replayed", "graph_captured", "experiment:eager_against_graph")

    def judge(self, case: Case) -> Finding:
        if not has_graphs(case):
            return self.refuted("A CPU has no graphs.", evidence=cited(case.both(Quantity.GPU)))
        steps = case.sums.steps
        told = replays(case.spec, ("draft",))
        captured = _captured(case)
        eager_mode = graph_modes(case.spec, ("draft",), ("piecewise", "none"))
        if told.only_eager or told.share_eager >= 0.5 or (eager_mode and not captured):
            return self._confirmed(
                case, cited(told.eager, eager_mode, case.spec.all(Quantity.GRAPH_REASON, phase="draft"))
            )
        if captured or told.replayed:
            return self.refuted(
                "The draft's graphs were captured." if captured else "The draft replays its graph.",
                evidence=cited(captured, told.replayed),
                confidence=0.7 if captured else 0.85,
            )
        downgrade = graph_modes(case.spec, ("verify",), ("piecewise", "none"))
        complete = tuple(one for one in case.spec.all(Quantity.GRAPH_LOG_COMPLETE) if one.value is True)
        if downgrade and complete:
            return self._confirmed(case, cited(downgrade, complete), missing=True)
        if complete and case.spec.all(Quantity.GRAPH_CAPTURED) and (steps or 0) > 1:
            return self.suspected(
                "The log reaches the end of start-up and has capture lines, but none of the draft's graph.",
                evidence=cited(complete, case.spec.all(Quantity.GRAPH_CAPTURED)),
                confidence=0.35,
                weight=_weight(case),
                next_step=advise(case, "draft_graph"),
            )
        return self.unknown(
            "Nothing tells whether the draft replays a graph.", next_step=advise(case, "draft_graph")
        )

    def _confirmed(self, case: Case, evidence: tuple[Evidence, ...], missing: bool = False) -> Finding:
        steps = case.sums.steps
        cost = eager_cost(case, ("draft",))
        count = f"{steps} eager draft forwards a cycle" if steps else "Each draft forward is eager"
        why = (
            "The log has no capture line of the draft's full graph, though start-up ended, and the engine "
            "lowered the graph "
            "mode: "
            if missing
            else ""
        )
        return self.confirmed(
            f"{why}{count}.",
            ms=cost,
            part="draft",
            confidence=0.6 if missing else 0.85,
            evidence=evidence,
            weight=_weight(case),
            fix="let the draft be captured: the same remedy as for verify, or a release that captures the draft",
            next_step=advise(case, "draft_graph"),
            predicted_speedup=case.sums.speedup_without(cost),
        )


def _weight(case: Case) -> float:
    """Eager draft forwards against the one verify, which counts 2."""
    return 0.5 * (case.sums.steps or 1)


def _captured(case: Case) -> tuple[Evidence, ...]:
    found = case.spec.all(Quantity.GRAPH_CAPTURED, phase="draft")
    return tuple(one for one in found if one.value is True and one.scope.variant in (None, "full"))
