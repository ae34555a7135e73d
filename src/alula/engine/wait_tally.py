"""How long one rank waited for the others while it ran cycles. Counts; who is to blame is for core/dispatch_paths.py.

What a rank waits at its start does not count: ranks load their weights at different speeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from alula.comm.group import Group
from alula.core.records import RankWaitRecord


class WaitTally:
    """Of one rank's group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._num_calls = 0
        self._waited_s = 0.0
        self._whole_s = 0.0

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Around one cycle."""
        began = time.perf_counter()
        calls, waited_s = self._group.waits()
        try:
            yield
        finally:
            calls_after, waited_after_s = self._group.waits()
            self._num_calls += calls_after - calls
            self._waited_s += waited_after_s - waited_s
            self._whole_s += time.perf_counter() - began

    def record(self) -> RankWaitRecord:
        return RankWaitRecord(
            rank=self._group.rank,
            num_calls=self._num_calls,
            waited_ms=self._waited_s * 1e3,
            share=self._waited_s / self._whole_s if self._whole_s else 0.0,
        )
