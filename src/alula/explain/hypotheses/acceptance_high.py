"""Acceptance too good to be true: a looping or copied text, or acceptance that is forced."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.evidence import WINDOW_MEAN, Evidence
from alula.profile.quantities import Quantity

_LOOPING, _NEARLY_ALL = 0.1, 0.95
_MUCH_MORE = 1.4
_FIX = "judge speculation on real prompts with the chat template"


class AcceptanceTooGood(Hypothesis):
    id = "acceptance_too_good"
    title = "Acceptance is too good: a looping or copied text, or acceptance that is forced"
    predicts = "nearly every draft is accepted; few distinct tokens in the output"
    refuted_by = "tokens per cycle clearly under k + 1, or output without repetition"
    needs = ("tokens_per_cycle", "steps", "unique_token_share", "dataset")

    def judge(self, case: Case) -> Finding:
        tokens, top = case.sums.tokens_per_cycle, case.sums.ceiling
        unique = case.spec.first(Quantity.UNIQUE_TOKEN_SHARE)
        looping = unique is not None and unique.number is not None and unique.number < _LOOPING
        if (rows := _random_row(case)) is not None:
            return self.confirmed(rows[0], tier=Tier.FAULT, evidence=rows[1], confidence=0.65, fix=_FIX)
        if tokens is None or top is None or top.value <= 1 or tokens.at_least:
            if looping:
                return self.suspected("The output repeats itself.", evidence=cited(unique), tier=Tier.FAULT)
            return self.unknown("Tokens per cycle or k is not known.")
        share = (tokens.value - 1) / (top.value - 1)
        seen = cited(of_figures(tokens, top), unique, _random_data(case))
        told = f"{shown(tokens.value)} of at most {shown(top.value)} tokens per cycle."
        fields = {
            "tier": Tier.FAULT,
            "evidence": seen,
            "fix": _FIX,
        }
        if share < _NEARLY_ALL and not looping:
            return self.refuted(f"Nothing unusual: {told}", evidence=seen)
        if share > 1.02:
            return self.suspected(f"{told} More than k + 1 cannot be: k or the counter is read wrongly.", **fields)
        step = "look at the output: how many distinct tokens and pairs it has"
        if looping or _random_data(case) or share >= 0.999:
            why = "the output repeats itself" if looping else "the prompts are random"
            if not looping and not _random_data(case):
                why = "every single draft is accepted, which real text does not do (a loop, or forced acceptance)"
            return self.confirmed(
                f"{told} This is an artefact: {why}. It says nothing about real traffic.",
                confidence=0.85 if looping else 0.7,
                next_step=step,
                **fields,
            )
        return self.suspected(
            f"{told} Unless the text is very easy, it loops or is copied from the prompt.", next_step=step, **fields
        )


def _random_data(case: Case) -> tuple[Evidence, ...]:
    return tuple(one for one in case.spec.all(Quantity.DATASET) if "random" in str(one.value).lower())


def _random_row(case: Case) -> tuple[str, tuple[Evidence, ...]] | None:
    """A table whose random prompts yield far more tokens per cycle than its other rows."""
    rows = [one for one in case.spec.all(Quantity.TOKENS_PER_CYCLE) if one.scope.variant and one.number]
    random = [one for one in rows if "random" in (one.scope.variant or "").lower()]
    others = [one for one in rows if one not in random and one.scope.variant != WINDOW_MEAN]
    if not random or not others:
        return None
    high, low = max(random, key=lambda one: one.number or 0.0), max(others, key=lambda one: one.number or 0.0)
    if (high.number or 0.0) - 1 < _MUCH_MORE * ((low.number or 0.0) - 1):
        return None
    text = (
        f"Random prompts yield {shown(high.number or 0.0)} tokens per cycle, others at most "
        f"{shown(low.number or 0.0)}: the "
        "output behind random prompts most likely loops. It says nothing about real traffic."
    )
    return text, (high, low)
