"""How long ranks wait for each other, and whom they blame. Reads what ranks show of themselves, ends nothing.

The rule (docs/ranks.md). With a deadline D, a wait for other ranks ends
  - once one of them has shown no heartbeat for D: it is stopped, or its machine is;
  - after D where nobody computes: every rank that is waited for waits too, so nothing can change;
  - after PATIENCE times D in any case: the one that is behind beats, and may compile, compute or loop for ever.
A rank that is still starting (loading libraries, reading weights) may be silent for START_SILENCE_S, and may let others
wait for START_PATIENCE_S; one that has not begun to beat, for ABSENT_S.

Time counts only while the waiting process itself runs: after Ctrl-Z and `fg` nobody is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from alula.comm.faults import BEHIND, SILENT, STUCK, Fault, describe, explained, name_ranks
from alula.comm.segment import Segment
from alula.comm.watch import ABSENT, READY, STARTING, RankWatch, Watch
from alula.core.errors import RankFailure

PATIENCE = 3.0
START_SILENCE_S, START_PATIENCE_S = 60.0, 600.0
ABSENT_S = 600.0
LIBRARY_WAIT_S = 60.0
LOOK_S = 0.05  # the looks of a wait are at least this far apart,
LONGEST_STEP_S = 0.5  # and count for no more than this
# Of a deadline: how long the others must have waited too before nobody is said to compute.
_WAITING_SHARE = 0.5

Clock = Callable[[], float]


class RunningTime:
    """Seconds since the last look, but no more than a process that was never stopped can have let pass."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def since_look(self) -> float:
        return self._clock() - self._last

    def take(self) -> float:
        now = self._clock()
        step, self._last = min(now - self._last, LONGEST_STEP_S), now
        return step


class Silence:
    """For how long each rank has shown no heartbeat, as far as one observer has looked."""

    def __init__(self, watch: Watch, deadline_s: float) -> None:
        self._watch = watch
        self._deadline_s = deadline_s
        self._seen = [watch.beats(rank) for rank in range(watch.num_ranks)]
        self._silent_s = [0.0] * watch.num_ranks

    def add(self, step_s: float) -> None:
        for rank in range(self._watch.num_ranks):
            beats = self._watch.beats(rank)
            self._silent_s[rank] = self._silent_s[rank] + step_s if beats == self._seen[rank] else 0.0
            self._seen[rank] = beats

    def fault(self, ranks: Iterable[int]) -> Fault | None:
        """The ranks that have been silent for too long, if there are any."""
        silent = tuple(rank for rank in ranks if self._silent_s[rank] >= self._limit_s(rank))
        if not silent:
            return None
        return Fault(kind=SILENT, ranks=silent, waited_s=self._silent_s[silent[0]])

    def _limit_s(self, rank: int) -> float:
        limits = {
            ABSENT: max(self._deadline_s, ABSENT_S),
            STARTING: max(self._deadline_s, START_SILENCE_S),
            READY: self._deadline_s,
        }
        return limits[self._watch.stage(rank)]


class Patience:
    """One wait of a rank for others."""

    def __init__(self, watch: Watch, deadline_s: float, clock: Clock = time.monotonic) -> None:
        self._watch = watch
        self._deadline_s = deadline_s
        self._time = RunningTime(clock)
        self._silence = Silence(watch, deadline_s)
        self._waits = [watch.wait(rank) for rank in range(watch.num_ranks)]
        self._waiting_s = [0.0] * watch.num_ranks
        self._waited_s = 0.0

    def due(self) -> bool:
        """Whether it is time to look again: looks cost more than polls."""
        return self._time.since_look() >= LOOK_S

    def look(self, peers: Sequence[int]) -> Fault | None:
        """Whether the wait for these ranks is over, and whose fault it is."""
        step_s = self._time.take()
        self._waited_s += step_s
        self._silence.add(step_s)
        self._add_waits(step_s)
        if fault := self._silence.fault(peers):
            return fault
        if self._waited_s >= self._deadline_s and self._nobody_computes(peers):
            return Fault(kind=STUCK, ranks=self._behind(peers), waited_s=self._waited_s)
        if self._waited_s >= max(self._patience_s(rank) for rank in peers):
            return Fault(kind=BEHIND, ranks=self._behind(peers), waited_s=self._waited_s)
        return None

    def _add_waits(self, step_s: float) -> None:
        for rank, before in enumerate(self._waits):
            wait = self._watch.wait(rank)
            self._waiting_s[rank] = self._waiting_s[rank] + step_s if wait and wait == before else 0.0
            self._waits[rank] = wait

    def _nobody_computes(self, peers: Sequence[int]) -> bool:
        return all(self._waiting_s[rank] >= self._deadline_s * _WAITING_SHARE for rank in peers)

    def _behind(self, peers: Sequence[int]) -> tuple[int, ...]:
        """Those of the peers that have made the fewest calls."""
        fewest = min(self._watch.calls(rank) for rank in peers)
        return tuple(rank for rank in peers if self._watch.calls(rank) == fewest)

    def _patience_s(self, rank: int) -> float:
        usual = PATIENCE * self._deadline_s
        return {ABSENT: max(usual, ABSENT_S), STARTING: max(usual, START_PATIENCE_S), READY: usual}[
            self._watch.stage(rank)
        ]


class Peers:
    """The other ranks of one rank, for whatever has to wait for them."""

    def __init__(self, segment: Segment, rank: int, deadline_s: float) -> None:
        self.rank = rank
        self.watch = Watch(segment)
        self.own = RankWatch(segment, rank)
        self.others = tuple(peer for peer in range(segment.num_ranks) if peer != rank)
        self._deadline_s = deadline_s

    def patience(self, clock: Clock = time.monotonic) -> Patience:
        """For one wait that begins now."""
        return Patience(self.watch, self._deadline_s, clock)

    def failure(self, fault: Fault, where: str) -> RankFailure:
        """The error of a wait in `where` (a call, a phase) that came to its end."""
        named = name_ranks(fault.ranks)
        return RankFailure(
            f"rank {self.rank} waited in {where}; {named} did not arrive ({describe(fault)}). "
            f"{explained(self.watch, fault.kind, sorted({*fault.ranks, self.rank}))}",
            rank=fault.ranks[0],
        )


def longest_wait_s(deadline_s: float) -> float:
    """A limit for libraries that wait by themselves and see no heartbeats: behind the limits of a running engine."""
    return max(PATIENCE * deadline_s, LIBRARY_WAIT_S) + LONGEST_STEP_S
