"""Adds up one rank's kernels by phase: how long, how busy, how many, from graphs or not, which collectives.

Phases come from marks on the device's time line; else from marks on the host's, through the call that launched a
kernel; else from the graphs themselves: the longest graph of a repeating set is the target's forward.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from alula.explain.readers.trace_data import Rank, Span, TraceData

_PIECES = 8  # a draft of several steps has a few full graphs; a target in pieces has one a layer
_FROM_GRAPH = 0.9  # of an occurrence's kernels
_MAX_OCCURRENCES = 100_000


class Collective(msgspec.Struct, frozen=True):
    """One call of a collective inside a phase, in microseconds."""

    kernel: int  # index into TraceData.families
    us: float
    num_bytes: int


class Occurrence(msgspec.Struct):
    """One stretch of a phase on one rank. Times in milliseconds."""

    span: Span
    start: float = 0.0
    end: float = 0.0
    busy_ms: float = 0.0
    kernel_ms: float = 0.0
    num_kernels: int = 0
    num_graph_kernels: int = 0
    graphs: set[int] = msgspec.field(default_factory=set)  # correlations of the launches
    collectives: list[Collective] = msgspec.field(default_factory=list)
    by_family: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def span_ms(self) -> float:
        return (self.end - self.start) / 1000.0

    @property
    def piecewise(self) -> bool:
        """Many graphs with kernels between them: a layer's attention runs eagerly between pieces."""
        return len(self.graphs) >= _PIECES and self.num_graph_kernels < self.num_kernels

    @property
    def replayed(self) -> bool:
        """Whether (nearly) all of it came from full graphs."""
        return self.num_graph_kernels >= _FROM_GRAPH * self.num_kernels and not self.piecewise


def occurrences(data: TraceData, rank: Rank) -> list[Occurrence]:
    """Every phase of a rank with its kernels, in order of time. Phases without a kernel are left out."""
    order = sorted(range(len(rank.start)), key=rank.start.__getitem__)
    spans = data.phases(on_device=True)
    if spans:
        places = _by_time(rank, order, spans)
    elif spans := data.phases(on_device=False):
        places = _by_launch(data, rank, order, spans)
    else:
        spans, places = _by_graph(data, rank, order)
    found: dict[int, Occurrence] = {}
    for index, place in zip(order, places, strict=True):
        if place < 0:
            continue
        one = found.get(place)
        if one is None:
            if len(found) >= _MAX_OCCURRENCES:
                break
            one = found[place] = Occurrence(spans[place], start=rank.start[index])
        _count(data, rank, one, index)
    return sorted(found.values(), key=lambda one: one.start)


def _count(data: TraceData, rank: Rank, one: Occurrence, index: int) -> None:
    start, end = rank.start[index], rank.end[index]
    one.busy_ms += max(0.0, end - max(start, one.end)) / 1000.0
    one.end = max(one.end, end)
    one.kernel_ms += (end - start) / 1000.0
    one.num_kernels += 1
    correlation = rank.correlation[index]
    if rank.in_graph[index] or correlation in data.graph_launches:
        one.num_graph_kernels += 1
        one.graphs.add(correlation)
    name = rank.name[index]
    family = data.families[name]
    if family is not None:
        one.by_family[family.family] = one.by_family.get(family.family, 0.0) + (end - start) / 1000.0
        if family.op == "all_reduce":
            one.collectives.append(Collective(name, end - start, rank.message_bytes.get(index, 0)))


def _by_time(rank: Rank, order: Sequence[int], spans: Sequence[Span]) -> list[int]:
    starts = [span.start for span in spans]
    places = []
    for index in order:
        place = bisect_right(starts, rank.start[index] + 0.001) - 1
        inside = place >= 0 and rank.start[index] <= spans[place].end
        places.append(place if inside else -1)
    return places


def _by_launch(data: TraceData, rank: Rank, order: Sequence[int], spans: Sequence[Span]) -> list[int]:
    starts = [span.start for span in spans]
    places = []
    for index in order:
        called = data.launches.get(rank.correlation[index])
        place = bisect_right(starts, called) - 1 if called is not None else -1
        places.append(place if place >= 0 and called is not None and called <= spans[place].end else -1)
    return places


def _by_graph(data: TraceData, rank: Rank, order: Sequence[int]) -> tuple[list[Span], list[int]]:
    """Nothing is marked: each graph launch is a stretch, named by how its size compares with the others'."""
    nodes: Counter[int] = Counter()
    first: dict[int, float] = {}
    last: dict[int, float] = defaultdict(float)
    for index in order:
        correlation = rank.correlation[index]
        if correlation in data.graph_launches:
            nodes[correlation] += 1
            first.setdefault(correlation, rank.start[index])
            last[correlation] = max(last[correlation], rank.end[index])
    if not nodes:
        return [], [-1] * len(order)
    phases = _graph_phases({one: (count, last[one] - first[one]) for one, count in nodes.items()})
    launches = sorted(nodes, key=first.__getitem__)
    number = {correlation: place for place, correlation in enumerate(launches)}
    spans = [
        Span(phases[one], first[one], last[one], True, name=f"graph of {nodes[one]} nodes") for one in launches
    ]
    return spans, [number.get(rank.correlation[index], -1) for index in order]


def _graph_phases(sizes: dict[int, tuple[int, float]]) -> dict[int, str]:
    """Launch -> phase. The kind that takes most time is the target's forward; with smaller kinds beside it, verify."""
    time_of: dict[int, float] = defaultdict(float)
    launches_of: Counter[int] = Counter()
    for count, span in sizes.values():
        time_of[count] += span
        launches_of[count] += 1
    target = max(time_of, key=time_of.__getitem__)
    small = {count for count in time_of if count * 2 < target and launches_of[count] * 2 >= launches_of[target]}
    name = "verify" if small else "target"
    return {
        one: name if count == target else "draft" if count in small else "other"
        for one, (count, _) in sizes.items()
    }


class Cycle(msgspec.Struct, frozen=True):
    """From one target forward's start to the next one's, in ms. idle: what no phase had the device for."""

    wall_ms: float
    parts: dict[str, float]
    idle_ms: float
    batch: int | None


def cycles(found: Sequence[Occurrence], anchor: str) -> list[Cycle]:
    """The cycles between forwards of phase `anchor` ("verify" or "decode"); those with a prompt or a stall left out."""
    starts = [at for at, one in enumerate(found) if one.span.phase == anchor]
    whole: list[Cycle] = []
    for first, second in itertools.pairwise(starts):
        inside = found[first:second]
        if any(one.span.phase == "prefill" for one in inside):
            continue
        wall = (found[second].start - found[first].start) / 1000.0
        parts: dict[str, float] = defaultdict(float)
        for one in inside:
            parts[one.span.phase] += one.span_ms
        whole.append(Cycle(wall, dict(parts), max(0.0, wall - sum(parts.values())), found[first].span.batch))
    if not whole:
        return []
    typical = median(one.wall_ms for one in whole)
    return [one for one in whole if one.wall_ms <= 4.0 * typical]
