"""Workers that ranks build in the tests of faults and of paths: engines in which one thing is planted.

Each `build_...` stands in for `build_rank_worker` of alula.engine.backends, for an LLM over such ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

import device_workers
from alula.comm.group import Group
from alula.comm.rules import Rules
from alula.comm.table import MeasuredTable, Timing
from alula.engine import backends
from alula.engine.setup import EngineSpec, Parts, load_parts

# Sums up to this size are faster through shared memory, larger ones through torch.distributed.
CROSSOVER_BYTES = 512
SLOW_S = 0.004
_TIMES = ((4, 20.0, 300.0), (CROSSOVER_BYTES, 299.0, 300.0), (1024, 600.0, 310.0))
TABLE = MeasuredTable(
    timings=tuple(
        Timing(op="all_reduce", num_bytes=num_bytes, backend=backend, us=us)
        for num_bytes, shared_us, distributed_us in (
            (4, 20.0, 300.0),
            (CROSSOVER_BYTES, 299.0, 300.0),
            (1024, 600.0, 310.0),
        )
        for backend, us in (("shared_memory", shared_us), ("torch_distributed", distributed_us))
    )
)


def build_with_table(spec: EngineSpec, group: Group) -> backends.Worker:
    return _with_table(spec, group, load_parts)


def build_with_table_on_device(spec: EngineSpec, group: Group) -> backends.Worker:
    return _with_table(spec, group, device_workers.load_device_parts)


def _with_table(spec: EngineSpec, group: Group, load: Callable[[EngineSpec, Group], Parts]) -> backends.Worker:
    parts = load(spec, group)
    group._dispatcher.adopt(Rules(table=TABLE))
    return backends.Worker(backends.build_engine(parts))


def build_with_a_slow_rank(spec: EngineSpec, group: Group) -> backends.Worker:
    """The last rank sleeps before each of its sums."""
    worker = backends.Worker(backends.build_engine(load_parts(spec, group)))
    if group.rank == group.size - 1:
        all_reduce = group.all_reduce

        def slow(x: Tensor, phase: str) -> Tensor:
            time.sleep(SLOW_S)
            return all_reduce(x, phase)

        group.all_reduce = slow  # type: ignore[method-assign]
    return worker


def build_with_wrong_bits(spec: EngineSpec, group: Group) -> backends.Worker:
    return _with_wrong_bits(spec, group, load_parts)


def build_with_wrong_bits_on_device(spec: EngineSpec, group: Group) -> backends.Worker:
    return _with_wrong_bits(spec, group, device_workers.load_device_parts)


def _with_wrong_bits(spec: EngineSpec, group: Group, load: Callable[[EngineSpec, Group], Parts]) -> backends.Worker:
    """From the first cycle on, rank 1 sees sums that are off by a bit or so, as a broken backend might give them."""
    worker = backends.Worker(backends.build_engine(load(spec, group)))
    if group.rank == 1:
        all_reduce = group.all_reduce

        def wrong(x: Tensor, phase: str) -> Any:
            return all_reduce(x, phase) * (1 + 1e-6)

        group.all_reduce = wrong  # type: ignore[method-assign]
    return worker
