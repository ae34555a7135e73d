"""vLLM's periodic lines: engine throughput and speculative metrics, of V0 and V1, gathered over a run.

Definitions: V1's mean acceptance length is 1 + accepted / drafts; its per-position rates are over all drafts. V0's
counters are cumulative, and its acceptance rate counts matches behind a rejection too, so it is not used.
"""

from __future__ import annotations

import re

import msgspec

from alula.explain.readers.found import Place, number
from alula.explain.sink import Sink
from alula.profile.evidence import Label, Scope
from alula.profile.quantities import Quantity
from alula.profile.samples import Samples

ENGINE = "vllm"
READER = "vLLM metrics lines"
_THROUGHPUT = re.compile(
    r"Avg prompt throughput: ([\d.]+) ?tokens/s, Avg generation throughput: ([\d.]+) ?tokens/s, Runnin"
    r"g: (\d{1,7}) reqs"
    r"(?:, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (\d{1,7}) reqs)?(?:.*?GPU KV cache usage: ([\d.]+)%)?"
)
_ENGINE_ID = re.compile(r"\bEngine (\d{3}):")
_LENGTH = re.compile(r"Mean acceptance length: ([\d.]+)")
_COUNTS = re.compile(r"Accepted: (\d{1,15}) tokens, Drafted: (\d{1,15}) tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: ((?:[\d.]+(?:, )?)+)")
_V0_FIELD = re.compile(r"(System efficiency|Number of [\w ]+?)(?: tokens)*: ([\d.]+)")


class _Tick(msgspec.Struct):
    """The last throughput line of an engine, if its window was a clean one."""

    running: int
    rate: float
    clean: bool
    line: int
    text: str


class _Series(msgspec.Struct):
    line: int
    text: str
    samples: Samples


class MetricsLines:
    """The periodic lines of one run. `flush`, the last call, hands everything to the sink."""

    def __init__(self) -> None:
        self._series: dict[tuple[bool | None, Quantity, Scope], _Series] = {}  # None: load, of either kind
        self._ticks: dict[str, _Tick] = {}
        self._totals: dict[Quantity, float] = {}
        self._windows: tuple[int, str] | None = None  # the last line that totals were read from
        self._v0: tuple[dict[str, float], int, str] | None = None
        self._num_positions = 0
        self.steps: int | None = None  # drafts a cycle, where the start-up lines said it

    def throughput(self, line: int, text: str) -> None:
        match = _THROUGHPUT.search(text)
        if match is None:
            return
        prompt, rate = number(match[1]), number(match[2])
        running = int(match[3])
        if prompt is None or rate is None:
            return
        found = _ENGINE_ID.search(text)
        engine = found[1] if found else ""
        before = self._ticks.get(engine)
        if before is not None:
            self._plain_step(before)
        # A window in which prompts were read, or the number of requests changed, is not decode speed.
        clean = prompt == 0.0 and rate > 0.0 and before is not None and before.running == running > 0
        self._ticks[engine] = _Tick(running, rate, clean, line, text)
        self._sample(None, Quantity.NUM_RUNNING, Scope(), running, line, text)
        if match[4]:
            self._sample(None, Quantity.NUM_QUEUED, Scope(), int(match[4]), line, text)
        if (usage := number(match[5] or "")) is not None:
            self._sample(None, Quantity.KV_USAGE, Scope(), usage / 100.0, line, text)

    def _plain_step(self, tick: _Tick) -> None:
        """A window behind which no speculative line came."""
        if tick.clean:
            batch = Scope(batch=tick.running)
            self._sample(False, Quantity.TOKENS_PER_S, batch, tick.rate, tick.line, tick.text)
            self._sample(False, Quantity.STEP_MS, batch, 1000.0 * tick.running / tick.rate, tick.line, tick.text)
            tick.clean = False

    def speculative(self, line: int, text: str) -> None:
        """A `SpecDecoding metrics` line, or the V1 form of March 2025."""
        counts = _COUNTS.search(text)
        length = number(match[1]) if (match := _LENGTH.search(text)) else None
        rates = self._positions(line, text)
        if counts is not None:
            accepted, drafted = int(counts[1]), int(counts[2])
            self._total(Quantity.NUM_ACCEPTED, accepted, line, text)
            self._total(Quantity.NUM_DRAFTED, drafted, line, text)
            steps = len(rates) or self.steps
            if steps:
                self._total(Quantity.NUM_CYCLES, drafted / steps, line, text)
                if length is None and drafted:
                    length = 1.0 + accepted * steps / drafted
        if length is not None and length >= 1.0:
            self._sample(True, Quantity.TOKENS_PER_CYCLE, Scope(), length, line, text)
            self._cycle(length, line, text)

    def _positions(self, line: int, text: str) -> list[float]:
        match = _POSITIONS.search(text)
        found = [number(part) for part in match[1].split(", ")] if match else []
        rates = [rate for rate in found if rate is not None and 0.0 <= rate <= 1.0]
        for position, rate in enumerate(rates):
            self._sample(True, Quantity.ACCEPTANCE, Scope(position=position), rate, line, text)
        self._num_positions = max(self._num_positions, len(rates))
        return rates

    def _cycle(self, length: float, line: int, text: str) -> None:
        """The speculative line stands behind the throughput line of the same window."""
        if len(self._ticks) != 1:  # several engines: the line does not say which is meant
            return
        (tick,) = self._ticks.values()
        if tick.clean:
            tick.clean = False
            batch = Scope(batch=tick.running)
            self._sample(True, Quantity.TOKENS_PER_S, batch, tick.rate, tick.line, tick.text)
            cycle_ms = 1000.0 * tick.running * length / tick.rate
            self._sample(True, Quantity.CYCLE_MS, batch, cycle_ms, tick.line, f"{tick.text}\n{text}")

    def cumulative(self, line: int, text: str) -> None:
        """A V0 `Speculative metrics` line: of its counters only the last values count."""
        fields = {name: value for name, raw in _V0_FIELD.findall(text) if (value := number(raw)) is not None}
        if "Number of speculative" in fields or "Number of draft" in fields:
            self._v0 = (fields, line, text)

    def _sample(
        self, speculative: bool | None, quantity: Quantity, scope: Scope, value: float, line: int, text: str
    ) -> None:
        series = self._series.get((speculative, quantity, scope))
        if series is None:
            series = self._series[speculative, quantity, scope] = _Series(line, text, Samples())
        series.samples.add(value)

    def _total(self, quantity: Quantity, value: float, line: int, text: str) -> None:
        self._totals[quantity] = self._totals.get(quantity, 0.0) + value
        self._windows = (line, text)

    def flush(self, sink: Sink, speculates: bool | None) -> None:
        """Everything into the sink. Windows with and without drafts are two runs unless a banner says one.

        speculates: what the start-up lines of this run said; None where there were none.
        """
        for tick in self._ticks.values():
            self._plain_step(tick)
        has_speculative = self._v0 is not None or bool(self._totals) or any(key[0] for key in self._series)
        has_plain = any(key[0] is False and key[1] is Quantity.STEP_MS for key in self._series)
        self._emit(sink, None)
        self._emit(sink, True)
        self._emit_counts(sink)
        if has_speculative and has_plain and speculates is None:
            sink.begin_run(ENGINE, label=Label.BASELINE, name="windows without SpecDecoding metrics")
        if not (
            has_speculative and speculates
        ):  # windows without drafts of a speculative run say nothing of plain speed
            self._emit(sink, False)

    def _emit(self, sink: Sink, speculative: bool | None) -> None:
        for (kind, quantity, scope), one in self._series.items():
            if kind is speculative:
                sink.collected(
                    quantity,
                    one.samples,
                    scope=scope,
                    line=one.line,
                    text=one.text,
                    engine=ENGINE,
                    reader=READER,
                )

    def _emit_counts(self, sink: Sink) -> None:
        if self._windows is not None:
            place = Place(sink, READER, *self._windows, ENGINE)
            for quantity, value in self._totals.items():
                place.add(quantity, round(value))
            if self._num_positions and self.steps is None:
                place.add(Quantity.STEPS, self._num_positions)
        if self._v0 is not None:
            self._emit_v0(Place(sink, READER, self._v0[1], self._v0[2], ENGINE), self._v0[0])

    def _emit_v0(self, place: Place, fields: dict[str, float]) -> None:
        steps = round(fields.get("Number of speculative", self.steps or 0))
        drafted, emitted = fields.get("Number of draft", 0.0), fields.get("Number of emitted", 0.0)
        place.add(Quantity.NUM_DRAFTED, round(drafted))
        place.add(Quantity.NUM_ACCEPTED, round(fields.get("Number of accepted", 0.0)))
        if emitted:
            place.add(Quantity.NUM_EMITTED, round(emitted))
        if steps > 0:
            place.add(Quantity.STEPS, steps)
            if drafted > 0:
                place.add(Quantity.NUM_CYCLES, round(drafted / steps))
                if emitted:
                    place.add(Quantity.TOKENS_PER_CYCLE, emitted * steps / drafted)
