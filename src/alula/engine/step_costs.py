"""What plain steps and drafted cycles cost here, by how many requests decode: medians of recent cycle records.

Sees times that others took; has no clock. What was measured at start may stand in until live cycles say more.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

import msgspec

# Timings of one kind that are kept: enough for a median to bear hiccups, few enough to follow a change of load.
WINDOW = 9
# Requests with less in their cache count as equally long: below it, attention is a small part of a step.
_SHORT_KV_TOKENS = 1024


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured beforehand, for `batch` requests that decode: a plain step and a drafted cycle."""

    batch: int
    plain_ms: float
    cycle_ms: float


class Place(msgspec.Struct, frozen=True):
    """Where costs are comparable: requests that decode, and the mean length of their caches, as powers of two."""

    batch_log2: int
    kv_log2: int


def place(num_requests: int, kv_tokens: int) -> Place:
    """`kv_tokens` over all requests."""
    mean_kv = max(_SHORT_KV_TOKENS, kv_tokens // num_requests)
    return Place((num_requests - 1).bit_length(), mean_kv.bit_length())


class Timings:
    """Recent times of one kind of cycle at one place, and when the last one was taken (a count of cycles)."""

    def __init__(self) -> None:
        self._recent_ms: deque[float] = deque(maxlen=WINDOW)
        self._renewed = False
        self.last_taken = 0

    def __len__(self) -> int:
        return len(self._recent_ms)

    def add(self, ms: float, now: int) -> None:
        if self._renewed:
            self._recent_ms.clear()
            self._renewed = False
        self._recent_ms.append(ms)
        self.last_taken = now

    def renew(self) -> None:
        """The next time replaces all that were taken before."""
        self._renewed = True

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self._recent_ms) if self._recent_ms else None


class StepCosts:
    """Timings of plain steps and drafted cycles at every place that was visited."""

    def __init__(self, measured: Sequence[StepCost] = ()) -> None:
        self._measured = sorted(measured, key=lambda cost: cost.batch)
        self._timings: dict[tuple[Place, bool], Timings] = {}

    def add(self, at: Place, drafted: bool, ms: float, now: int, *, steady: bool) -> None:
        """Takes a time, if `steady`: a cycle after one of the other kind, or one that caught up, says little.

        The first of a kind at a place is dropped too: first calls pay for allocations, packed weights, graphs.
        """
        timings = self._timings.get((at, drafted))
        if timings is None:
            self._timings[at, drafted] = Timings()
        elif steady:
            timings.add(ms, now)

    def of(self, at: Place, drafted: bool) -> Timings:
        """Empty where there are none yet."""
        return self._timings.get((at, drafted)) or Timings()

    def renew(self, at: Place, drafted: bool) -> None:
        self.of(at, drafted).renew()

    def plain_known(self, at: Place) -> bool:
        return len(self.of(at, drafted=False)) > 0 or bool(self._measured)

    def break_even(self, at: Place) -> float | None:
        """Plain steps that a drafted cycle costs: live times where both are there, else those taken at start."""
        plain_ms, cycle_ms = self.of(at, False).median_ms, self.of(at, True).median_ms
        if plain_ms and cycle_ms is not None:
            return cycle_ms / plain_ms
        if not self._measured:
            return None
        batch = 1 << at.batch_log2
        seed = next((cost for cost in self._measured if cost.batch >= batch), self._measured[-1])
        return seed.cycle_ms / seed.plain_ms
