"""The process of one rank: proves its environment, builds its worker, and executes commands until told to stop.

Only the standard library is imported before the rank is tied to its parent and knows what to do: torch takes seconds,
and in that time too a rank must not outlive the engine. Knows nothing of models: the entry function makes the worker.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Protocol

from alula.comm.environment_proof import explained, prove_at_start, prove_worker
from alula.comm.segment import Segment
from alula.comm.watch import READY, STARTING, RankWatch
from alula.engine.channel import Channel, ChannelClosed, Kind
from alula.engine.rank_messages import Start, decode, encode, encode_failure

PR_SET_PDEATHSIG = 1
PARENT_CHECK_MS = 1000
BEAT_S, BEAT_SHARE = 0.2, 0.1  # between heartbeats; of a short deadline, no more than this share


class Worker(Protocol):
    """What an entry function returns. `handle` runs one command; every rank is given the same ones in order."""

    def handle(self, command: Any) -> Any: ...


def main(control_fd: int, parent_pid: int) -> None:
    """Runs one rank; returns when the engine says so or has gone."""
    _die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the engine decides
    faulthandler.enable()  # a rank that crashes leaves its stack on stderr
    os.dup2(2, 1)  # standard output belongs to the engine: a stray print must not end up in its JSON
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    threading.Thread(target=_leave_without_parent, args=(control_fd, parent_pid), daemon=True).start()
    channel = Channel(control)
    try:
        _run(decode(channel.receive().body), channel)
    except ChannelClosed:
        return


def _run(start: Start, channel: Channel) -> None:
    watch = RankWatch(Segment(start.segment_fd), start.rank)
    try:
        found = prove_at_start(start.plan, start.rank)
        channel.send(Kind.ANSWER, encode(found))
        group = _join(start, watch)
        module, _, function = start.entry.partition(":")
        worker = getattr(importlib.import_module(module), function)(decode(start.payload), group)
        # Once more: by now libraries have started, and some set variables from files of their own.
        found = prove_worker(start.plan, start.rank, found)
    except ChannelClosed:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine reports it
        channel.send(Kind.FAILURE, encode_failure(start.rank, explained(error, start.plan, start.rank)))
        return
    watch.enter(READY)
    channel.send(Kind.ANSWER, encode(found))
    _execute(start.rank, worker, channel, watch)
    group.close()


def _join(start: Start, watch: RankWatch) -> Any:
    import torch  # seconds, in which nothing else of Python may run; see the head of this file

    watch.enter(STARTING)
    threading.Thread(target=_beat, args=(watch, start.timeout_s), name="alula-heart", daemon=True).start()

    from alula.comm.join import GroupMember, join_group

    torch.set_num_threads(start.plan.num_threads)
    parallel = start.plan.parallel
    member = GroupMember(
        rank=start.rank,
        size=parallel.tp,
        device=start.plan.device,
        collectives=parallel.collectives,
        timeout_s=start.timeout_s,
        segment_fd=start.segment_fd,
        share_gpus=parallel.share_gpus,
        prove=parallel.comm_proof != "off",
        tuning=start.tuning,
    )
    return join_group(member)


def _beat(watch: RankWatch, deadline_s: float) -> None:
    """Shows that this process runs, whatever its main thread is doing."""
    while True:
        watch.beat()
        time.sleep(min(BEAT_S, deadline_s * BEAT_SHARE))


def _execute(rank: int, worker: Worker, channel: Channel, watch: RankWatch) -> None:
    while True:
        with watch.waiting():
            frame = channel.receive()
        if frame.kind is Kind.STOP:
            return
        try:
            answer = worker.handle(decode(frame.body))
            body = encode(answer) if frame.kind is Kind.COMMAND else b""
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine reports it
            channel.send(Kind.FAILURE, encode_failure(rank, error))
        else:
            channel.send(Kind.ANSWER, body)


def _die_with_parent(parent_pid: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends (see engine/spawn.py)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the request
        os._exit(1)


def _leave_without_parent(control_fd: int, parent_pid: int) -> None:
    """Ends the process, whatever its main thread is doing, when the engine closes its end or has another parent.

    A second net where prctl does not exist, and for a pool that is dropped while a rank waits in a collective. The
    closed end alone would not do: a process forked from the engine holds a copy of it.
    """
    poller = select.poll()
    poller.register(control_fd, 0)  # no events asked for: a hang-up is always reported
    while not poller.poll(PARENT_CHECK_MS) and os.getppid() == parent_pid:
        pass
    os._exit(1)
