"""Two runs side by side: each number that both have, and whether they differ by more than their spread.

Knows numbers only. What a difference means is the business of hypotheses.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from alula.profile.evidence import Evidence, Scope
from alula.profile.quantities import Quantity


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity in one scope. apart: the intervals of the two medians do not touch; None where one has none."""

    quantity: Quantity
    scope: Scope
    left: Evidence
    right: Evidence
    apart: bool | None

    @property
    def ratio(self) -> float | None:
        """Right over left; None where left is 0."""
        return (self.right.number or 0.0) / self.left.number if self.left.number else None


def compare(left: Iterable[Evidence], right: Iterable[Evidence]) -> tuple[Difference, ...]:
    """Every number that both sides have in the same scope, in the order of the vocabulary."""
    ours, theirs = _by_key(left), _by_key(right)
    order = {quantity: position for position, quantity in enumerate(Quantity)}
    keys = sorted(ours.keys() & theirs.keys(), key=lambda key: (order[key[0]], key[1].words()))
    return tuple(
        Difference(
            quantity=quantity,
            scope=scope,
            left=ours[quantity, scope],
            right=theirs[quantity, scope],
            apart=_apart(ours[quantity, scope], theirs[quantity, scope]),
        )
        for quantity, scope in keys
    )


def _by_key(evidence: Iterable[Evidence]) -> dict[tuple[Quantity, Scope], Evidence]:
    found: dict[tuple[Quantity, Scope], Evidence] = {}
    for one in evidence:
        key = (one.quantity, one.scope)
        if one.number is not None and (key not in found or one.num_samples > found[key].num_samples):
            found[key] = one
    return found


def _apart(left: Evidence, right: Evidence) -> bool | None:
    if left.low is None or left.high is None or right.low is None or right.high is None:
        return None
    return left.high < right.low or right.high < left.low
