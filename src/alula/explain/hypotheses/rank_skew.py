"""One rank slower than the others: every collective waits for it."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity
from alula.profile.samples import median_interval

# Times of a rank's own work first: the wall time of a cycle is the same in every rank that waits.
_OWN_WORK = (Quantity.GPU_BUSY_MS, Quantity.KERNEL_MS, Quantity.FORWARD_MS, Quantity.HOST_MS, Quantity.VERIFY_MS)
_SKEWED, _EVEN = 0.10, 0.04


class RankSkew(Hypothesis):
    id = "rank_skew"
    title = "One rank is slower than the others"
    predicts = "one rank works longer or waits less in collectives than all others"
    refuted_by = "the same times in every rank"
    needs = ("gpu_busy_ms", "collective_wait_ms", "experiment:ranks")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("There is one rank.", evidence=cited(case.both(Quantity.TP)))
        waits = _by_rank(case, Quantity.COLLECTIVE_WAIT_MS)
        if len(waits) > 1:
            slow = min(waits, key=lambda rank: waits[rank][0])
            lost = (
                median_interval([wait for rank, (wait, _) in waits.items() if rank != slow]).median - waits[slow][0]
            )
            plain = {
                one.scope.rank: one.number or 0.0
                for one in case.plain.all(Quantity.COLLECTIVE_WAIT_MS)
                if one.scope.rank is not None
            }
            of_plain = [wait for rank, wait in plain.items() if rank != slow]
            less = max(0.0, median_interval(of_plain).median - plain.get(slow, 0.0)) if of_plain else 0.0
            return self._judged(case, slow, lost, waits, "waits least in collectives", less)
        for quantity in _OWN_WORK:
            times = _by_rank(case, quantity)
            if len(times) > 1:
                slow = max(times, key=lambda rank: times[rank][0])
                others = median_interval([time for rank, (time, _) in times.items() if rank != slow]).median
                return self._judged(case, slow, times[slow][0] - others, times, f"takes longest ({quantity})")
        return self.unknown(
            "No times of several ranks; a trace of one rank cannot tell.", next_step=advise(case, "trace")
        )

    def _judged(
        self,
        case: Case,
        slow: int,
        lost: float,
        times: dict[int, tuple[float, Evidence]],
        how: str,
        of_plain_ms: float = 0.0,
    ) -> Finding:
        """of_plain_ms: what a plain step loses in the same way."""
        plain = case.sums.known_cycle_ms or case.sums.plain_ms
        scale = plain.value if plain else max(time for time, _ in times.values())
        seen = cited(*(evidence for _, evidence in times.values()))
        told = f"Rank {slow} {how}: {shown(lost)} ms apart from the median of the others."
        if lost > _SKEWED * scale:
            return self.confirmed(
                told,
                ms=lost,
                part="verify",
                evidence=seen,
                confidence=0.8,
                fix=f"find what rank {slow} has of its own: its clock, its PCIe link, its CPU core, another "
                f"process",
                next_step=advise(case, "clocks"),
                predicted_speedup=case.sums.speedup_without(lost, of_plain_ms),
            )
        if lost <= _EVEN * scale:
            return self.refuted(f"Ranks are even ({shown(lost)} ms apart).", evidence=seen)
        return self.suspected(told, evidence=seen, confidence=0.3, next_step=advise(case, "trace"))


def _by_rank(case: Case, quantity: Quantity) -> dict[int, tuple[float, Evidence]]:
    """Rank -> its time, of the phase that most ranks have."""
    phases: dict[tuple[str | None, str | None], dict[int, tuple[float, Evidence]]] = {}
    for one in case.spec.all(quantity):
        if one.scope.rank is not None and one.number is not None:
            key = (one.scope.phase, one.scope.name)
            phases.setdefault(key, {})[one.scope.rank] = (one.number, one)
    return max(phases.values(), key=lambda found: (len(found), sum(time for time, _ in found.values())), default={})
