"""Faults for explain_faults.py: patches of the engine's own functions, which the profiler cannot see.

Local plants are context managers. For engines over ranks each `build_...` stands in for `build_rank_worker` of
alula.engine.backends; the suite puts this folder on the ranks' path. Durations come from the environment, under a name
that nothing in alula reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from alula.comm.group import Group
from alula.engine import backends
from alula.engine.engine import Engine
from alula.engine.scheduler import Scheduler
from alula.engine.setup import EngineSpec, load_parts
from alula.layers.mlp import GatedMLP
from alula.spec.draft_model import DraftModel

DURATION = "FAULT_PLANT_MS"
LARGE_BYTES = 32 * 1024
STARTUP_FILE = "import os\nif os.environ.get('RANK') == '1': os.environ.pop('NCCL_BUFFSIZE', None)\n"


class _Switch:
    """Whether what is planted in this process does anything."""

    on = True


def set_active(engine: Engine, on: bool) -> None:
    """Switches the plants of a process on or off; an experiment of `LLM.experiment`, which reaches every rank."""
    del engine
    _Switch.on = on


def sleep(seconds: float) -> None:
    if _Switch.on:
        time.sleep(seconds)


def work(seconds: float) -> None:
    """Keeps the core busy: who is slow works, and leaves nobody else the core or its caches."""
    end = time.perf_counter() + seconds
    while _Switch.on and time.perf_counter() < end:
        pass


@contextmanager
def host_sleep(ms: float) -> Iterator[None]:
    """The host sleeps before it schedules a cycle."""
    schedule = Scheduler.schedule

    def slow(self: Scheduler, *arguments: Any, **named: Any) -> Any:
        sleep(ms / 1e3)
        return schedule(self, *arguments, **named)

    with mock.patch.object(Scheduler, "schedule", slow):
        yield


@contextmanager
def slow_draft(ms: float) -> Iterator[None]:
    """Every pass of the draft model takes that much longer."""
    call = DraftModel.__call__

    def slow(self: DraftModel, *arguments: Any, **named: Any) -> Any:
        work(ms / 1e3)
        return call(self, *arguments, **named)

    with mock.patch.object(DraftModel, "__call__", slow):
        yield


@contextmanager
def in_ranks(build: Callable[..., Any], ms: float) -> Iterator[None]:
    """Ranks are built by `build`, which plants something."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(backends, "build_rank_worker", build))
        stack.enter_context(mock.patch.dict(os.environ, {DURATION: str(ms)}))
        yield


@contextmanager
def lost_variable(folder: str) -> Iterator[None]:
    """Rank 1 loses a planned variable between its start and its proof."""
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(STARTUP_FILE)
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        yield


def _delayed(group: Group, larger_than: int) -> None:
    """Every all-reduce of more bytes than that begins late, in this rank as in the others."""
    all_reduce, seconds = group.all_reduce, float(os.environ[DURATION]) / 1e3

    def late(x: Tensor, phase: str) -> Tensor:
        if x.nbytes > larger_than:
            sleep(seconds)
        return all_reduce(x, phase)

    group.all_reduce = late  # type: ignore[method-assign]


def build_delay(spec: EngineSpec, group: Group) -> backends.Worker:
    parts = load_parts(spec, group)
    _delayed(group, 0)
    return backends.Worker(backends.build_engine(parts))


def build_delay_of_large(spec: EngineSpec, group: Group) -> backends.Worker:
    parts = load_parts(spec, group)
    _delayed(group, LARGE_BYTES)
    return backends.Worker(backends.build_engine(parts))


def build_slow_rank(spec: EngineSpec, group: Group) -> backends.Worker:
    """The last rank takes longer in each of its own MLPs: it works, its collectives are as quick as ever."""
    if group.rank == group.size - 1:
        call, seconds = GatedMLP.__call__, float(os.environ[DURATION]) / 1e3

        def slow(self: GatedMLP, *arguments: Any, **named: Any) -> Any:
            work(seconds)
            return call(self, *arguments, **named)

        GatedMLP.__call__ = slow  # type: ignore[method-assign]
    return backends.Worker(backends.build_engine(load_parts(spec, group)))
