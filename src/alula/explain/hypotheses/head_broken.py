"""A head that is not weak but broken: nothing, or next to nothing, of what it proposes is accepted.

Bands of the first position's acceptance, from published heads and published mistakes: up to 5 % something is plainly
wrong (layers, algorithm, vocabulary map), 5 to 15 % the features are near but not right (a layer off by one), from 30 %
on the head works, weakly or well. Bands, not laws, and the text says so.
"""

from __future__ import annotations

import re

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited, of_figures
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_WRONG, _NEAR, _WORKS = 0.05, 0.15, 0.3


class HeadBroken(Hypothesis):
    id = "head_broken"
    title = "The head is broken or wired wrongly: almost nothing of what it proposes is accepted"
    predicts = "acceptance at position 0 near 0, tokens per cycle near 1.00 on any text"
    refuted_by = "acceptance at position 0 of 30 % or more"
    needs = ("acceptance", "tokens_per_cycle", "draft_architecture", "algorithm", "aux_layers")

    def judge(self, case: Case) -> Finding:
        first, known_from = _first_position(case)
        causes, clues = _clues(case)
        told = " ".join(causes)
        if first is None:
            if causes:
                return self.suspected(told, tier=Tier.FAULT, evidence=clues, next_step=advise(case, "acceptance"))
            return self.unknown("Acceptance is not known.", next_step=advise(case, "acceptance"))
        seen = cited(known_from, clues)
        if first > _WORKS:
            return self.refuted(
                f"Position 0 is accepted in {100 * first:.0f} % of the cycles: the head works.", evidence=known_from
            )
        if first > _NEAR:
            return self.unknown(
                f"Position 0 is accepted in {100 * first:.0f} % of the cycles: weak, or slightly wrong. {told}",
                evidence=seen,
                confidence=0.3 if causes else 0.2,
                suspect=bool(causes),
                next_step=advise(case, "acceptance"),
            )
        text = f"{_degree(first)} {told}{_then(case)}"
        fix = _fix(case, causes)
        if first > _WRONG:
            return self.suspected(
                text, tier=Tier.FAULT, evidence=seen, confidence=0.55, fix=fix, next_step=_check(case)
            )
        return self.confirmed(
            text,
            tier=Tier.FAULT,
            evidence=seen,
            confidence=0.9 if causes else 0.8,
            fix=fix,
            next_step=_check(case),
        )


def _first_position(case: Case) -> tuple[float | None, tuple[Evidence, ...]]:
    """The acceptance at position 0, or an upper bound of it from tokens per cycle (t - 1)."""
    if case.sums.by_position:
        return case.sums.by_position[0], case.spec.all(Quantity.ACCEPTANCE, position=0)
    tokens = case.sums.tokens_per_cycle
    if tokens is None or tokens.at_least or (case.sums.ceiling is None and tokens.value > 1 + _NEAR):
        return (None, ()) if tokens is None or tokens.value < 1.5 or tokens.at_least else (0.5, of_figures(tokens))
    # Of k drafts, the first is accepted in at least (t - 1) / k and at most t - 1 of the cycles.
    if tokens.value - 1 <= _NEAR:
        return max(0.0, tokens.value - 1), of_figures(tokens)
    share = (tokens.value - 1) / max(1, case.sums.steps or 1)
    return max(share, min(tokens.value - 1, 1.0) * 0.75), of_figures(tokens)


def _degree(first: float) -> str:
    if first == 0.0:
        return "Not one draft is accepted (1.00 tokens per cycle): that is configuration, not quality."
    if first <= _WRONG:
        return f"Position 0 is accepted in {100 * first:.1f} % of the cycles, the band of wrong features or maps."
    return (
        f"Position 0 is accepted in {100 * first:.1f} % of the cycles: the features are near but not right, "
        f"as with "
        "aux layers that are off by one (a band, not a proof)."
    )


def _clues(case: Case) -> tuple[list[str], tuple[Evidence, ...]]:
    """Things in the configuration that are known to break heads."""
    causes: list[str] = []
    seen: list[Evidence] = []
    algorithm, head = case.spec.first(Quantity.ALGORITHM), _eagle3_head(case)
    if algorithm is not None and head is not None and str(algorithm.value).lower() in ("eagle", "eagle2"):
        causes.append(
            f"The head is EAGLE-3 ({head.value}) but the algorithm is {algorithm.value}, which hands it the final "
            "hidden state instead of the three aux layers."
        )
        seen += [algorithm, head]
    guessed = case.spec.first(Quantity.AUX_LAYERS_GUESSED)
    if guessed is not None and guessed.value is True:
        causes.append("The head's config names no aux layers, so the engine guesses them: 2, L/2 and L-3.")
        seen.append(guessed)
    if case.spec.yes(Quantity.CHAT_TEMPLATE) is False:
        causes.append("Prompts went without the chat template that heads are trained with.")
        seen += case.spec.all(Quantity.CHAT_TEMPLATE)
    return causes, tuple(seen)


def _eagle3_head(case: Case) -> Evidence | None:
    for quantity in (Quantity.DRAFT_ARCHITECTURE, Quantity.DRAFT_MODEL):
        for one in case.spec.all(quantity):
            if re.search(r"eagle-?3", str(one.value), re.IGNORECASE):
                return one
    return None


def _then(case: Case) -> str:
    """The second stage: what a working head would still have to reach."""
    needed = case.sums.break_even
    if needed is None or needed.value <= 1.05:
        return ""
    return (
        f" A working head alone may not be enough: it must yield more than {shown(needed.value)} tokens per "
        f"cycle to pay, "
        "so read the costs of the cycle too."
    )


def _fix(case: Case, causes: list[str]) -> str:
    if any("algorithm is" in cause for cause in causes):
        return advise(case, "algorithm")
    if any("aux layers" in cause for cause in causes):
        return "write eagle_aux_hidden_state_layer_ids into the head's config, as it was trained"
    return "check aux layers (engines count them from 0 or 1), vocabulary map, feedback and template of the head"


def _check(case: Case) -> str:
    return (
        "`alula check MODEL --head HEAD` tests the head against its target; or run the same head in another "
        "engine and "
        "compare position 0"
    )
