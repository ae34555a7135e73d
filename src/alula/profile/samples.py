"""Many samples of one quantity in bounded memory, and their median with an interval.

The interval is that of order statistics: no assumption about the distribution, no random resampling. Source of the
ranks: the binomial distribution of how many samples lie under the median (Conover, Practical Nonparametric
Statistics), by its normal approximation with continuity correction, exact for few samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

MAX_KEPT = 2048
_CONFIDENCE = 0.95
_Z = 1.959964
_EXACT_UP_TO = 60
_FEWEST_FOR_A_TREND = 12


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median and the order statistics around it that hold the true one in 95 of 100 cases.

    low, high: None where there are too few samples for any such statement (under 6).
    """

    median: float
    low: float | None
    high: float | None
    num_samples: int


def median_interval(values: Sequence[float]) -> Interval:
    """The median of one or more values. Raises ValueError for none."""
    if not values:
        raise ValueError("no samples; expected one or more")
    ordered = sorted(values)
    count = len(ordered)
    middle = count // 2
    median = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    below = _rank_below(count)
    if below is None:
        return Interval(median=median, low=None, high=None, num_samples=count)
    return Interval(median=median, low=ordered[below], high=ordered[count - 1 - below], num_samples=count)


def _rank_below(count: int) -> int | None:
    """The largest r so that the r-th smallest and the r-th largest sample (from 0) enclose the median often enough."""
    if count > _EXACT_UP_TO:
        return max(0, math.floor((count - 1) / 2 - _Z * math.sqrt(count) / 2))
    tail, rank = 0.0, None
    for smaller in range(count // 2):
        tail += math.comb(count, smaller) / 2.0**count
        if 1.0 - 2.0 * tail < _CONFIDENCE:
            break
        rank = smaller
    return rank


class Samples:
    """A growing series, thinned to every second value whenever MAX_KEPT are held; order of time is kept."""

    def __init__(self) -> None:
        self.num_seen = 0
        self._kept: list[float] = []
        self._stride = 1

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        if self.num_seen % self._stride == 0:
            self._kept.append(value)
            if len(self._kept) >= MAX_KEPT:
                self._kept = self._kept[::2]
                self._stride *= 2
        self.num_seen += 1

    @property
    def kept(self) -> tuple[float, ...]:
        return tuple(self._kept)

    def interval(self) -> Interval:
        """Of what was kept; num_samples says how many were seen."""
        return msgspec.structs.replace(median_interval(self._kept), num_samples=self.num_seen)

    def trend(self) -> tuple[float, float] | None:
        """Medians of the first and the last third, or None for a short series."""
        third = len(self._kept) // 3
        if 3 * third < _FEWEST_FOR_A_TREND:
            return None
        return median_interval(self._kept[:third]).median, median_interval(self._kept[-third:]).median
