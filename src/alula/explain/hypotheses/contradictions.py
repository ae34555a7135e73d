"""Evidence that contradicts itself: what should be one value and is several."""

from __future__ import annotations

import re

from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.evidence import Evidence


class ContradictoryEvidence(Hypothesis):
    id = "contradictory_evidence"
    title = "The evidence contradicts itself"
    predicts = "several values of what a run has once; typed numbers that do not fit together"
    refuted_by = "one value for each"
    needs = ("any",)

    def judge(self, case: Case) -> Finding:
        if not case.contradicts_itself:
            return self.unknown("No contradiction was found.")
        told = [*(one.words() for one in case.contradictions), *case.conflicts]
        step = "give the files of one run only, or say which side each belongs to (--from, --baseline)"
        return self.confirmed(
            "; ".join(told[:6]) + ".",
            tier=Tier.READING,
            confidence=0.9,
            evidence=cited(*(one.found for one in case.contradictions), _typed(case), _reckoned(case)),
            next_step=step
            if case.contradictions
            else "measure these numbers again, all of them in the same two runs",
        )


def _reckoned(case: Case) -> tuple[Evidence, ...]:
    """What two ways to the speed-up rest on, where they disagree."""
    return of_figures(case.sums.speedup, case.sums.other_speedup) if case.sums.other_speedup else ()


def _typed(case: Case) -> tuple[Evidence, ...]:
    """The typed numbers that a conflict names."""
    named = set(re.findall(r"--[a-z-]+", " ".join(case.conflicts)))
    return tuple(one for run in (case.spec, case.plain) for one in run if one.text.split(" ", 1)[0] in named)
