"""A small draft spread over ranks: its collectives cost more than its mathematics."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, matters
from alula.explain.rates import best
from alula.profile.evidence import Evidence, Label
from alula.profile.quantities import Quantity


class DraftTensorParallel(Hypothesis):
    id = "draft_tensor_parallel"
    title = "The draft runs tensor-parallel where one rank would do"
    predicts = "draft steps that get slower with more ranks; a win on one rank that becomes a loss on several"
    refuted_by = "a draft on one rank"
    needs = ("draft_tp", "draft_tp_in_force", "tp", "draft_step_ms")

    def judge(self, case: Case) -> Finding:
        asked, in_force = case.spec.first(Quantity.DRAFT_TP), case.spec.first(Quantity.DRAFT_TP_IN_FORCE)
        ranks = case.tp
        step = advise(case, "draft_tp")
        if ranks == 1 and not _by_tp(case):
            return self.refuted("There is one rank.", evidence=cited(case.both(Quantity.TP)))
        if asked is not None and in_force is not None and asked.number != in_force.number:
            return self.confirmed(
                f"The draft was asked to run on {asked.value} rank(s) and runs on {in_force.value}: the "
                f"option had no effect.",
                evidence=cited(asked, in_force),
                part="draft",
                confidence=0.85,
                fix="a release in which the option takes effect",
                next_step=step,
            )
        if (found := _signature(case)) is not None:
            return self.confirmed(
                found[0], evidence=found[1], confidence=0.6, part="draft", fix=step, next_step=step
            )
        return self._spread(case, in_force or asked, step)

    def _spread(self, case: Case, spread: Evidence | None, step: str) -> Finding:
        """By the number of ranks alone. spread: what tells the draft's."""
        ranks = case.tp
        one, plain = case.spec.number(Quantity.DRAFT_STEP_MS), case.sums.plain_ms
        if spread is not None and spread.number == 1:
            return self.refuted("The draft is asked to run on one rank.", evidence=cited(spread), confidence=0.6)
        wide = spread is not None and (spread.number or 1) > 1
        slow = one is not None and plain is not None and one > 0.2 * plain.value
        if wide or (slow and (ranks or 1) > 1):
            count = int(spread.number or 1) if spread is not None else ranks
            return self.suspected(
                f"The draft runs over {count} ranks: each draft step pays two all-reduces a layer and its "
                f"head's gather.",
                evidence=cited(spread, case.both(Quantity.TP), case.spec.all(Quantity.DRAFT_STEP_MS)),
                confidence=0.45 if slow else 0.3,
                part="draft",
                fix=step,
                next_step=f"{step}; then compare the time of one draft step",
            )
        if (whole := _whole_model(case)) and (ranks or 1) > 1 and matters(case):
            return self.suspected(
                f"The draft is a model of its own, and nothing says that it is kept off the {ranks} ranks: each of its "
                "layers then pays two all-reduces, which take longer than its mathematics.",
                evidence=cited(whole, case.spec.all(Quantity.DRAFT_MODEL), case.both(Quantity.TP)),
                confidence=0.4,
                weight=2.1,
                part="draft",
                next_step=f"{step}; then compare the time of one draft step",
            )
        return self.unknown("Over how many ranks the draft runs is not known.", next_step=step)


def _whole_model(case: Case) -> tuple[Evidence, ...]:
    """What says that a whole small model drafts, and not a head of one layer."""
    found = case.spec.all(Quantity.ALGORITHM)
    return tuple(one for one in found if str(one.value).lower() in ("standalone", "draft_model"))


def _by_tp(case: Case) -> dict[int, dict[Label, Evidence]]:
    """Ranks -> the rate (or the request's time) of each side."""
    found: dict[int, dict[Label, Evidence]] = {}
    for run in (case.plain, case.spec, *case.others):
        ranks = run.number(Quantity.TP)
        rate = _rate(run)
        if ranks and rate is not None and run.label is not Label.UNKNOWN:
            found.setdefault(int(ranks), {})[run.label] = rate
    return found


def _rate(run: RunFacts) -> Evidence | None:
    for quantity in (Quantity.TOKENS_PER_S, Quantity.SPEC_TOKENS_PER_S, Quantity.PLAIN_TOKENS_PER_S):
        if (found := best(run, quantity)) is not None:
            return found
    return best(run, Quantity.REQUEST_MS)


def _signature(case: Case) -> tuple[str, tuple[Evidence, ...]] | None:
    """A win on few ranks that is a loss on more."""
    gains: dict[int, tuple[float, tuple[Evidence, ...]]] = {}
    for ranks, sides in _by_tp(case).items():
        plain, spec = sides.get(Label.BASELINE), sides.get(Label.SPECULATIVE)
        if plain is None or spec is None or not plain.number or not spec.number:
            continue
        gain = spec.number / plain.number
        gains[ranks] = (1 / gain if plain.quantity is Quantity.REQUEST_MS else gain, (plain, spec))
    if len(gains) < 2:
        return None
    few, many = min(gains), max(gains)
    if gains[few][0] > 1.0 > gains[many][0]:
        text = (
            f"Speculation is {shown(gains[few][0])}x on {few} rank(s) and {shown(gains[many][0])}x on {many}: "
            f"what the draft "
            "pays for collectives grows with the ranks, its share of the work does not."
        )
        return text, cited(gains[few][1], gains[many][1])
    return None
