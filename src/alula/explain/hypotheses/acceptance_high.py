"""Acceptance too good to be true: a looping or copied text, or acceptance that is forced."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_LOOPING, _NEARLY_ALL = 0.1, 0.95


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
            "fix": "judge speculation on real prompts with the chat template",
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
