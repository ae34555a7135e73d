"""Counts of one request's speculation. Definitions: docs/metrics.md.

Drafts are counted before an answer is cut by a stop or its length; the prefill token is not counted.
"""

from __future__ import annotations

from alula.core.config import MAX_STEPS


class Tally:
    """Mutable counters. Invariant before truncation: tokens emitted = accepted + cycles."""

    def __init__(self) -> None:
        self.num_cycles = 0
        self.drafted = 0
        self.accepted = 0
        self.num_truncated_cycles = 0
        self._drafted_at = [0] * MAX_STEPS
        self._accepted_at = [0] * MAX_STEPS

    def count(self, drafted: int, accepted: int, truncated: bool) -> None:
        self.num_cycles += 1
        self.drafted += drafted
        self.accepted += accepted
        self.num_truncated_cycles += truncated
        for position in range(drafted):
            self._drafted_at[position] += 1
            self._accepted_at[position] += position < accepted

    @property
    def drafted_per_position(self) -> tuple[int, ...]:
        return tuple(n for n in self._drafted_at if n)

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        return tuple(self._accepted_at[: len(self.drafted_per_position)])
