"""Facts of runs as they are found: one run's evidence by quantity, with contradictions kept.

A fact is evidence like any other (an engine's version, k, a variable in a rank); `RunFacts` answers for it. Knows no
engine and draws no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from alula.profile.evidence import Evidence, Label
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
    Quantity.ENGINE_VERSION,
    Quantity.MODEL,
    Quantity.DRAFT_MODEL,
    Quantity.ALGORITHM,
    Quantity.STEPS,
    Quantity.NUM_DRAFT_TOKENS,
    Quantity.TOPK,
    Quantity.TP,
    Quantity.GPU,
    Quantity.DTYPE,
    Quantity.GRAPHS_DISABLED,
    Quantity.CUSTOM_ALLREDUCE_DISABLED,
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
        """What should be one value and is several."""
        found = []
        for quantity in SINGLE:
            by_value: dict[str, Evidence] = {}
            for one in self.all(quantity):
                by_value.setdefault(str(one.value).lower(), one)
            if len(by_value) > 1:
                found.append(Contradiction(quantity=quantity, found=tuple(by_value.values())))
        return tuple(found)
