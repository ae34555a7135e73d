"""Workers that ranks build in the tests of the pool; the last rank is the one that misbehaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch

from alula.comm.group import Group
from alula.core.environment import c_getenv
from alula.core.errors import CheckpointError, OutOfPages


class RankWorker:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._last = group.rank == group.size - 1

    def handle(self, command: tuple[Any, ...]) -> Any:
        name, *arguments = command
        return getattr(self, name)(*arguments)

    def describe(self) -> tuple[int, int, int, str]:
        return self._group.rank, self._group.size, torch.get_num_threads(), os.environ["RANK"]

    def environment(self, names: list[str]) -> list[str | None]:
        return [c_getenv(name) for name in names]

    def echo(self, value: Any) -> Any:
        print("a stray line")  # must not reach the engine's standard output
        return value

    def out_of_pages(self) -> None:
        raise OutOfPages("a request of 9 pages does not fit 8")

    def one_raises(self) -> None:
        if self._last:
            raise ValueError("seven is odd")
        self._group.all_reduce(torch.ones(1), "verify")

    def one_dies(self) -> None:
        self._group.all_reduce(torch.ones(1), "verify")
        if self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._group.all_reduce(torch.ones(1), "verify")

    def long_but_alive(self, seconds: float) -> str:
        for _ in range(int(seconds / 0.1)):
            time.sleep(0.1)
            self._group.all_reduce(torch.ones(1), "verify")
        return "done"

    def alone_for(self, seconds: float) -> str:
        """Nobody waits for anybody."""
        time.sleep(seconds)
        self._group.all_reduce(torch.ones(1), "verify")
        return "done"

    def one_is_late(self, seconds: float) -> str:
        if self._last:
            time.sleep(seconds)
        self._group.all_reduce(torch.ones(1), "verify")
        return "done"

    def one_stops(self) -> None:
        for _ in range(3):
            self._group.all_reduce(torch.ones(8), "extend")
        if self._last:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._group.all_reduce(torch.ones(4), "draft")

    def one_loops(self) -> None:
        self._group.all_reduce(torch.ones(1), "draft")
        while self._last:
            pass
        self._group.all_reduce(torch.ones(1), "verify")

    def one_never_answers(self) -> None:
        """Nobody waits for the last rank but the engine."""
        self._group.all_reduce(torch.ones(1), "emit")
        if self._last:
            time.sleep(600)

    def one_leaves(self) -> None:
        """Different decisions: the last rank has nothing to sum."""
        if not self._last:
            self._group.all_reduce(torch.ones(1), "verify")

    def one_differs(self) -> None:
        self._group.all_reduce(torch.ones(2 if self._last else 1), "verify")

    def collectives(self) -> None:
        while True:
            self._group.all_reduce(torch.ones(1000), "verify")

    def wait_in_collective(self) -> None:
        if self._last:
            time.sleep(600)
        self._group.all_reduce(torch.ones(1), "verify")

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def interrupt(self) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return os.getpid()


def build(payload: None, group: Group) -> RankWorker:
    return RankWorker(group)


def build_badly(payload: str, group: Group) -> RankWorker:
    if group.rank == group.size - 1:
        if payload == "exit":
            sys.exit(3)
        if payload == "environment":
            os.environ["OMP_NUM_THREADS"] = "9"
        if payload == "checkpoint":
            raise CheckpointError("shard 2 is truncated")
    return RankWorker(group)
