"""PyTorch-profiler (Kineto) and Chrome traces of one or many ranks, as evidence by phase.

Collectives: over several ranks, a call's shortest time is its transfer and the rest is waiting; one rank alone cannot
tell them apart, and nothing is said. Source: specs/log-formats.md section 12.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import BinaryIO

import msgspec

from alula.explain.readers.found import Place
from alula.explain.readers.trace_data import TraceData
from alula.explain.readers.trace_events import TraceText
from alula.explain.readers.trace_phases import Cycle, Occurrence, cycles, occurrences
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "profiler trace"
Q = Quantity
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,6})')
_WORLD = re.compile(rb'"world_size"\s*:\s*(\d{1,6})')
_DEVICE = re.compile(rb'"name"\s*:\s*"((?:NVIDIA|AMD|Tesla|Quadro|GeForce)[^"]{0,80})"')
_RANK_IN_NAME = re.compile(r"(?:TP|rank)[-_]?(\d{1,4})", re.I)
_MEASURED = ("verify", "decode", "target", "draft", "extend", "accept")
_CYCLE_PARTS = {"verify": Q.VERIFY_MS, "draft": Q.DRAFT_MS, "extend": Q.EXTEND_MS}


class _RankOfFile(msgspec.Struct):
    """What later files' ranks are compared with."""

    sink: Sink
    rank: int | None
    found: list[Occurrence]
    kind: tuple[object, ...]  # engine, ranks, calls by phase: only ranks of the same run are compared


class Trace:
    """A stream reader that also remembers the ranks it has read, since only several together tell waiting from work."""

    name = READER

    def __init__(self) -> None:
        self._ranks: list[_RankOfFile] = []

    def recognises(self, head: bytes) -> bool:
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] == b"{":
            return b'"traceEvents"' in head or b'"deviceProperties"' in head[:4096]
        return start[:1] == b"[" and b'"ph"' in head and b'"ts"' in head

    def read(self, stream: BinaryIO, sink: Sink) -> None:
        text, data = TraceText(stream, sink.note), TraceData()
        for piece in text.events():
            for event in piece:
                if event.ph == "X":
                    data.add(event)
        sink.begin_run(data.engine)
        place = Place(sink, READER, None, "", data.engine)
        self._header(place, text.header)
        for device, rank in sorted(data.ranks.items()):
            if rank.num_left_out:
                sink.note(
                    f"{rank.num_left_out} kernels of GPU {device} left out; the first {len(rank.start)} were read"
                )
            found = occurrences(data, rank)
            number = _rank_number(text.header, sink.source) if len(data.ranks) == 1 else device
            _emit(Place(sink, READER, None, f"GPU {device}", data.engine), data, found, number)
            world = _WORLD.search(text.header)
            kind = (data.engine, world[1] if world else None, *_calls(found))
            self._ranks.append(_RankOfFile(sink, number, [one for one in found if one.collectives], kind))
        if data.engine:
            place.add(Q.ENGINE, data.engine)
        if not data.ranks:
            sink.note("the trace holds no GPU kernels")

    def _header(self, place: Place, header: bytes) -> None:
        if match := _WORLD.search(header):
            place.add(Q.NUM_GPUS, int(match[1]))
        if match := _DEVICE.search(header):
            place.add(Q.GPU, match[1].decode("utf-8", "replace"))

    def finish(self) -> None:
        """All files are read: transfer and waiting of the collectives, given to the first rank's sink."""
        groups: dict[tuple[object, ...], list[_RankOfFile]] = defaultdict(list)
        for one in self._ranks:
            repeated = sum(other.rank == one.rank for other in groups[one.kind, 0]) if one.rank is not None else 0
            groups[one.kind, repeated].append(one)
        for ranks in groups.values():
            if len(ranks) > 1:
                for phase in _MEASURED:
                    _across(phase, ranks)


def _rank_number(header: bytes, source: str) -> int | None:
    if match := _RANK.search(header):
        return int(match[1])
    found = _RANK_IN_NAME.findall(source)
    return int(found[-1]) if found else None


def _emit(place: Place, data: TraceData, found: Sequence[Occurrence], rank: int | None) -> None:
    by_phase: dict[str, list[Occurrence]] = defaultdict(list)
    for one in found:
        by_phase[one.span.phase].append(one)
    for phase in _MEASURED:
        if by_phase.get(phase):
            _phase(place, data, phase, by_phase[phase], rank)
    if "verify" in by_phase:
        _cycles(place, cycles(found, "verify"), Q.CYCLE_MS)
    for phase in ("decode", "target"):
        if phase in by_phase:
            _cycles(place, cycles(found, phase), Q.STEP_MS)


def _phase(place: Place, data: TraceData, phase: str, found: Sequence[Occurrence], rank: int | None) -> None:
    at: dict[str, object] = {"phase": phase} | ({"rank": rank} if rank is not None else {})
    for one in found:
        place.sample(Q.GPU_SPAN_MS, one.span_ms, **at)
        place.sample(Q.GPU_BUSY_MS, one.busy_ms, **at)
        place.sample(Q.KERNEL_MS, one.kernel_ms, **at)
        place.sample(Q.NUM_KERNELS, one.num_kernels, **at)
        place.add(Q.GRAPH_REPLAYED, one.replayed, phase=phase)
        for family, milliseconds in one.by_family.items():
            place.sample(Q.KERNEL_MS, milliseconds, name=family, **at)
        _graphs(place, data, one, at)
        _collectives(place, data, one, phase, at)


def _graphs(place: Place, data: TraceData, one: Occurrence, at: dict[str, object]) -> None:
    if len(one.graphs) == 1 and one.num_graph_kernels:
        place.sample(Q.GRAPH_NODES, one.num_graph_kernels, **at)
    for correlation in one.graphs:
        if (launch := data.graph_launches.get(correlation)) is not None:
            place.sample(Q.GRAPH_LAUNCH_MS, launch[1], **at)
    if one.piecewise:
        place.add(Q.GRAPH_MODE, "piecewise", phase=one.span.phase)


def _collectives(place: Place, data: TraceData, one: Occurrence, phase: str, at: dict[str, object]) -> None:
    if not one.collectives:
        return
    place.sample(Q.NUM_ALLREDUCES, len(one.collectives), **at)
    for call in one.collectives:
        family = data.families[call.kernel]
        if family is not None:
            size = {"num_bytes": call.num_bytes} if call.num_bytes else {}
            place.add(Q.ALLREDUCE_BACKEND, family.backend, phase=phase, **size)
            place.add(Q.ALLREDUCE_ENGAGED, True, name=family.backend)
            if call.num_bytes:
                place.add(Q.ALLREDUCE_BYTES, call.num_bytes, phase=phase)


def _cycles(place: Place, found: Sequence[Cycle], quantity: Quantity) -> None:
    for cycle in found:
        batch = {"batch": cycle.batch} if cycle.batch else {}
        place.sample(quantity, cycle.wall_ms, **batch)
        place.sample(Q.HOST_MS, cycle.idle_ms, **batch)
        if quantity is Q.CYCLE_MS:
            for phase, milliseconds in cycle.parts.items():
                if phase in _CYCLE_PARTS:
                    place.sample(_CYCLE_PARTS[phase], milliseconds, **batch)
                elif phase == "accept":
                    place.sample(Q.PHASE_MS, milliseconds, phase="accept", **batch)


def _calls(found: Sequence[Occurrence]) -> list[tuple[str, float]]:
    """Phase and its usual number of collectives."""
    counts: dict[str, list[int]] = defaultdict(list)
    for one in found:
        counts[one.span.phase].append(len(one.collectives))
    return sorted((phase, median(numbers)) for phase, numbers in counts.items())


def _across(phase: str, ranks: Sequence[_RankOfFile]) -> None:
    series = [[one for one in rank.found if one.span.phase == phase] for rank in ranks]
    if not all(series):
        return
    transfers: list[float] = []
    waits: list[list[float]] = [[] for _ in ranks]
    calls: list[float] = []
    for together in zip(*series, strict=False):
        counts = {len(one.collectives) for one in together}
        if len(counts) != 1:  # ranks that are not at the same cycle
            continue
        shortest = [
            min(call.us for call in same) for same in zip(*(one.collectives for one in together), strict=True)
        ]
        transfers.append(sum(shortest) / 1000.0)
        calls += shortest
        for wait, one in zip(waits, together, strict=True):
            wait.append(sum(call.us for call in one.collectives) / 1000.0 - transfers[-1])
    if not transfers:
        return
    first = Place(ranks[0].sink, READER, None, f"minimum over {len(ranks)} ranks, {len(transfers)} times")
    for value in transfers:
        first.sample(Q.COLLECTIVE_MS, value, phase=phase)
    first.add(Q.ALLREDUCE_US, median(calls), phase=phase)
    for rank, wait in zip(ranks, waits, strict=True):
        for value in wait:
            first.sample(
                Q.COLLECTIVE_WAIT_MS, value, phase=phase, **({} if rank.rank is None else {"rank": rank.rank})
            )
