"""Decode and verify on different all-reduce paths: a few more rows, and the message crosses a size gate."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.latencies import LatencySlope, latency_slope, range_of
from alula.explain.hypotheses.support import (
    cited,
    excess_ms,
    kilobytes,
    message_bytes,
    reductions,
    slow_verify,
    verify_rows,
)
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity


class AllreducePathsDiffer(Hypothesis):
    id = "allreduce_paths_differ"
    title = "Decode and verify take different all-reduce paths"
    predicts = (
        "another backend, algorithm or communicator for verify's messages; verify's collectives cost far more"
    )
    refuted_by = "the same backend for both, and collectives that cost about the same"
    needs = ("allreduce_backend", "collective_ms", "allreduce_us", "experiment:collectives")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("One rank: there are no all-reduces.", evidence=cited(case.both(Quantity.TP)))
        decode, verify = _backends(case, "decode"), _backends(case, "verify")
        cost, costs = _cost(case)
        if decode and verify:
            names = [", ".join(sorted({str(one.value) for one in side})) for side in (decode, verify)]
            seen = cited(decode, verify, costs)
            if names[0] != names[1]:
                return self.confirmed(
                    f"Decode's all-reduces take {names[0]}, verify's take {names[1]}.{_spent(cost)}{_sizes(case)}",
                    ms=cost,
                    part="verify",
                    evidence=seen,
                    confidence=0.85,
                    weight=2.0,
                    fix="keep verify's messages on decode's backend: raise its size limit, or lower k or the batch",
                    predicted_speedup=case.sums.speedup_without(cost),
                )
            if cost is None or not _weighty(case, cost):
                return self.refuted(f"Both take {names[0]}.{_spent(cost)}", evidence=seen)
        if cost is None and (slope := latency_slope(case)) is not None:
            return self._by_latency(case, slope)
        if cost is not None and _weighty(case, cost):
            return self.confirmed(
                f"Verify's collectives cost {shown(cost)} ms more than decode's.{_sizes(case)}",
                ms=cost,
                part="verify",
                evidence=costs,
                confidence=0.75,
                weight=2.0,
                fix="a backend or protocol that is fast at verify's message size",
                next_step=advise(case, "allreduce_path"),
                predicted_speedup=case.sums.speedup_without(cost),
            )
        return self._open(case, cited(decode, verify, costs))

    def _by_latency(self, case: Case, slope: LatencySlope) -> Finding:
        """From a table of latencies: what the larger messages of verify cost, on whatever path was measured."""
        told = (
            f"By the measured latencies of {slope.name}, a message of decode "
            f"({kilobytes(slope.decode_bytes)}) takes "
            f"{shown(slope.decode_us)} µs and one of verify ({kilobytes(slope.verify_bytes)}) "
            f"{shown(slope.verify_us)} µs."
        )
        if slope.ms is None or case.sums.plain_ms is None:
            missing = "number of all-reduces" if slope.ms is None else "plain step"
            return self.suspected(
                f"{told} The {missing} is not known.",
                evidence=slope.evidence,
                confidence=0.3,
                next_step=advise(case, "allreduce_path"),
            )
        told += f" Over {reductions(case)} all-reduces that is {shown(slope.ms)} ms more in verify."
        if not _weighty(case, slope.ms):
            return self.refuted(told, evidence=slope.evidence, confidence=0.6)
        return self.confirmed(
            told,
            ms=slope.ms,
            part="verify",
            evidence=slope.evidence,
            confidence=0.6,
            weight=2.0,
            fix="a backend or protocol whose latency is flat from decode's to verify's message size",
            next_step=advise(case, "allreduce_path"),
            predicted_speedup=case.sums.speedup_without(slope.ms),
        )

    def _open(self, case: Case, seen: tuple[Evidence, ...]) -> Finding:
        step = advise(case, "allreduce_path")
        table = case.both(Quantity.ALLREDUCE_US)
        if len(table) > 1:
            return self.suspected(
                f"Latencies were measured, but the messages of this model are not known.{range_of(table)}",
                evidence=cited(table),
                confidence=0.25,
                next_step=f"give the model with --model and k with --steps; {step}",
            )
        if case.tp is None and not case.all(Quantity.NCCL_VERSION):
            return self.unknown("The number of ranks and the all-reduce paths are not known.", next_step=step)
        if not slow_verify(case):
            return self.unknown(
                f"Nothing tells which path each size takes.{_sizes(case)}", evidence=seen, next_step=step
            )
        each = _each(case)
        return self.suspected(
            f"Nothing tells which path decode's and verify's messages take.{_sizes(case)}{each}",
            evidence=cited(seen, case.both(Quantity.TP)),
            confidence=0.3,
            weight=1.9,
            next_step=step,
        )


def _backends(case: Case, phase: str) -> tuple[Evidence, ...]:
    own = case.spec.all(Quantity.ALLREDUCE_BACKEND, phase=phase)
    return own or (case.plain.all(Quantity.ALLREDUCE_BACKEND, phase=phase) if phase == "decode" else ())


def _cost(case: Case) -> tuple[float | None, tuple[Evidence, ...]]:
    """Milliseconds by which verify's transfers exceed decode's, where both were measured."""
    verify = case.spec.first(Quantity.COLLECTIVE_MS, phase="verify", variant=None)
    decode = case.spec.first(Quantity.COLLECTIVE_MS, phase="decode", variant=None) or case.plain.first(
        Quantity.COLLECTIVE_MS, phase="decode", variant=None
    )
    if verify is None or decode is None or verify.number is None or decode.number is None:
        return None, ()
    return max(0.0, verify.number - decode.number), (verify, decode)


def _weighty(case: Case, cost: float) -> bool:
    plain = case.sums.plain_ms
    return plain is not None and cost > 0.1 * plain.value


def _spent(cost: float | None) -> str:
    return "" if cost is None else f" Verify's cost {shown(cost)} ms more."


def _sizes(case: Case) -> str:
    rows = verify_rows(case)
    few, many = message_bytes(case, round(case.sums.batch)), message_bytes(case, rows)
    if few is None or many is None:
        return ""
    return (
        f" A message is {kilobytes(few)} at decode and {kilobytes(many)} at verify ({rows} rows x hidden x "
        f"2 bytes)."
    )


def _each(case: Case) -> str:
    over, count = excess_ms(case), reductions(case)
    if over is None or count is None or over <= 0:
        return ""
    return (
        f" {shown(1000 * over / count)} µs more for each of {count} all-reduces would explain all {shown(over)} ms."
    )
