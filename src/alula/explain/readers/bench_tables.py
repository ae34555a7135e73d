"""Result blocks of load generators: `sglang.bench_serving`, `vllm bench serve`, and two-column tables like evalscope's.

A block is read whole before its values are given, since the concurrency that they hold for may stand below them.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import LOG_START, Place, number
from alula.explain.readers.labels import side_of
from alula.explain.readers.tables import key_value
from alula.explain.sink import Sink
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity

READER = "benchmark results"
Q = Quantity
_HEADER = re.compile(
    r"={3,} ?(?:Serving Benchmark Result|Offline Throughput Benchmark Result|.*Benchmark Result.*?) ?={3,}"
)
_END = re.compile(r"^\s*={20,}\s*$")
_LINE = re.compile(r"^\s*([A-Za-z][^:|]*?(?:\([^)]*\))?[^:|]*):\s+(\S.*?)\s*$")
_MAX_LINES = 120
_HEADING_LINES, _HEADING_CHARS = 6, 100  # a heading stands close above its block and is short
# Lower-case label -> quantity and factor.
_LABELS: dict[str, tuple[Quantity, float]] = {
    "output token throughput (tok/s)": (Q.TOKENS_PER_S, 1.0),
    "accept length": (Q.TOKENS_PER_CYCLE, 1.0),
    "acceptance length": (Q.TOKENS_PER_CYCLE, 1.0),
    "mean acceptance length": (Q.TOKENS_PER_CYCLE, 1.0),
    "acceptance rate (%)": (Q.ACCEPTED_PER_DRAFTED, 0.01),
    "drafts": (Q.NUM_CYCLES, 1.0),
    "draft tokens": (Q.NUM_DRAFTED, 1.0),
    "accepted tokens": (Q.NUM_ACCEPTED, 1.0),
    "mean tpot (ms)": (Q.TOKEN_MS, 1.0),
    "mean itl (ms)": (Q.CHUNK_MS, 1.0),
    "mean ttft (ms)": (Q.TTFT_MS, 1.0),
    "mean e2e latency (ms)": (Q.REQUEST_MS, 1.0),
    "mean e2el (ms)": (Q.REQUEST_MS, 1.0),
    "max request concurrency": (Q.CONCURRENCY, 1.0),
    "max reqeuest concurrency": (Q.CONCURRENCY, 1.0),  # the tool's own spelling in 2025
    "maximum request concurrency": (Q.CONCURRENCY, 1.0),
    "concurrency": (Q.CONCURRENCY, 1.0),
}
# Two-column tables (evalscope and others).
_ROWS: dict[str, tuple[Quantity, float]] = {
    "number of concurrency": (Q.CONCURRENCY, 1.0),
    "concurrency": (Q.CONCURRENCY, 1.0),
    "output token throughput (tok/s)": (Q.TOKENS_PER_S, 1.0),
    "output throughput (tok/s)": (Q.TOKENS_PER_S, 1.0),
    "average output tokens per second": (Q.TOKENS_PER_S, 1.0),
    "average time per output token (s)": (Q.TOKEN_MS, 1000.0),
    "average time to first token (s)": (Q.TTFT_MS, 1000.0),
    "average latency (s)": (Q.REQUEST_MS, 1000.0),
    "average inter-token latency (s)": (Q.CHUNK_MS, 1000.0),
    "decoded tok/iter": (Q.TOKENS_PER_CYCLE, 1.0),
    "average output tokens per request": (Q.OUTPUT_TOKENS, 1.0),
    "average input tokens per request": (Q.INPUT_TOKENS, 1.0),
}
_POSITION = re.compile(r"^position (\d{1,3})$")


class BenchTables:
    """One source's blocks. The second block without a run in between begins a run, and so does one whose heading names
    a side ("## Without speculation")."""

    name = READER
    markers: tuple[str, ...] = (
        "Benchmark Result",
        "| ",
        "aseline",
        "ithout",
        "o spec",
        "peculat",
        "EAGLE",
        "eagle",
        "Eagle",
        "MTP",
    )

    def __init__(self) -> None:
        self._block: list[tuple[int, str]] | None = None
        self._runs_before: int | None = None
        self._heading: tuple[int, Quantity | None] = (
            -_HEADING_LINES - 1,
            None,
        )  # line, side of the last short line
        self._side: Quantity | None = None  # that the heading of the block under way names

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if self._block is not None:
            if _HEADER.search(text):
                self._take(sink)
            elif _END.match(text) or len(self._block) >= _MAX_LINES:
                self._take(sink)
                return False
            else:
                self._block.append((number, text))
                return True
        if _HEADER.search(text):
            self._block = []
            self._side = self._heading[1] if number - self._heading[0] <= _HEADING_LINES else None
            return True
        if len(text) <= _HEADING_CHARS and (side := side_of(text)) is not None and not LOG_START.match(text):
            self._heading = (number, side)
        return self._row(number, text, sink)

    def _row(self, line: int, text: str, sink: Sink) -> bool:
        row = key_value(text)
        if row is None:
            return False
        found = _ROWS.get(row.label.lower())
        if found is not None:
            quantity, factor = found
            value = number(row.value)
            if value is not None:
                Place(sink, READER, line, text).add(quantity, _count(quantity, value * factor))
        return False

    def _take(self, sink: Sink) -> None:
        block, self._block = self._block or [], None
        found: list[tuple[int, str, str, str]] = []
        for line, text in block:
            if match := _LINE.match(text):
                found.append((line, text, match[1].strip().lower(), match[2]))
        if not any(label in _LABELS for _, _, label, _ in found):
            return
        if self._side is not None:
            label = Label.BASELINE if self._side is Q.PLAIN_TOKENS_PER_S else Label.SPECULATIVE
            sink.begin_run(label=label)
        elif self._runs_before == sink.num_runs:
            sink.begin_run()
        self._emit(sink, found)
        self._runs_before = sink.num_runs

    def _emit(self, sink: Sink, found: list[tuple[int, str, str, str]]) -> None:
        values = {label: number(raw) for _, _, label, raw in found}
        limit = next((values[one] for one in values if "request concurrency" in one and values[one]), None)
        batch = {"batch": int(limit)} if limit and limit == int(limit) else {}
        for line, text, label, raw in found:
            place = Place(sink, READER, line, text)
            value = values[label]
            if label == "backend":
                place.add(Q.FLAG, raw, name="client.backend")
            elif label in ("traffic request rate", "request rate configured (rps)"):
                place.add(Q.FLAG, raw, name="request_rate")
            elif (match := _POSITION.match(label)) and value is not None and value <= 100.0:
                place.add(Q.ACCEPTANCE, value / 100.0, position=int(match[1]))
            elif label in _LABELS and value is not None:
                quantity, factor = _LABELS[label]
                scope = batch if quantity is Q.TOKENS_PER_S else {}
                place.add(quantity, _count(quantity, value * factor), **scope)

    def end(self, sink: Sink) -> None:
        if self._block:
            self._take(sink)


def _count(quantity: Quantity, value: float) -> int | float:
    """Counts as whole numbers; a measured concurrency may be broken."""
    counts = (Q.NUM_CYCLES, Q.NUM_DRAFTED, Q.NUM_ACCEPTED, Q.CONCURRENCY)
    return int(value) if quantity in counts and value == int(value) else value
