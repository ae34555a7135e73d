"""How many CPU threads a decode step takes, decided by timing it here. Knows nothing of what a step computes.

More threads are not always faster: each small operation waits for all of them, so on a machine where something else
keeps a core busy two threads may need ten times as long as one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec
import torch

# Waiting threads burn their cores, so more of them must pay.
MIN_GAIN = 1.1
_WARM_UPS, _TIMED = 2, 5


class ThreadChoice(msgspec.Struct, frozen=True, kw_only=True):
    """num_threads: what torch now uses. step_ms: median of a step by number of threads, where any was timed."""

    num_threads: int
    step_ms: dict[str, float] = {}


def choose_threads(step: Callable[[], object]) -> ThreadChoice:
    """Times `step` with torch's present number of threads and with one, and leaves torch at the better."""
    many = torch.get_num_threads()
    if many == 1:
        return ThreadChoice(num_threads=1)
    timed = {count: _median_ms(step, count) for count in (many, 1)}
    best = many if timed[1] > MIN_GAIN * timed[many] else 1
    torch.set_num_threads(best)
    return ThreadChoice(num_threads=best, step_ms={str(count): round(ms, 2) for count, ms in timed.items()})


def _median_ms(step: Callable[[], object], num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    for _ in range(_WARM_UPS):
        step()
    times = []
    for _ in range(_TIMED):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)
