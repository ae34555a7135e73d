"""How much time is left for measuring. Its clock is given, so that tests need none."""

from __future__ import annotations

import time
from collections.abc import Callable

GPU_SECONDS, CPU_SECONDS = 120.0, 300.0  # where the user names no --budget


class Budget:
    """A stretch of time that began when this was made. now: seconds of a clock that only goes forward."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._now = now
        self._end = now() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - self._now())

    @property
    def now_s(self) -> float:
        return self._now()

    def share(self, part: float) -> Share:
        """A part of the whole budget, but no more than what is left of it."""
        return Share(self, self._now() + min(self.left_s, part * self.seconds))


class Share:
    """What one experiment may take."""

    def __init__(self, budget: Budget, end_s: float) -> None:
        self._budget = budget
        self._end_s = end_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - self._budget.now_s)
