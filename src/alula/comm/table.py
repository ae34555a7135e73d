"""The measured table: how long each backend takes at which size, and what follows from it. Pure; measures nothing.

Between two measured sizes times are interpolated by bytes; outside of them the nearest measured size speaks.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import msgspec

from alula.core.records import Refusal


class Timing(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Microseconds of one call, of the slowest rank."""

    op: str
    num_bytes: int
    backend: str
    us: float


class MeasuredTable(msgspec.Struct, frozen=True, kw_only=True):
    """The same on every rank. captured: timed inside a CUDA graph. refused: backends whose probe failed."""

    timings: tuple[Timing, ...]
    captured: bool = False
    refused: tuple[Refusal, ...] = ()

    def us(self, backend: str, op: str, num_bytes: int) -> float | None:
        """Expected microseconds, or None where this backend was never timed with this operation."""
        points = sorted((t.num_bytes, t.us) for t in self.timings if t.backend == backend and t.op == op)
        if not points:
            return None
        place = bisect_left(points, (num_bytes, 0.0))
        if place == len(points) or place == 0:
            return points[min(place, len(points) - 1)][1]
        (low, low_us), (high, high_us) = points[place - 1], points[place]
        return low_us + (high_us - low_us) * (num_bytes - low) / (high - low)

    def merged(self, newer: MeasuredTable) -> MeasuredTable:
        """Both tables' timings; where both have one, the newer. Refusals are the newer's: older ones may be cured."""
        found = {(t.op, t.num_bytes, t.backend): t for t in (*self.timings, *newer.timings)}
        return msgspec.structs.replace(newer, timings=tuple(sorted(found.values())))

    def sizes(self, op: str) -> tuple[int, ...]:
        """Every size at which the operation was timed, rising."""
        return tuple(sorted({t.num_bytes for t in self.timings if t.op == op}))

    def ops(self) -> tuple[str, ...]:
        return tuple(sorted({t.op for t in self.timings}))


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """Up to about `num_bytes` one backend is the fastest, beyond it the other. Seen between two measured sizes."""

    op: str
    num_bytes: int
    below: str
    above: str
    measured: tuple[int, int]


def crossovers(table: MeasuredTable) -> tuple[Crossover, ...]:
    """Every change of the fastest backend from one measured size to the next."""
    found = []
    for op in table.ops():
        best = [(size, fastest(table, op, size)) for size in table.sizes(op)]
        for (low, below), (high, above) in pairwise(best):
            if below != above:
                size = _meeting(table, op, (low, high), (below, above))
                found.append(Crossover(op=op, num_bytes=size, below=below, above=above, measured=(low, high)))
    return tuple(found)


def fastest(table: MeasuredTable, op: str, num_bytes: int) -> str:
    """The backend with the least time at a size; of equals the first by name. At least one was timed."""
    times = {
        name: us
        for name in sorted({t.backend for t in table.timings if t.op == op})
        if (us := table.us(name, op, num_bytes)) is not None
    }
    return min(times, key=lambda name: times[name])


def _meeting(table: MeasuredTable, op: str, sizes: tuple[int, int], names: tuple[str, str]) -> int:
    """Where the two backends' lines meet between two sizes."""
    (low, high), (below, above) = sizes, names
    gaps = []
    for size in sizes:
        one, other = table.us(below, op, size), table.us(above, op, size)
        assert one is not None and other is not None
        gaps.append(other - one)
    before, after = gaps  # positive, then negative or 0
    if before == after:
        return high
    return round(low + (high - low) * before / (before - after))
