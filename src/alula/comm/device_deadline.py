"""Waits of the host for the device that end even where the device never does.

A collective in a graph has no watchdog: where a rank is gone, the kernels of the others spin for ever, and so would a
synchronisation behind them. So on several ranks the host asks an event again and again, and gives up as
comm/patience.py says. Afterwards CUDA cannot be used any more, not even to clean up: the error is reported and the
process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from alula.comm.group import Group
from alula.comm.patience import Clock, Peers

# Cycles take milliseconds: this long the host only asks, then it sleeps between questions.
SPIN_S = 0.002
NAP_SHARE = 0.01  # of the time it has waited already,
SHORTEST_NAP_S, LONGEST_NAP_S = 50e-6, 200e-6  # within these


class Event(Protocol):
    """A point of the device's timeline, as torch.cuda.Event is."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


def wait_for(
    event: Event,
    peers: Peers | None,
    phase: str,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when the device has come to the event. Raises RankFailure where other ranks keep it from that.

    phase: what the device is at, for the message. peers: None on a single rank, which waits without a limit.
    """
    if peers is None:
        event.synchronize()
        return
    if event.query():
        return
    began = clock()
    while clock() - began < SPIN_S:
        if event.query():
            return
    with peers.own.waiting():
        patience = peers.patience(clock)
        while not event.query():
            sleep(min(max((clock() - began) * NAP_SHARE, SHORTEST_NAP_S), LONGEST_NAP_S))
            if patience.due() and (fault := patience.look(peers.others)) and not event.query():
                raise peers.failure(fault, f"phase {phase} for its device")


def settle(group: Group, device: torch.device, phase: str) -> None:
    """Before the host reads from the device: waits until all that was launched has run. Nothing on a single rank,
    where the read itself may wait."""
    if group.peers is not None and device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        wait_for(event, group.peers, phase)
