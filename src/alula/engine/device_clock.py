"""Times of a cycle that runs on the device while the host is elsewhere: marks in the stream, read when it has ended.

On a CPU the marks are the host's clock, and the cycle has ended when its last call returned.
"""

from __future__ import annotations

import time

import torch

from alula.comm.device_deadline import wait_for
from alula.comm.patience import Peers
from alula.core.records import PHASES


class Mark:
    """A point of the device's timeline."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._host_s = 0.0
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        else:
            self._host_s = time.perf_counter()

    def wait(self, peers: Peers | None = None, phase: str = "other") -> None:
        """Returns when the device has come here; RankFailure where other ranks keep it from that."""
        if self._event is not None:
            wait_for(self._event, peers, phase)

    def since_ms(self, earlier: Mark) -> float:
        """Milliseconds from `earlier` to here; both must have been reached."""
        if self._event is not None and earlier._event is not None:
            return earlier._event.elapsed_time(self._event)
        return (self._host_s - earlier._host_s) * 1e3


class FlightClock:
    """Cuts one cycle into consecutive phases. peers: the ranks that the cycle may have to wait for."""

    def __init__(self, device: torch.device, peers: Peers | None = None) -> None:
        self._device = device
        self._peers = peers
        self._marks: list[tuple[str, Mark]] = []
        self.end: Mark | None = None

    def enter(self, phase: str) -> None:
        """Ends the phase under way and begins `phase`."""
        self._marks.append((phase, Mark(self._device)))

    def finish(self) -> None:
        """Ends the cycle."""
        self.end = Mark(self._device)

    def resolve(self, previous: Mark | None) -> tuple[float, dict[str, float]]:
        """(wall ms, ms by phase), waiting for the end. previous: the end of the cycle before, where this one was
        launched before it had ended: then the wall time counts from there. What no phase covers is `other`."""
        assert self.end is not None
        self._wait()
        phases = dict.fromkeys(PHASES, 0.0)
        for (phase, begin), after in zip(self._marks, [*(m for _, m in self._marks[1:]), self.end], strict=True):
            phases[phase] += after.since_ms(begin)
        begun = previous or (self._marks[0][1] if self._marks else self.end)
        wall_ms = self.end.since_ms(begun)
        phases["other"] += max(0.0, wall_ms - sum(phases.values()))
        return wall_ms, phases

    def _wait(self) -> None:
        """For each phase in turn: where the device stands still, the message can say in which."""
        assert self.end is not None
        if self._peers is None:
            self.end.wait()
            return
        for (phase, _), after in zip(self._marks, [*(mark for _, mark in self._marks[1:]), self.end], strict=True):
            after.wait(self._peers, phase)
        self.end.wait(self._peers)
