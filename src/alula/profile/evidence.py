"""Evidence: one thing that somebody measured, printed or configured, with where it stood.

Knows no engine and draws no conclusion. Everything that `explain` says cites these.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from alula.profile.quantities import Quantity, unit_of

MAX_TEXT = 400  # characters of the line that are kept
MAX_VALUE = 2000  # of a value that is text
Value = bool | int | float | str
WINDOW_MEAN = "window"  # variant of a mean over a stretch of a run: for trends, never the run's value


class Label(StrEnum):
    """Which side of the comparison a run is."""

    BASELINE = "baseline"
    SPECULATIVE = "speculative"
    UNKNOWN = "unknown"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """For what a value holds. Absent fields are unknown or do not apply.

    phase: draft | verify | extend | accept | schedule | emit | other; decode for a plain step; prefill; target where a
    line does not tell decode from verify. position: of a draft, 0 first. name: of a variable, a flag, a backend, a
    throttle reason, a pair of GPUs. variant: of an experiment ("eager", "no_collectives"). rank: of the group, or the
    GPU's index; worker: the tag as printed ("TP3", "pid=420") where no rank is known.
    """

    phase: str | None = None
    position: int | None = None
    batch: int | None = None
    width: int | None = None
    num_bytes: int | None = None
    kv_tokens: int | None = None
    steps: int | None = None  # of one row of a sweep over draft lengths
    name: str | None = None
    variant: str | None = None
    rank: int | None = None
    worker: str | None = None

    def fits(self, **wanted: object) -> bool:
        """Whether every named field has that value."""
        return all(getattr(self, name) == value for name, value in wanted.items())

    def words(self) -> str:
        """The set fields, for people: "phase verify, width 3"."""
        pairs = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return ", ".join(f"{name} {value}" for name, value in pairs if value is not None)


NOWHERE = Scope()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One value with its origin.

    value: a median where num_samples > 1, and low..high then holds the median in 95 of 100 cases. early, late: medians
    of the first and the last third of the samples, where there are enough. source: a file, "typed", "record" or
    "experiment NAME"; line: from 1. text: the line as found, cut to MAX_TEXT.
    """

    quantity: Quantity
    value: Value
    scope: Scope = NOWHERE
    num_samples: int = 1
    low: float | None = None
    high: float | None = None
    early: float | None = None
    late: float | None = None
    source: str = ""
    line: int | None = None
    text: str = ""
    run: Label = Label.UNKNOWN

    @property
    def unit(self) -> str:
        return unit_of(self.quantity)

    @property
    def number(self) -> float | None:
        """The value as a finite number; None for words and yes-or-no."""
        if isinstance(self.value, bool | str):
            return None
        number = float(self.value)
        return number if math.isfinite(number) else None

    def words(self) -> str:
        """What it says, in one line: "verify_ms 29 ms (server.log:12)"."""
        where = f" ({self.source}{f':{self.line}' if self.line else ''})" if self.source else ""
        scope = f" [{self.scope.words()}]" if self.scope.words() else ""
        shown = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.quantity}{scope} {shown}{f' {self.unit}' if self.unit else ''}{where}"
