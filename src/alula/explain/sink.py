"""Where readers put what they find: bounded in memory, kept apart by run, with file and line.

One sink serves one source (a file, stdin, a URL). Several readers may share it while they scan the same lines. Knows
no format. What repeats is counted, what is measured many times is summarised; so a log of any length stays small.
"""

from __future__ import annotations

import math

import msgspec

from alula.explain.facts import RunFacts
from alula.profile.evidence import MAX_TEXT, MAX_VALUE, Evidence, Label, Scope, Value
from alula.profile.quantities import Quantity
from alula.profile.samples import Samples

MAX_DISTINCT = 512  # values of one quantity in one run; later ones are counted only
MAX_SERIES = 256  # scopes of one quantity for which samples are summarised
MAX_RUNS = 64
_LARGEST_NUMBER = 1e18


class _Series(msgspec.Struct):
    samples: Samples
    first: Evidence


class _Run:
    """One run while it is being read."""

    def __init__(self, label: Label, engine: str | None, name: str) -> None:
        self.label, self.engine, self.name = label, engine, name
        self.found: dict[tuple[Quantity, Value, Scope], Evidence] = {}
        self.num_distinct: dict[Quantity, int] = {}
        self.series: dict[tuple[Quantity, Scope], _Series] = {}


class Sink:
    """Collects what readers find in one source.

    label: what the user said of the source (--baseline), else UNKNOWN. `add` is for facts and single numbers, `sample`
    for what stands in a log again and again. Both take `engine` where the format tells it, so that two engines'
    interleaved logs stay two runs; without it a value belongs to the run under way.
    """

    def __init__(self, source: str, label: Label = Label.UNKNOWN) -> None:
        self.source, self._label = source, label
        self.recognised: dict[str, int] = {}  # reader's name -> how many values it found
        self.notes: list[str] = []
        self._runs: list[_Run] = []
        self._current: dict[str | None, _Run] = {}

    @property
    def num_runs(self) -> int:
        """How many runs have begun; a reader sees from it whether somebody else began one since it looked last."""
        return len(self._runs)

    def begin_run(self, engine: str | None = None, *, label: Label | None = None, name: str = "") -> None:
        """A new run begins here (a start-up banner, the header of a second table). Later values belong to it.

        label: where the text itself says which side it is; the user's word on the source wins.
        """
        if len(self._runs) >= MAX_RUNS:
            self.note(f"more than {MAX_RUNS} runs in {self.source}; the rest is counted to the last one")
            return
        chosen = self._label if self._label is not Label.UNKNOWN else label or Label.UNKNOWN
        run = _Run(chosen, engine, name)
        self._runs.append(run)
        self._current[engine] = self._current[None] = run

    def add(
        self,
        quantity: Quantity,
        value: Value,
        *,
        line: int | None = None,
        text: str = "",
        engine: str | None = None,
        reader: str = "",
        scope: Scope | None = None,
        count: int = 1,
    ) -> None:
        """One value. The same again is counted. Numbers that are not finite or beyond 1e18 are dropped.

        count: how often it stood there, for a reader that counted by itself.
        """
        if not _usable(value):
            return
        scope = scope or Scope()
        value = value[:MAX_VALUE] if isinstance(value, str) else value
        run = self._run(engine)
        self._recognise(reader)
        key = (quantity, value, scope)
        if (known := run.found.get(key)) is not None:
            run.found[key] = msgspec.structs.replace(known, num_samples=known.num_samples + count)
            return
        run.num_distinct[quantity] = run.num_distinct.get(quantity, 0) + 1
        if run.num_distinct[quantity] == MAX_DISTINCT + 1:
            self.note(f"more than {MAX_DISTINCT} values of {quantity} in {self.source}; later ones are left out")
        if run.num_distinct[quantity] <= MAX_DISTINCT:
            one = self._evidence(run, quantity, value, scope, line, text)
            run.found[key] = msgspec.structs.replace(one, num_samples=count)

    def sample(
        self,
        quantity: Quantity,
        value: float,
        *,
        line: int | None = None,
        text: str = "",
        engine: str | None = None,
        reader: str = "",
        scope: Scope | None = None,
    ) -> None:
        """One of many measurements of a quantity in a scope: becomes a median with an interval and a trend."""
        if not _usable(value):
            return
        series = self._series(quantity, value, scope or Scope(), line, text, engine)
        self._recognise(reader)
        if series is not None:
            series.samples.add(float(value))

    def collected(
        self,
        quantity: Quantity,
        samples: Samples,
        *,
        line: int | None = None,
        text: str = "",
        engine: str | None = None,
        reader: str = "",
        scope: Scope | None = None,
    ) -> None:
        """A whole series that a reader gathered by itself, since millions of single calls would take too long.

        line and text: of the first sample. A series that is there already goes on with what was kept of these.
        """
        if not samples.kept:
            return
        series = self._series(quantity, samples.kept[0], scope or Scope(), line, text, engine)
        self._recognise(reader)
        if series is None:
            return
        if series.samples.num_seen == 0:
            series.samples = samples
            return
        for value in samples.kept:
            series.samples.add(value)

    def _series(
        self, quantity: Quantity, value: float, scope: Scope, line: int | None, text: str, engine: str | None
    ) -> _Series | None:
        run = self._run(engine)
        series = run.series.get((quantity, scope))
        if series is None and len(run.series) < MAX_SERIES:
            first = self._evidence(run, quantity, value, scope, line, text)
            series = run.series[quantity, scope] = _Series(samples=Samples(), first=first)
        return series

    def note(self, text: str) -> None:
        """Something to say about the source itself ("cut off in the middle of an object"); said once."""
        if text not in self.notes and len(self.notes) < MAX_SERIES:
            self.notes.append(text)

    def runs(self) -> tuple[RunFacts, ...]:
        """The runs found so far, those without any evidence left out."""
        return tuple(_facts(run) for run in self._runs if run.found or run.series)

    def _run(self, engine: str | None) -> _Run:
        """The engine's own run; else the one under way, if it is nobody else's; else a new one."""
        if (run := self._current.get(engine)) is not None:
            return run
        current = self._current.get(None)
        if current is not None and engine is not None and current.engine is None:
            current.engine = engine
            self._current[engine] = current
            return current
        self.begin_run(engine)
        return self._current.get(engine) or self._runs[-1]

    def _recognise(self, reader: str) -> None:
        if reader:
            self.recognised[reader] = self.recognised.get(reader, 0) + 1

    def _evidence(
        self, run: _Run, quantity: Quantity, value: Value, scope: Scope, line: int | None, text: str
    ) -> Evidence:
        return Evidence(
            quantity=quantity,
            value=value,
            scope=scope,
            source=self.source,
            line=line,
            text=text[:MAX_TEXT],
            run=run.label,
        )


def _usable(value: Value) -> bool:
    if isinstance(value, bool | str):
        return True
    return abs(value) <= _LARGEST_NUMBER if isinstance(value, int) else math.isfinite(value) and abs(value) <= 1e18


def _facts(run: _Run) -> RunFacts:
    facts = RunFacts(run.found.values(), label=run.label, name=run.name or run.engine or "")
    if run.engine and not facts.all(Quantity.ENGINE):
        any_one = next(iter(run.found.values()), None) or next(iter(run.series.values())).first
        facts.add(
            msgspec.structs.replace(
                any_one, quantity=Quantity.ENGINE, value=run.engine, scope=Scope(), num_samples=1
            )
        )
    for series in run.series.values():
        interval, trend = series.samples.interval(), series.samples.trend()
        facts.add(
            msgspec.structs.replace(
                series.first,
                value=interval.median,
                num_samples=interval.num_samples,
                low=interval.low,
                high=interval.high,
                early=trend[0] if trend else None,
                late=trend[1] if trend else None,
            )
        )
    return facts
