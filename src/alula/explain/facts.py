"""Facts of runs as they are found: one run's evidence by quantity, with contradictions kept.

A fact is evidence like any other (an engine's version, k, a variable in a rank); `RunFacts` answers for it. Knows no
engine and draws no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from alula.profile.evidence import NOWHERE, Evidence, Label
from alula.profile.quantities import Quantity


class Contradiction(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more different values of what should be one."""

    quantity: Quantity
    found: tuple[Evidence, ...]

    def words(self) -> str:
        return " against ".join(one.words() for one in self.found)


# Of these a run has one value; others may differ by size, time or load without a contradiction.
SINGLE = (
    Quantity.ENGINE,
    Quantity.MODEL,
    Quantity.ALGORITHM,
    Quantity.STEPS,
    Quantity.NUM_DRAFT_TOKENS,
    Quantity.TOPK,
    Quantity.TP,
    Quantity.GPU,
    Quantity.GRAPHS_DISABLED,
    Quantity.CUSTOM_ALLREDUCE_DISABLED,
)
# Numbers that two sources of one run may measure apart, but not this far.
_MEASURED = (Quantity.TOKENS_PER_CYCLE, Quantity.PLAIN_STEP_MS, Quantity.CYCLE_MS)
FAR_APART = 1.3


def same_value(left: object, right: object) -> bool:
    """Whether two spellings mean one value: a path and its last part, another case, a name within a longer one."""
    names = [str(value).strip().strip("\"'").lower().rstrip("/").rsplit("/", 1)[-1] for value in (left, right)]
    squeezed = [name.replace("-", "").replace("_", "").replace(" ", "") for name in names]
    if squeezed[0] == squeezed[1]:
        return True
    numbers = any(name.replace(".", "").isdecimal() for name in names)
    return (
        not numbers
        and all(len(name) > 3 for name in squeezed)
        and (squeezed[0] in squeezed[1] or squeezed[1] in squeezed[0])
    )


class RunFacts:
    """Everything known of one run. Evidence stays in the order in which it was found."""

    def __init__(self, evidence: Iterable[Evidence] = (), *, label: Label = Label.UNKNOWN, name: str = "") -> None:
        self.label = label
        self.name = name
        self._by_quantity: dict[Quantity, list[Evidence]] = {}
        for one in evidence:
            self.add(one)

    def add(self, evidence: Evidence) -> None:
        self._by_quantity.setdefault(evidence.quantity, []).append(evidence)

    def __iter__(self) -> Iterator[Evidence]:
        return (one for found in self._by_quantity.values() for one in found)

    def __len__(self) -> int:
        return sum(map(len, self._by_quantity.values()))

    def all(self, quantity: Quantity, **scope: object) -> tuple[Evidence, ...]:
        """Every piece of evidence of a quantity whose scope has these values."""
        return tuple(one for one in self._by_quantity.get(quantity, ()) if one.scope.fits(**scope))

    def first(self, quantity: Quantity, **scope: object) -> Evidence | None:
        """The piece with most samples; of equals the first found."""
        found = self.all(quantity, **scope)
        return max(found, key=lambda one: one.num_samples) if found else None

    def number(self, quantity: Quantity, **scope: object) -> float | None:
        one = self.first(quantity, **scope)
        return one.number if one else None

    def text(self, quantity: Quantity, **scope: object) -> str | None:
        one = self.first(quantity, **scope)
        return str(one.value) if one else None

    def yes(self, quantity: Quantity, **scope: object) -> bool | None:
        """A yes-or-no; None where nothing was found or where findings differ."""
        values = {bool(one.value) for one in self.all(quantity, **scope)}
        return values.pop() if len(values) == 1 else None

    def contradictions(self) -> tuple[Contradiction, ...]:
        """What should be one value and is several, and measurements of two sources that are far apart."""
        found = []
        for quantity in SINGLE:
            distinct: list[Evidence] = []
            for one in self.all(quantity):
                if one.scope == NOWHERE and not any(same_value(one.value, known.value) for known in distinct):
                    distinct.append(one)
            if len(distinct) > 1:
                found.append(Contradiction(quantity=quantity, found=tuple(distinct)))
        return (*found, *filter(None, (self._far_apart(quantity) for quantity in _MEASURED)))

    def _far_apart(self, quantity: Quantity) -> Contradiction | None:
        by_source = {one.source: one for one in self.all(quantity) if one.scope == NOWHERE and one.number}
        if len(by_source) < 2:
            return None
        low, high = (pick(by_source.values(), key=lambda one: one.number or 0.0) for pick in (min, max))
        if (high.number or 0.0) <= FAR_APART * (low.number or 0.0):
            return None
        return Contradiction(quantity=quantity, found=(low, high))
