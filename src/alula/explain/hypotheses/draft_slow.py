"""A draft that is too slow: its forwards and its extend cost a large part of a plain step."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.collectives_slow import ALONE, OF_RANK_0
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_HEAVY, _LIGHT = 0.4, 0.25  # of a plain step, all drafting of a cycle
_HEAVY_STEP = 0.25  # one draft step
_SLOWER = 0.6  # of what a draft of this size should take: as much again, or nearly
_OF_CYCLE = 0.1  # what a draft takes beyond its size is worth a look from here on
_SLOWER_OVER_RANKS = 1.5  # where each pass gathers and waits as well, which a layer of the target tells less of


class DraftTooSlow(Hypothesis):
    id = "draft_too_slow"
    title = "Drafting costs too much"
    predicts = "draft and extend together cost a large part of a plain step"
    refuted_by = "drafting under a quarter of a plain step"
    needs = ("draft_ms", "extend_ms", "plain_step_ms", "experiment:draft_alone")

    def judge(self, case: Case) -> Finding:
        sums = case.sums
        if sums.draft_ms is None and sums.extend_ms is None:
            return self.unknown("The draft's time is not known.", next_step=advise(case, "phase_times"))
        if sums.plain_ms is None:
            return self.unknown("The plain step is not known.", next_step=advise(case, "plain_rate"))
        parts = [one for one in (sums.draft_ms, sums.extend_ms) if one is not None]
        total = sum(one.value for one in parts)
        share = total / sums.plain_ms.value
        told = (
            " + ".join(one.words() for one in parts)
            + f": {shown(share)} of a plain step ({shown(sums.plain_ms.value)} ms)."
        )
        seen = cited(of_figures(*parts, sums.plain_ms))
        one_step = case.spec.number(Quantity.DRAFT_STEP_MS)
        heavy = share >= _HEAVY or (one_step is not None and one_step / sums.plain_ms.value >= _HEAVY_STEP)
        expected = _expected(case)
        cycle = sums.cycle_ms
        far = expected is not None and cycle is not None and total - expected >= _OF_CYCLE * cycle.value
        if expected is not None and (heavy or far):
            return self._against_expected(case, total, expected, told, seen)
        if heavy:
            floor = case.spec.number(Quantity.FLOOR_MS, phase="draft")
            removable = total - floor if floor is not None and floor < total else None
            return self.confirmed(
                told + (f" Its floor is {shown(floor)} ms." if floor is not None else ""),
                ms=total,
                part="draft",
                confidence=0.8,
                evidence=seen,
                fix="fewer drafts, a smaller draft or draft vocabulary, graphs for its forwards, one rank "
                "instead of many",
                next_step=advise(case, "draft_graph"),
                predicted_speedup=sums.speedup_without(removable),
            )
        if share <= _LIGHT:
            return self.refuted(told, evidence=seen)
        return self.suspected(told, evidence=seen, confidence=0.3, next_step=advise(case, "draft_graph"))

    def _against_expected(
        self, case: Case, total: float, expected: float, told: str, seen: tuple[Evidence, ...]
    ) -> Finding:
        """Slow for its size, or just large."""
        others = _collectives(case)
        excess = total - expected - others
        told += f" By the target's own rate a draft of this size would take {shown(expected)} ms."
        told += f" Its collectives take {shown(others)} ms more than alone, waiting included." if others else ""
        seen = cited(seen, case.spec.all(Quantity.EXPECTED_MS))
        slower = _SLOWER if case.tp in (None, 1) else _SLOWER_OVER_RANKS
        if excess >= slower * expected and excess >= _LIGHT * total:
            return self.confirmed(
                told,
                ms=excess,
                part="draft",
                confidence=0.8,
                evidence=seen,
                fix="find what slows the draft down: its passes take far longer than its weights explain "
                "(a missing graph, a slow kernel, work on the host between its steps)",
                next_step=advise(case, "draft_graph"),
                predicted_speedup=case.sums.speedup_without(excess),
            )
        if case.sums.pays or others > 0.5 * (total - expected):
            return self.refuted(f"{told} That is its size.", evidence=seen, confidence=0.7)
        return self.suspected(
            f"{told} That is its size: a smaller draft, a smaller draft vocabulary or fewer drafts cost less.",
            evidence=seen,
            confidence=0.4,
        )


def _expected(case: Case) -> float | None:
    """Milliseconds that the draft's phases would take at the rate of the target's layers; None where not measured."""
    found = [one.number for one in case.spec.all(Quantity.EXPECTED_MS) if one.scope.phase in ("draft", "extend")]
    return sum(number or 0.0 for number in found) if found else None


def _collectives(case: Case) -> float:
    """What the draft's collectives take beyond the same calls alone, waiting for other ranks included."""
    total = 0.0
    for phase in ("draft", "extend"):
        served = case.spec.number(Quantity.COLLECTIVE_MS, phase=phase, variant=None)
        alone = case.spec.number(Quantity.COLLECTIVE_MS, phase=phase, variant=ALONE)
        waited = case.spec.number(Quantity.COLLECTIVE_WAIT_MS, phase=phase, name=OF_RANK_0)
        total += max(0.0, (served or 0.0) - (alone or 0.0)) + (waited or 0.0)
    return total
