"""What the ranks of the two-GPU suite do besides serving: replays of an engine, and eager times of a backend.

Entry points of rank processes; the suite puts its folder on their path.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from typing import Any

import gpu_engines
import msgspec
import torch

from alula.comm.backends.protocol import admission
from alula.comm.group import Group
from alula.comm.timing import timed_work
from alula.comm.trial_worker import TrialPayload, TrialWorker
from alula.engine.backends import Worker, build_engine
from alula.engine.setup import EngineSpec, load_parts

_EAGER_CALLS, _EAGER_RUNS = 50, 5


class Replays(msgspec.Struct, frozen=True):
    """Isolated replays of a decode cycle (gpu_engines.time_replays), and one eager run of each phase where there is no
    graph."""

    kv: int
    batch: int
    width: int
    repeats: int


class Eager(msgspec.Struct, frozen=True):
    """Microseconds of one backend's calls without a graph: {(op, bytes): us}."""

    backend: str


class SuiteWorker(Worker):
    """An engine that can also be timed in isolation."""

    def handle(self, command: Any) -> Any:
        if isinstance(command, Replays):
            engine: Any = self._engine
            return gpu_engines.time_replays(engine, command.kv, command.batch, command.width, command.repeats)
        return super().handle(command)


class SuiteTrialWorker(TrialWorker):
    """A trial's worker that can also time calls as they come eagerly."""

    def handle(self, command: Any) -> Any:
        if not isinstance(command, Eager):
            return super().handle(command)
        backend = self._backends[command.backend]
        self._complete(backend)
        times = {}
        for call in self._calls:
            if admission(backend, call).admitted:
                times[call.op, call.num_bytes] = self._time_eager(backend, call)
        return times

    def _time_eager(self, backend: Any, call: Any) -> float:
        dtype = getattr(torch, call.dtype)
        size = call.num_bytes // dtype.itemsize // call.num_rows
        x = torch.zeros(call.num_rows, size, dtype=dtype, device="cuda")
        times, work = [], timed_work(backend, call, x)
        for _ in range(_EAGER_RUNS):
            self._place.host.all_gather(torch.zeros(1, dtype=torch.int64), 0)
            work()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_EAGER_CALLS):
                work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / _EAGER_CALLS)
        return statistics.median(times)


def build_engine_worker(spec: EngineSpec, group: Group) -> SuiteWorker:
    """A rank that serves; on a CPU over torch's reference kernels, so that its cycle is the device-resident one."""
    with gpu_engines.reference_kernels_on_cpu() if spec.config.device == "cpu" else nullcontext():
        return SuiteWorker(build_engine(load_parts(spec, group)))


def build_trial(payload: TrialPayload, group: Group) -> SuiteTrialWorker:
    """A rank that tries backends."""
    return SuiteTrialWorker(payload, group)
