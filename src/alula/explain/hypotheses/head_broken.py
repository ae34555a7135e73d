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
from alula.explain.rates import best
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_WRONG, _NEAR, _WORKS = 0.05, 0.15, 0.3
OTHER_LAYERS = "boundaries "  # variant of an acceptance measured with other aux layers
IN_USE = "in use"  # name of such an acceptance where these are the layers that the head reads
_MUCH_BETTER = 1.5
_CLEARLY = 0.02  # of the tokens, by the median of several stretches of text
_LONGEST_CHAIN = 8  # drafts assumed where k is not known, which makes the bound a weak one


class HeadBroken(Hypothesis):
    id = "head_broken"
    title = "The head is broken or wired wrongly: almost nothing of what it proposes is accepted"
    predicts = "acceptance at position 0 near 0, tokens per cycle near 1.00 on any text"
    refuted_by = "acceptance at position 0 of 30 % or more"
    needs = (
        "acceptance",
        "tokens_per_cycle",
        "draft_architecture",
        "algorithm",
        "aux_layers",
        "experiment:other_layers",
    )

    def judge(self, case: Case) -> Finding:
        first, exact, known_from = _first_position(case)
        causes, clues = _clues(case)
        told = " ".join(causes)
        if first is None:
            if causes:
                return self.suspected(told, tier=Tier.FAULT, evidence=clues, next_step=advise(case, "acceptance"))
            return self.unknown("Acceptance is not known.", next_step=advise(case, "acceptance"))
        compared, better = _other_layers(case, first)
        if better is not None:
            return self._wrong_layers(case, compared, better, known_from)
        seen = cited(known_from, clues)
        if first > (_WORKS if exact else _NEAR):
            return self.refuted(
                f"Position 0 is accepted in {'' if exact else 'at least '}{100 * first:.0f} % of the "
                f"cycles: the head works.",
                evidence=known_from,
                confidence=0.85 if exact else 0.7,
            )
        if not exact or first > _NEAR:
            return self._weak(case, first, exact, told, seen)
        text = " ".join(filter(None, [_degree(first), told])) + _then(case)
        fix = _fix(case, causes)
        if first > _WRONG or _one_line(known_from, causes):
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

    def _wrong_layers(
        self, case: Case, first: float, better: Evidence, known_from: tuple[Evidence, ...]
    ) -> Finding:
        gain = _yield_ratio(case, better)
        return self.confirmed(
            f"Reading {better.scope.variant}, position 0 is accepted in "
            f"{100 * (better.number or 0.0):.0f} % of the cycles "
            f"instead of {100 * first:.0f} %: the head reads the wrong layers.",
            tier=Tier.FAULT,
            evidence=cited(known_from, better),
            confidence=0.9,
            fix=f"let the head read {better.scope.variant}",
            predicted_speedup=case.sums.speedup.value * gain if gain and case.sums.speedup else None,
        )

    def _weak(self, case: Case, first: float, exact: bool, told: str, seen: tuple[Evidence, ...]) -> Finding:
        """Neither dead nor known to work."""
        known = (
            f"Position 0 is accepted in {100 * first:.0f} % of the cycles: weak, or slightly wrong."
            if exact
            else f"Position 0 is accepted in at least {100 * first:.0f} % of the cycles; more is not known."
        )
        return self.unknown(
            f"{known} {told}".rstrip(),
            evidence=seen,
            confidence=0.3 if told else 0.1,
            suspect=bool(told),
            next_step=advise(case, "acceptance"),
        )


def _first_position(case: Case) -> tuple[float | None, bool, tuple[Evidence, ...]]:
    """The acceptance at position 0, whether that is exact, and what says so.

    From tokens per cycle t alone: of k drafts the first is accepted in at least (t - 1) / k and at most t - 1 of the
    cycles. The upper bound is taken where it condemns the head, else the lower one.
    """
    if case.sums.by_position and not _positions_are_cut(case):
        return case.sums.by_position[0], True, case.spec.all(Quantity.ACCEPTANCE, position=0)
    tokens = case.sums.tokens_per_cycle
    if tokens is None or tokens.at_least:
        return None, False, ()
    most = max(0.0, tokens.value - 1)
    if most <= _NEAR:
        return (
            (most, True, of_figures(tokens)) if case.sums.steps or most == 0 else (None, False, of_figures(tokens))
        )
    steps = case.sums.steps or _LONGEST_CHAIN
    return most / steps, steps == 1, of_figures(tokens)


def _one_line(known_from: tuple[Evidence, ...], causes: list[str]) -> bool:
    """Whether it hangs on one number of a log, which may be cut off, and no setting explains it."""
    log = [one for one in known_from if one.quantity is Quantity.TOKENS_PER_CYCLE and "accept len" in one.text]
    return bool(log) and not causes and all(one.num_samples < 3 for one in log)


def _positions_are_cut(case: Case) -> bool:
    """Whether tokens per cycle, printed beside them, are more than these positions could yield: a damaged line."""
    printed = best(case.spec, Quantity.TOKENS_PER_CYCLE)
    steps = case.sums.steps or _LONGEST_CHAIN
    if printed is None or printed.number is None or printed.scope.variant is not None:
        return False
    return printed.number - 1 > 1.25 * steps * case.sums.by_position[0] + 0.05


def _other_layers(case: Case, first: float) -> tuple[float, Evidence | None]:
    """(acceptance with the layers in use, an experiment in which the head read others and was accepted far oftener).

    Where the experiment tried the layers in use too, on the same tokens, a gain in nearly every stretch of text is
    enough; else it must be a large one.
    """
    tried = [
        one
        for one in case.spec.all(Quantity.ACCEPTANCE, position=0)
        if (one.scope.variant or "").startswith(OTHER_LAYERS) and one.number is not None
    ]
    in_use = next((one for one in tried if one.scope.name == IN_USE), None)
    others = [one for one in tried if one is not in_use]
    best_one = max(others, key=lambda one: one.number or 0.0, default=None)
    if best_one is None:
        return first, None
    most = best_one.number or 0.0
    if in_use is None:
        return first, best_one if most >= max(_MUCH_BETTER * first, first + 0.1) else None
    gain = case.spec.first(Quantity.ACCEPTANCE_GAIN, variant=best_one.scope.variant)
    sure = gain is not None and gain.low is not None and gain.low > 0 and (gain.number or 0.0) > _CLEARLY
    return in_use.number or 0.0, best_one if sure else None


def _yield_ratio(case: Case, better: Evidence) -> float | None:
    """Tokens per cycle with the better layers over those with the layers in use, where both were tried."""
    tried = case.spec.all(Quantity.TOKENS_PER_CYCLE, variant=better.scope.variant)
    in_use = case.spec.all(Quantity.TOKENS_PER_CYCLE, name=IN_USE)
    if not tried or not in_use or not tried[0].number or not in_use[0].number:
        return None
    return tried[0].number / in_use[0].number


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
