"""Evidence that contradicts itself: what should be one value and is several."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited


class ContradictoryEvidence(Hypothesis):
    id = "contradictory_evidence"
    title = "The evidence contradicts itself"
    predicts = "several values of what a run has once; typed numbers that do not fit together"
    refuted_by = "one value for each"
    needs = ("any",)

    def judge(self, case: Case) -> Finding:
        conflicts = [note for note in case.notes if note.startswith("conflict: ")]
        if not case.contradictions and not conflicts:
            return self.unknown("No contradiction was found.")
        told = [
            *(one.words() for one in case.contradictions),
            *(note.removeprefix("conflict: ") for note in conflicts),
        ]
        return self.confirmed(
            "; ".join(told[:6]) + ".",
            tier=Tier.READING,
            confidence=0.9,
            evidence=cited(*(one.found for one in case.contradictions)),
            next_step="give the files of one run only, or say which side each belongs to (--from, --baseline)",
        )
