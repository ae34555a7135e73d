"""SGLang's `Decode batch` lines, gathered: millions of them become a handful of series.

Knows the fields of these lines and which windows mean something. Where a run begins is the business of `sglang_log`.
"""

from __future__ import annotations

import re

import msgspec

from alula.explain.sink import Sink
from alula.profile.evidence import Label, Scope
from alula.profile.quantities import Quantity
from alula.profile.samples import Samples

ENGINE = "sglang"
READER = "SGLang decode lines"
# The order of fields is that of all versions since 2024-11; those in brackets come and go.
_FULL = re.compile(
    r"#running-req:\s*(\d{1,7}),.*?(?:token\s?usage:\s*([\d.]+),.*?)?(?:accept\s?len:\s*([\d.]+),.*?)?"
    r"(?:cuda\s?graph:\s*(True|False),\s*)?gen\s?throughput\s?\(token/s\):\s*([\d.]+),\s*#queue-req:\s*(\d{1,7})"
)
_ACCEPT = re.compile(r"accept\s?len:\s*([\d.]+)")
_GRAPH = re.compile(r"cuda\s?graph:\s*(True|False)")
_DP = re.compile(r"\bDP\d+")
# A lone line after a start: a step this long would be idle time, since the window began before the request did.
_LONGEST_STEP_MS = 200.0
_MIXED_KEPT = 63
_AFTER_IDLE = 0.7  # of the next line's rate: below it the first line's window held idle time


class _Window(msgspec.Struct):
    running: int
    accept: float | None
    rate: float
    line: int
    text: str

    @property
    def cycle_ms(self) -> float | None:
        if self.rate <= 0 or self.running <= 0:
            return None
        return 1000.0 * self.running * (self.accept or 1.0) / self.rate


class _Series(msgspec.Struct):
    line: int
    text: str
    samples: Samples


class DecodeLines:
    """The lines of one run. `line` takes one; `flush`, the last call, hands everything to the sink."""

    def __init__(self) -> None:
        self._series: dict[tuple[bool, Quantity, int | None], _Series] = {}
        self._graphs: dict[tuple[str, bool], list[int | str]] = {}  # phase, replayed -> line, text, count
        # worker -> the first window after idle, and whether the text begins with it
        self._waiting: dict[str, tuple[_Window, bool]] = {}
        self._state: dict[str, str] = {}  # worker -> "running" | "prefilled" (a prompt was read since) | "idle"
        self._mixed: list[_Window] = []  # windows in which prompts were read too, for runs that have no others
        self._clean: set[bool] = set()

    def prefill(self, text: str) -> None:
        worker = _worker(text)
        idle = "#running-req: 0" in text
        self._settle(worker, None)
        self._state[worker] = "idle" if idle else "prefilled"

    def line(self, number: int, text: str) -> bool:
        """True if the line is complete; False if its end may stand on the next line."""
        match = _FULL.search(text)
        if match is None:
            return self._short(number, text)
        running, usage, accept, graph, rate, queued = match.groups()
        try:
            window = _Window(int(running), float(accept) if accept else None, float(rate), number, text)
            self._load(window, float(usage) if usage else None, int(queued))
        except ValueError:  # "1.2.3": noise in the bytes
            return True
        if graph:
            self._graph("verify" if accept else "target", graph == "True", number, text)
        self._speed(window, _worker(text))
        return True

    def _short(self, number: int, text: str) -> bool:
        """A line that somebody shortened: what it has is taken once nothing more can follow."""
        accept, graph = _ACCEPT.search(text), _GRAPH.search(text)
        if "#running-req" in text or (not accept and not graph):
            return False
        if accept and (length := _float(accept[1])) is not None:
            self._add(True, Quantity.TOKENS_PER_CYCLE, None, length, number, text)
        if graph:
            self._graph("verify" if accept else "target", graph[1] == "True", number, text)
        return True

    def _load(self, window: _Window, usage: float | None, queued: int) -> None:
        speculative = window.accept is not None
        number, text = window.line, window.text
        self._add(speculative, Quantity.NUM_RUNNING, None, window.running, number, text)
        self._add(speculative, Quantity.NUM_QUEUED, None, queued, number, text)
        if usage is not None:
            self._add(speculative, Quantity.KV_USAGE, None, usage, number, text)
        if window.accept is not None:
            self._add(True, Quantity.TOKENS_PER_CYCLE, None, window.accept, number, text)

    def _speed(self, window: _Window, worker: str) -> None:
        state = self._state.get(worker)
        self._state[worker] = "running"
        if state in (None, "idle"):
            self._waiting[worker] = (window, state is None)
            return
        self._settle(worker, window)
        self._take(window, clean=state == "running")

    def _settle(self, worker: str, following: _Window | None) -> None:
        """Keeps or drops the window that came first after idle, by the one that follows it."""
        if (waiting := self._waiting.pop(worker, None)) is None:
            return
        first, is_start = waiting
        if following is not None:
            keep = first.rate >= _AFTER_IDLE * following.rate
        else:
            keep = is_start and (first.cycle_ms or _LONGEST_STEP_MS) < _LONGEST_STEP_MS
        if keep:
            self._take(first, clean=True)

    def _take(self, window: _Window, clean: bool) -> None:
        cycle_ms = window.cycle_ms
        if cycle_ms is None:
            return
        if not clean:
            if len(self._mixed) < _MIXED_KEPT:
                self._mixed.append(window)
            return
        self._clean.add(window.accept is not None)
        self._speed_of(window)

    def _speed_of(self, window: _Window) -> None:
        speculative, cycle_ms = window.accept is not None, window.cycle_ms
        if cycle_ms is None:
            return
        quantity = Quantity.CYCLE_MS if speculative else Quantity.STEP_MS
        self._add(speculative, Quantity.TOKENS_PER_S, window.running, window.rate, window.line, window.text)
        self._add(speculative, quantity, window.running, cycle_ms, window.line, window.text)

    def _add(
        self, speculative: bool, quantity: Quantity, batch: int | None, value: float, number: int, text: str
    ) -> None:
        series = self._series.get((speculative, quantity, batch))
        if series is None:
            series = self._series[speculative, quantity, batch] = _Series(number, text, Samples())
        series.samples.add(value)

    def _graph(self, phase: str, replayed: bool, number: int, text: str) -> None:
        counted = self._graphs.setdefault((phase, replayed), [number, text, 0])
        counted[2] = int(counted[2]) + 1

    def flush(self, sink: Sink, speculates: bool | None) -> None:
        """Everything so far into the sink. Lines with and without `accept len` are two runs unless a banner says one.

        speculates: what the start-up banner of this run said; None where there was none.
        """
        for worker in list(self._waiting):
            self._settle(worker, None)
        for window in self._mixed:
            if (window.accept is not None) not in self._clean:
                self._speed_of(window)
        kinds = {key[0] for key in self._series}
        for speculative in sorted(kinds, reverse=True):
            if len(kinds) > 1 and not speculative and speculates is None:
                sink.begin_run(ENGINE, label=Label.BASELINE, name="lines without accept len")
            self._emit(sink, speculative, speculates)

    def _emit(self, sink: Sink, speculative: bool, speculates: bool | None) -> None:
        for (kind, quantity, batch), one in self._series.items():
            if kind is speculative:
                where = {"line": one.line, "text": one.text, "engine": ENGINE, "reader": READER}
                sink.collected(quantity, one.samples, scope=Scope(batch=batch), **where)  # type: ignore[arg-type]
                if quantity is Quantity.NUM_RUNNING and not speculative and speculates is None:
                    sink.add(Quantity.ALGORITHM, "none", **where)  # type: ignore[arg-type]
        for (phase, replayed), (line, text, count) in self._graphs.items():
            if (phase == "verify") is speculative:
                sink.add(
                    Quantity.GRAPH_REPLAYED,
                    replayed,
                    line=int(line),
                    text=str(text),
                    engine=ENGINE,
                    reader=READER,
                    scope=Scope(phase=phase),
                    count=int(count),
                )


def _worker(text: str) -> str:
    """The data-parallel worker that printed a line; only one tensor-parallel rank of each does."""
    if text.find("DP", 0, 60) < 0:
        return ""
    match = _DP.search(text, 0, 60)
    return match[0] if match else ""


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
