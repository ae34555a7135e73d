"""Verify without a (full) CUDA graph: its kernels are launched one by one, while plain decoding replays a graph."""

from __future__ import annotations

from alula.explain.advice.lookup import advise, table_of
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.graphs import eager_cost, graph_modes, has_graphs, replays
from alula.explain.hypotheses.support import cited, excess_ms, of_figures, slow_verify
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_PHASES = ("verify", "target")
_FULL_SINCE = (0, 11)  # of vLLM; earlier releases had piecewise graphs for plain decoding too


class VerifyWithoutGraph(Hypothesis):
    id = "verify_without_graph"
    title = "Verify runs without a full CUDA graph"
    predicts = "eager or piecewise verify; no capture of its full graph; a reason in the log"
    refuted_by = "every verify replayed a full graph"
    needs = ("graph_replayed", "graph_mode", "graph_captured", "experiment:eager_against_graph")

    def judge(self, case: Case) -> Finding:
        if not has_graphs(case):
            return self.refuted("A CPU has no graphs.", evidence=cited(case.both(Quantity.GPU)))
        told = replays(case.spec, _PHASES)
        reasons = case.spec.all(Quantity.GRAPH_REASON, phase="verify")
        disabled = _disabled(case)
        piecewise = graph_modes(case.spec, _PHASES, ("piecewise", "none"))
        full = _full_captures(case)
        if disabled or told.only_eager or (piecewise and not told.replayed):
            return self._confirmed(case, cited(disabled, piecewise, told.eager, reasons))
        if told.eager and told.share_eager >= 0.5:
            return self._confirmed(case, cited(told.eager, reasons, told.replayed), share=told.share_eager)
        if told.eager:
            return self.suspected(
                f"Mixed: {100 * told.share_eager:.0f} % of the observed steps ran without a graph.",
                evidence=cited(told.eager, told.replayed, reasons),
                confidence=0.3 + 0.4 * told.share_eager,
                next_step=advise(case, "verify_graph"),
            )
        if told.replayed or (full and not piecewise):
            return self.refuted(
                "Verify replays its graph." if told.replayed else "The target's full graphs were captured.",
                evidence=cited(told.replayed, full),
                confidence=0.85 if told.replayed else 0.6,
            )
        return self._open(case)

    def _confirmed(self, case: Case, evidence: tuple[Evidence, ...], share: float = 1.0) -> Finding:
        cost = eager_cost(case, _PHASES)
        often = "" if share >= 1.0 else f" in {100 * share:.0f} % of the observed steps"
        text = f"Verify runs without a full graph{often}."
        reason = case.spec.first(Quantity.GRAPH_REASON, phase="verify")
        if reason is not None:
            text += f" The engine's reason: {str(reason.value)[:240]}"
        if _missing_full(case):
            text += " The log has no capture line of a full graph for verify, though start-up ended."
        if _plain_has_graph(case):
            text += " The plain run keeps its graph, so a graph is compared with none."
        over = excess_ms(case)
        if cost is None and over is not None and over > 0:
            text += f" At most {shown(over)} ms of the cycle can be due to it."
        topic = "full_graph" if reason or not table_of(case.engine) else "verify_graph"
        return self.confirmed(
            text,
            ms=cost,
            part="verify",
            confidence=0.85 if share >= 0.9 else 0.75,
            evidence=evidence,
            weight=2.0,
            fix=_fix(case, topic),
            next_step=None if cost is not None else advise(case, "verify_graph"),
            predicted_speedup=case.sums.speedup_without(cost),
        )

    def _open(self, case: Case) -> Finding:
        if _missing_full(case):
            return self.suspected(
                "The log reaches the end of start-up without a capture line of a full graph for verify.",
                evidence=cited(case.spec.all(Quantity.GRAPH_LOG_COMPLETE), case.spec.all(Quantity.GRAPH_CAPTURED)),
                confidence=0.35,
                next_step=advise(case, "verify_graph"),
            )
        if slow_verify(case):
            return self.suspected(
                "Nothing tells whether verify replays a graph, and it costs much more than a plain step: "
                "eager launches "
                "are a usual reason.",
                confidence=0.3,
                evidence=of_figures(case.sums.verify_steps or case.sums.break_even),
                weight=2.0,
                next_step=advise(case, "verify_graph"),
            )
        return self.unknown("Nothing tells whether verify replays a graph.", next_step=advise(case, "verify_graph"))


def _fix(case: Case, topic: str) -> str:
    if case.spec.yes(Quantity.GRAPHS_DISABLED):
        return "remove the option that switches graphs off (--enforce-eager, --disable-cuda-graph)"
    if topic == "full_graph":
        return advise(case, "full_graph") if "full_graph" in table_of(case.engine) else "let verify be captured"
    return "capture a full graph for verify: a width, batch and attention backend that the engine can capture"


def _disabled(case: Case) -> tuple[Evidence, ...]:
    return tuple(one for one in case.spec.all(Quantity.GRAPHS_DISABLED) if one.value is True)


def _full_captures(case: Case) -> tuple[Evidence, ...]:
    found = [one for phase in _PHASES for one in case.spec.all(Quantity.GRAPH_CAPTURED, phase=phase)]
    return tuple(one for one in found if one.value is True and one.scope.variant in (None, "full"))


def _missing_full(case: Case) -> bool:
    complete = case.spec.yes(Quantity.GRAPH_LOG_COMPLETE) is True
    captures = case.spec.all(Quantity.GRAPH_CAPTURED)
    old = "vllm" in case.engine and bool(case.version) and case.version < _FULL_SINCE
    return complete and bool(captures) and not _full_captures(case) and not old


def _plain_has_graph(case: Case) -> bool:
    modes = graph_modes(case.plain, ("decode", "target", None), ("full", "full_and_piecewise", "full_decode_only"))
    return bool(modes) or bool(replays(case.plain, ("decode", "target")).replayed)
