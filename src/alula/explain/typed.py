"""Numbers typed by hand as a source like any other, and what does not fit together among them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from alula.core.errors import InvalidOption
from alula.explain.figures import shown
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

SOURCE = "typed"
CONFLICT = "conflict: "  # how a note on numbers that do not fit together begins
_TOLERANCE = 0.05
_LARGEST = 1e12


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """What the user knows. None is not given. Raises InvalidOption for numbers that no run can have."""

    plain_tps: float | None = None
    spec_tps: float | None = None
    steps: int | None = None
    tokens_per_cycle: float | None = None
    plain_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    cycle_ms: float | None = None
    model: str | None = None
    gpu: str | None = None
    tp: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not 0 < value < _LARGEST:
                raise InvalidOption(
                    f"--{name.replace('_', '-')} is {value}; expected a number above 0 and under {_LARGEST:.0e}"
                )
        if self.tokens_per_cycle is not None and self.tokens_per_cycle < 1:
            raise InvalidOption(
                f"--tokens-per-cycle is {self.tokens_per_cycle}; a cycle yields 1 or more (accepted drafts + 1)"
            )

    @property
    def given(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


_QUANTITIES = {
    "plain_tps": Quantity.PLAIN_TOKENS_PER_S,
    "spec_tps": Quantity.SPEC_TOKENS_PER_S,
    "steps": Quantity.STEPS,
    "tokens_per_cycle": Quantity.TOKENS_PER_CYCLE,
    "plain_ms": Quantity.PLAIN_STEP_MS,
    "verify_ms": Quantity.VERIFY_MS,
    "draft_ms": Quantity.DRAFT_MS,
    "cycle_ms": Quantity.CYCLE_MS,
    "model": Quantity.MODEL,
    "gpu": Quantity.GPU,
    "tp": Quantity.TP,
    "batch": Quantity.BATCH,
}


def typed_sink(typed: Typed) -> Sink:
    """The typed numbers as evidence, and their conflicts as notes."""
    sink = Sink(SOURCE)
    for name, quantity in _QUANTITIES.items():
        value = getattr(typed, name)
        if value is not None:
            option = f"--{name.replace('_', '-')} {value}"
            sink.add(quantity, value, text=option, reader=SOURCE)
    for conflict in conflicts(typed):
        sink.note(conflict)
    return sink


def conflicts(typed: Typed) -> Iterator[str]:
    """What cannot all be true of one run, in words."""
    batch = typed.batch or 1
    if typed.plain_tps and typed.plain_ms:
        implied = 1000.0 * batch / typed.plain_tps
        yield from _apart("--plain-ms", typed.plain_ms, implied, f"1000 x {batch} / --plain-tps", " ms")
    if typed.spec_tps and typed.cycle_ms and typed.tokens_per_cycle:
        implied = typed.spec_tps * typed.cycle_ms / (1000.0 * batch)
        yield from _apart(
            "--tokens-per-cycle", typed.tokens_per_cycle, implied, "--spec-tps x --cycle-ms / (1000 x batch)", ""
        )
    if typed.tokens_per_cycle and typed.steps and typed.tokens_per_cycle > typed.steps + 1:
        yield (
            f"{CONFLICT}--tokens-per-cycle {shown(typed.tokens_per_cycle)} is above what --steps {typed.steps} can "
            f"yield ({typed.steps + 1})"
        )
    parts = (typed.verify_ms or 0.0) + (typed.draft_ms or 0.0)
    if typed.cycle_ms and parts > typed.cycle_ms * (1 + _TOLERANCE):
        yield (f"{CONFLICT}verify and draft together ({shown(parts)} ms) exceed --cycle-ms {shown(typed.cycle_ms)}")
    if typed.spec_tps and typed.steps and not typed.cycle_ms and parts:
        implied = typed.spec_tps * parts / (1000.0 * batch)
        if implied > (typed.steps + 1) * (1 + _TOLERANCE):
            yield (
                f"{CONFLICT}--spec-tps with these phases implies at least {shown(implied)} tokens per cycle, "
                f"more than "
                f"--steps {typed.steps} can yield"
            )


def _apart(option: str, value: float, implied: float, formula: str, unit: str) -> Iterator[str]:
    if abs(value - implied) > _TOLERANCE * max(value, implied):
        yield f"{CONFLICT}{option} is {shown(value)}{unit}, but {formula} gives {shown(implied)}{unit}"
