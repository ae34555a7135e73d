"""Workers that ranks build in the tests of the device-resident cycle over ranks: engines over torch's block kernels.

`build_rank_worker` stands in for the one of alula.engine.backends, for an LLM over such ranks.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor

from alula.comm.group import Group
from alula.engine import backends
from alula.engine.device_engine import DeviceEngine
from alula.engine.request import RequestSpec
from alula.engine.setup import EngineSpec, Parts, load_parts
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels
from engine_spy import with_limits

sys.path.append(str(Path(__file__).parent / "engine"))
import device_engines


@dataclass(frozen=True)
class Run:
    """Requests for one engine, `gap` steps apart. decisions: whether each launched cycle may draft, over and over."""

    specs: Sequence[RequestSpec]
    decisions: Sequence[bool] = (True,)
    gap: int = 0
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Ran:
    """For each request: its tokens. `digest` is of all logits of all forwards, in order."""

    token_ids: dict[str, list[int]]
    accepted: int
    num_preemptions: int
    num_cycles: int
    digest: str


@dataclass(frozen=True)
class Diverge:
    """From now on the last rank sees other logits than the rest."""


def load_device_parts(spec: EngineSpec, group: Group) -> Parts:
    """As load_parts, with torch's block kernels, as a GPU has Triton's."""
    with ExitStack() as stack:
        patch = "alula.engine.setup."
        stack.enter_context(mock.patch(f"{patch}choose_kernels", lambda device, dtype: reference_kernels()))
        stack.enter_context(
            mock.patch(f"{patch}choose_block_kernels", lambda device, group: (reference_block_kernels(), None))
        )
        return load_parts(spec, group)


def run(parts: Parts, command: Run) -> Ran:
    spy = _SpyTarget(parts.target)
    engine = DeviceEngine(replace(with_limits(parts, **dict(command.limits)), target=spy))  # type: ignore[arg-type]
    arrivals = [index * command.gap for index in range(len(command.specs))]
    told, records = device_engines.run(engine, command.specs, arrivals=arrivals, decisions=command.decisions)
    ends = [one.last.record for one in told.values() if one.last is not None]
    return Ran(
        token_ids={name: one.token_ids for name, one in told.items()},
        accepted=sum(record.accepted for record in ends if record is not None),
        num_preemptions=sum(record.num_preemptions for record in ends if record is not None),
        num_cycles=len(records),
        digest=spy.digest.hexdigest(),
    )


class _SpyTarget:
    """Stands in front of a target and hashes the logits of every block."""

    def __init__(self, target: Any, factor: float = 1.0) -> None:
        self._target = target
        self._factor = factor
        self.digest = hashlib.sha256()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def block_logits(self, *arguments: Any) -> Tensor:
        logits_RV = self._target.block_logits(*arguments)
        if self._factor != 1.0:
            logits_RV = logits_RV * self._factor
        self.digest.update(logits_RV.contiguous().numpy().tobytes())
        return logits_RV


class DeviceWorker:
    def __init__(self, parts: Parts, group: Group) -> None:
        self._parts = parts
        self._group = group

    def handle(self, command: Any) -> Any:
        if isinstance(command, Diverge):
            if self._group.rank == self._group.size - 1:
                off = _SpyTarget(self._parts.target, 1 + 1e-6)
                self._parts = replace(self._parts, target=off)  # type: ignore[arg-type]
            return None
        return run(self._parts, command)


def build(spec: EngineSpec, group: Group) -> DeviceWorker:
    return DeviceWorker(load_device_parts(spec, group), group)


def build_rank_worker(spec: EngineSpec, group: Group) -> backends.Worker:
    return backends.Worker(backends.build_engine(load_device_parts(spec, group)))
