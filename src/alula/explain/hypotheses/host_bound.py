"""The host or the launches set the pace: the device waits between kernels, graphs or cycles."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_HEAVY, _LIGHT = 0.15, 0.07  # of a cycle
_HEAVY_MEASURED = 0.08  # where each cycle's own idle time was measured, which leaves less to doubt


class HostBound(Hypothesis):
    id = "host_or_launch_bound"
    title = "The host or its launches set the pace"
    predicts = (
        "device time well under the cycle's wall time; launch calls that take milliseconds; gaps inside a graph"
    )
    refuted_by = "a device that is busy all of the cycle"
    needs = ("host_ms", "gpu_busy_ms", "gpu_span_ms", "graph_launch_ms", "experiment:served_against_isolated")

    def judge(self, case: Case) -> Finding:
        idle, seen, how = _idle(case)
        cycle = case.sums.known_cycle_ms
        step = advise(case, "trace")
        if idle is not None and cycle is not None:
            return self._measured(case, idle, cycle.value, seen, how)
        models = tuple(one for one in case.both(Quantity.DRIVER_MODEL) if "wddm" in str(one.value).lower())
        if models and not case.sums.pays:
            return self.suspected(
                "The driver model is WDDM, where a launch costs far more and GPUs cannot reach each other's "
                "memory: each draft "
                "step pays for launches and transfers.",
                evidence=cited(models),
                confidence=0.4,
                weight=1.5,
                next_step="compare under Linux (or with one GPU); count launches per cycle in a trace",
            )
        if _accepted_but_slow(case):
            return self.suspected(
                "Drafts are accepted and it is slower all the same: what each draft step and each cycle cost "
                "apart from device "
                "work (launches, transfers, host) is the first thing to measure.",
                evidence=case.sums.tokens_per_cycle.evidence if case.sums.tokens_per_cycle else (),
                confidence=0.25,
                next_step=step,
            )
        return self.unknown("No time in which the device idles was measured.", next_step=step)

    def _measured(self, case: Case, idle: float, cycle_ms: float, seen: tuple[Evidence, ...], how: str) -> Finding:
        share, step = idle / cycle_ms, advise(case, "trace")
        told = f"The device idles {shown(idle)} of {shown(cycle_ms)} ms a cycle ({100 * share:.0f} %; {how})."
        told += _launches(case)
        evidence = cited(seen, case.spec.all(Quantity.GRAPH_LAUNCH_MS), case.spec.all(Quantity.GRAPH_NODES))
        measured = any(one.quantity is Quantity.HOST_MS for one in seen)
        plain = case.plain.number(Quantity.HOST_MS) or 0.0
        if share >= (_HEAVY_MEASURED if measured else _HEAVY):
            return self.confirmed(
                told,
                ms=idle,
                part="host",
                confidence=0.8,
                evidence=evidence,
                fix="shorten the host's work between launches (scheduling, sampling, metadata, detokenising), "
                "or overlap "
                "it with the device; fewer graph nodes shorten the launch",
                next_step=step,
                predicted_speedup=case.sums.speedup_without(idle, plain if measured else 0.0),
            )
        if share <= _LIGHT:
            return self.refuted(told, evidence=evidence)
        return self.suspected(told, evidence=evidence, confidence=0.3, next_step=step)


def _idle(case: Case) -> tuple[float | None, tuple[Evidence, ...], str]:
    """Milliseconds of a cycle in which the device does nothing, where measured, and how it was."""
    host = case.spec.first(Quantity.HOST_MS)
    if host is not None and host.number is not None:
        return host.number, (host,), "measured host time"
    cycle = case.sums.cycle_ms
    busy = [one for one in case.spec.all(Quantity.GPU_BUSY_MS) if one.scope.rank in (None, 0)]
    whole = next((one for one in busy if one.scope.phase in (None, "cycle")), None)
    if cycle is not None and whole is not None and whole.number is not None:
        return max(0.0, cycle.value - whole.number), (whole,), "cycle less busy time"
    phases = {one.scope.phase: one for one in busy if one.number is not None}
    if cycle is not None and {"verify", "draft"} <= set(phases):
        total = sum(one.number or 0.0 for one in phases.values())
        return max(0.0, cycle.value - total), tuple(phases.values()), "cycle less the phases' busy time"
    return None, (), ""


def _launches(case: Case) -> str:
    launch, nodes = (
        case.spec.number(Quantity.GRAPH_LAUNCH_MS, phase="verify"),
        case.spec.number(Quantity.GRAPH_NODES, phase="verify"),
    )
    span, busy = (
        case.spec.number(Quantity.GPU_SPAN_MS, phase="verify"),
        case.spec.number(Quantity.GPU_BUSY_MS, phase="verify"),
    )
    text = f" Verify's graph has {nodes:.0f} nodes." if nodes else ""
    text += f" Launching it takes the host {shown(launch)} ms." if launch else ""
    if span is not None and busy is not None:
        text += f" Gaps inside verify: {shown(max(0.0, span - busy))} ms."
    return text


def _accepted_but_slow(case: Case) -> bool:
    tokens, top = case.sums.tokens_per_cycle, case.sums.ceiling
    if case.sums.pays is not False or tokens is None or top is None or tokens.at_least or top.value <= 1:
        return False
    return (tokens.value - 1) / (top.value - 1) > 0.7
