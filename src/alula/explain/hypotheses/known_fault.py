"""The registry of known faults as hypotheses: one for each entry."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.known_faults import KnownFault


class KnownFaultFound(Hypothesis):
    """Whether a known fault or misleading field of the engine shows in the case."""

    predicts = "the lines or settings that the fault is known by, in a version that has it"
    refuted_by = "another engine or version"
    needs = ("engine", "engine_version")

    def __init__(self, fault: KnownFault) -> None:
        self.id = f"known.{fault.id}"
        self.title = "A field to read with care" if fault.misleading else "A known fault of this release"
        self._fault = fault

    def judge(self, case: Case) -> Finding:
        fault = self._fault
        evidence = fault.found_in(case)
        if not evidence:
            return self.unknown("Nothing shows it here.")
        return self.confirmed(
            f"{fault.what} (Source: {fault.source}.)",
            tier=Tier.READING if fault.misleading else Tier.COST,
            evidence=evidence,
            confidence=fault.confidence,
            weight=0.5,
            fix=fault.fix or None,
        )
