"""Sends each call to the backend that was decided for it, and keeps the records. Knows no backend by name.

A decision is pure (comm/rules.py) and made once for each distinct call; afterwards a call costs one dictionary look-up
and a count. Python does not run while a graph is replayed: calls that are made during a capture belong to that graph,
which tells of its replays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from alula.comm.backends.protocol import Backend, CountsWaits
from alula.comm.call import CollectiveCall, describe_call, is_aligned, rows_of
from alula.comm.rules import NO_RULES, Decision, Rules, choose
from alula.comm.watch import RankWatch, as_note
from alula.core.records import DispatchRecord

__all__ = ["Decision", "Dispatcher", "Recording", "choose", "unrecorded"]


class Recording:
    """The collective calls that one graph holds, and how often it was replayed. watch: where replays are noted."""

    __slots__ = ("_calls", "_note", "_watch", "num_replays")

    def __init__(self, watch: RankWatch | None = None) -> None:
        self._calls: Counter[_Route] = Counter()
        self._note = b""
        self._watch = watch
        self.num_replays = 0

    def replayed(self) -> None:
        """To be called before every replay: costs nothing that grows with the number of calls."""
        self.num_replays += 1
        if self._watch is not None:
            self._watch.note(self._note)

    def describe(self, phase: str, name: str) -> None:
        """Makes what a replay leaves word of: the graph and its last call."""
        last = f", the last {next(reversed(self._calls)).text}" if self._calls else ""
        self._note = as_note(phase, f"replay of {name} with {self._calls.total()} calls{last}")

    def replays_of(self, route: _Route) -> int:
        """How often replays have run this call."""
        return self._calls[route] * self.num_replays

    def add(self, route: _Route) -> None:
        self._calls[route] += 1

    def undo(self) -> None:
        """Takes the calls of a capture that failed out of their counts."""
        for route, count in self._calls.items():
            route.num_calls -= count
        self._calls.clear()


@contextmanager
def unrecorded(phase: str, name: str) -> Iterator[Recording]:
    """Stands for the recording of graphs that hold no collectives."""
    yield Recording()


class _Route:
    """A decided call and how often it was made."""

    __slots__ = ("backend", "call", "decision", "note", "num_calls", "text", "work")

    def __init__(self, call: CollectiveCall, work: str, backend: Backend, decision: Decision) -> None:
        self.call = call
        self.work = work
        self.backend = backend
        self.decision = decision
        self.num_calls = 0
        captured = ", captured" if call.captured else ""
        self.text = f"{call.op} of {call.num_bytes} bytes of {call.dtype} through {backend.name}{captured}"
        self.note = as_note(call.phase, self.text + (f" ({work})" if work else ""))

    def record(self, num_replays: int) -> DispatchRecord:
        return DispatchRecord(
            op=self.call.op,
            num_bytes=self.call.num_bytes,
            dtype=self.call.dtype,
            num_ranks=self.call.num_ranks,
            phase=self.call.phase,
            backend=self.backend.name,
            refused=self.decision.refused,
            num_calls=self.num_calls,
            num_replays=num_replays,
            captured=self.call.captured,
            work=self.work,
            measured_us=self.decision.measured_us,
            rule=self.decision.rule,
        )


def is_capturing(x: Tensor) -> bool:
    """Whether what is launched on `x` now ends in a graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


_Key = tuple[str, str, torch.dtype, int, int, bool, torch.device, bool, str]


class Dispatcher:
    """Decides each distinct call once over a fixed list of backends, in order of preference.

    work: what the cycle under way does; ends up in the records of its calls and decides nothing. watch: where every
    call is noted before it is made, for the words of a failure.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        num_ranks: int,
        rules: Rules = NO_RULES,
        capturing: Callable[[Tensor], bool] = is_capturing,
        watch: RankWatch | None = None,
    ) -> None:
        self.backends = tuple(backends)
        self.work = ""
        self._num_ranks = num_ranks
        self._rules = rules
        self._capturing = capturing
        self._watch = watch
        self._routes: dict[_Key, _Route] = {}
        self._former: list[_Route] = []  # decided under rules that hold no more
        self._recordings: list[Recording] = []
        self._recording: Recording | None = None

    @property
    def rules(self) -> Rules:
        return self._rules

    def adopt(self, rules: Rules) -> None:
        """Decides every call anew from now on; all ranks must adopt the same at the same place."""
        self._former += self._routes.values()
        self._routes = {}
        self._rules = rules

    def backend_for(self, op: str, x: Tensor, phase: str) -> Backend:
        """The backend of this call, which is counted. Raises InvalidOption where no backend takes it."""
        captured = self._capturing(x)
        key = (op, phase, x.dtype, x.numel(), rows_of(x), is_aligned(x), x.device, captured, self.work)
        route = self._routes.get(key)
        if route is None:
            call = describe_call(op, x, phase, self._num_ranks, captured)
            decision = choose(call, self.backends, self._rules)
            route = self._routes[key] = _Route(call, self.work, self.backends[decision.index], decision)
        route.num_calls += 1
        if captured and self._recording is not None:
            self._recording.add(route)
        if self._watch is not None:
            self._watch.note(route.note)
        return route.backend

    @contextmanager
    def recording(self, phase: str, name: str) -> Iterator[Recording]:
        """Around the capture of one graph: its calls belong to what is yielded. A capture that raises leaves none."""
        self._recording = recording = Recording(self._watch)
        try:
            yield recording
        except BaseException:
            recording.undo()
            raise
        finally:
            self._recording = None
        recording.describe(phase, name)
        self._recordings.append(recording)

    def records(self) -> tuple[DispatchRecord, ...]:
        """One record for each distinct call so far, in the order of first use."""
        routes = (route for route in (*self._former, *self._routes.values()) if route.num_calls)
        return tuple(route.record(sum(r.replays_of(route) for r in self._recordings)) for route in routes)

    def waits(self) -> tuple[int, float]:
        """(calls, seconds waited for other ranks in them) of the backends that count them."""
        counted = [backend.waits for backend in self.backends if isinstance(backend, CountsWaits)]
        return sum(calls for calls, _ in counted), sum(waited_s for _, waited_s in counted)

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
