"""Cycle records to phases: what plain and drafted cycles cost and yield, in bounded memory.

Only decode cycles count: one in which any request read known tokens is a prompt's. Times are kept by batch, as medians
with intervals; counts are exact. Knows no hypothesis; the records' own words are passed on as evidence by the reader.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from alula.core.records import CycleRecord
from alula.profile.samples import Samples

HOST_PHASES = ("schedule", "emit", "other")
WINDOW = 32  # requests' cycles behind one value of tokens per cycle over time
MAX_BATCHES = 64


class CycleKind:
    """All decode cycles of one kind (plain, or drafted)."""

    def __init__(self) -> None:
        self.num_cycles = 0  # of requests: a cycle of three requests counts three
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_emitted = 0
        self.wall_ms: dict[int, Samples] = {}  # by batch
        self.phases_ms: dict[tuple[str, int], Samples] = {}  # by phase and batch
        self.accepted_at: Counter[int] = Counter()
        self.most_drafted = 0
        self.windows = Samples()
        self.outcomes: Counter[tuple[str, bool, str | None]] = Counter()  # phase, replayed, reason
        self._window: list[int] = []

    def add(self, cycle: CycleRecord) -> None:
        batch = len(cycle.requests)
        if batch not in self.wall_ms and len(self.wall_ms) >= MAX_BATCHES:
            return
        self.wall_ms.setdefault(batch, Samples()).add(cycle.wall_ms)
        for phase, ms in self._timed(cycle).items():
            self.phases_ms.setdefault((phase, batch), Samples()).add(ms)
        for phase, outcome in cycle.outcomes.items():
            self.outcomes[phase, outcome.replayed, outcome.reason] += 1
        for request in cycle.requests:
            self.num_cycles += 1
            self.num_drafted += request.drafted
            self.most_drafted = max(self.most_drafted, request.drafted)
            self.num_accepted += request.accepted
            self.num_emitted += request.emitted
            self.accepted_at.update(range(request.accepted))
            self._window.append(request.accepted)
        if len(self._window) >= WINDOW:
            self.windows.add(1 + sum(self._window) / len(self._window))
            self._window.clear()

    @staticmethod
    def _timed(cycle: CycleRecord) -> dict[str, float]:
        """Phases of the device as they are, those of the host as one."""
        timed = {phase: ms for phase, ms in cycle.phases_ms.items() if phase not in HOST_PHASES}
        timed["host"] = sum(cycle.phases_ms.get(phase, 0.0) for phase in HOST_PHASES)
        return timed

    def acceptance(self) -> tuple[float, ...]:
        """Share of the cycles that accepted the draft at position 0, 1, ..."""
        if not self.num_cycles:
            return ()
        return tuple(self.accepted_at[position] / self.num_cycles for position in range(self.most_drafted))


class RecordPhases(msgspec.Struct):
    """The decode cycles of one run, by kind."""

    plain: CycleKind = msgspec.field(default_factory=CycleKind)
    drafted: CycleKind = msgspec.field(default_factory=CycleKind)
    num_prompt_cycles: int = 0

    def add(self, cycle: CycleRecord) -> None:
        if not cycle.requests or any(request.num_prefill for request in cycle.requests):
            self.num_prompt_cycles += 1
        elif cycle.drafted:
            self.drafted.add(cycle)
        elif cycle.num_caught_up == 0:  # a cycle that caught up paid for an earlier one's draft
            self.plain.add(cycle)
