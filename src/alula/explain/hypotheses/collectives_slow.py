"""Collectives that take far longer in served cycles than the same calls take alone, in decode and verify alike."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

ALONE = "alone"  # variant of COLLECTIVE_MS: the same calls, by times measured when nothing else ran
OF_RANK_0 = "rank 0"  # name of COLLECTIVE_WAIT_MS by phase; those by rank are of whole cycles
_HEAVY, _LIGHT = 0.25, 0.1  # of a cycle
_ALIKE = 0.5  # decode's excess over verify's: above it, both suffer
_PHASES = ("draft", "verify", "extend")


class CollectivesSlow(Hypothesis):
    id = "collectives_slow"
    title = "Collectives take far longer than they need"
    predicts = "calls in served cycles that take several times what they take alone, whatever their size"
    refuted_by = "calls that take in served cycles what they take alone"
    needs = ("collective_ms", "allreduce_us", "experiment:collectives")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("One rank: there are no collectives.", evidence=cited(case.both(Quantity.TP)))
        cycle = case.sums.cycle_ms
        excess, seen = _excess(case.spec, _PHASES)
        if excess is None or cycle is None:
            return self.unknown(
                "What the collectives of a cycle take, served and alone, is not known.",
                next_step=advise(case, "allreduce_path"),
            )
        plain, of_plain = _excess(case.plain, ("decode",))
        verify, _ = _excess(case.spec, ("verify",))
        share = excess / cycle.value
        told = (
            f"The collectives of a cycle take {shown(excess)} ms more than the same calls alone "
            f"({100 * share:.0f} % of {shown(cycle.value)} ms)."
        )
        evidence = cited(seen, of_plain)
        if share >= _HEAVY and plain is not None and verify is not None and plain < _ALIKE * verify:
            return self.refuted(
                f"{told} But decode's do not suffer ({shown(plain)} ms): see the paths of decode and verify.",
                evidence=evidence,
                confidence=0.6,
            )
        if share >= _HEAVY:
            return self.confirmed(
                told + (f" In a plain step it is {shown(plain)} ms." if plain is not None else ""),
                ms=excess,
                evidence=evidence,
                confidence=0.8,
                weight=2.0,
                fix="find what delays each call: too few cores for the ranks, a link or backend that is slow under "
                "load, a debugging hook; --without NAME tries the next backend",
                next_step=advise(case, "allreduce_path"),
                predicted_speedup=case.sums.speedup_without(excess, plain or 0.0),
            )
        if share <= _LIGHT:
            return self.refuted(told, evidence=evidence)
        return self.unknown(told, evidence=evidence, confidence=0.2)


def _excess(run: RunFacts, phases: tuple[str, ...]) -> tuple[float | None, tuple[Evidence, ...]]:
    """Milliseconds of the served calls of these phases beyond the same calls alone; None where no phase has both."""
    total, seen, known = 0.0, [], False
    for phase in phases:
        served = run.first(Quantity.COLLECTIVE_MS, phase=phase, variant=None)
        alone = run.first(Quantity.COLLECTIVE_MS, phase=phase, variant=ALONE)
        if served is not None and alone is not None and served.number is not None and alone.number is not None:
            total += served.number - alone.number
            seen += [served, alone]
            known = True
    return (max(0.0, total) if known else None), tuple(seen)
