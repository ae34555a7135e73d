"""Workers that ranks build in the tests of tensor parallelism: an engine that hands out the logits of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from alula.comm.group import Group
from alula.core.sampling import SamplingParams
from alula.engine.setup import EngineSpec, Parts, load_parts
from engine_spy import SpiedEngine, with_limits


@dataclass(frozen=True)
class Run:
    """Requests for one engine: (prompt, sampling, steps) each, `gap` cycles apart."""

    requests: tuple[tuple[tuple[int, ...], SamplingParams, int], ...]
    chunk_tokens: int = 512
    num_pages: int | None = None
    gap: int = 0


@dataclass(frozen=True)
class Diverge:
    """From now on the last rank sees other logits than the rest."""


@dataclass(frozen=True)
class Ran:
    """For each request: its output tokens, and the logits of the rows on its path [rows, V] with their positions."""

    token_ids: list[list[int]]
    positions: list[list[int]]
    logits_RV: list[Tensor]
    num_preemptions: int


def run(parts: Parts, command: Run) -> Ran:
    spied = SpiedEngine(with_limits(parts, chunk_tokens=command.chunk_tokens, num_pages=command.num_pages))
    told = []
    for prompt, sampling, steps in command.requests:
        told.append(spied.add(prompt, sampling, steps))
        for _ in range(command.gap):
            spied.step()
    spied.run()
    rows = [one.true_rows for one in told]
    records = [one.last.record for one in told if one.last is not None]
    return Ran(
        token_ids=[one.token_ids for one in told],
        positions=[[row.position for row in path] for path in rows],
        logits_RV=[torch.stack([row.logits_V for row in path]) for path in rows],
        num_preemptions=sum(record.num_preemptions for record in records if record is not None),
    )


class EngineWorker:
    def __init__(self, parts: Parts, group: Group) -> None:
        self._parts = parts
        self._group = group

    def handle(self, command: Any) -> Any:
        if isinstance(command, Diverge):
            if self._group.rank == self._group.size - 1:
                self._parts = replace(self._parts, target=_OffTarget(self._parts.target))  # type: ignore[arg-type]
            return None
        return run(self._parts, command)


class _OffTarget:
    """A target whose logits are off by one bit or so."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._target(*arguments)

    def logits(self, hidden_RH: Tensor, phase: str) -> Tensor:
        return self._target.logits(hidden_RH, phase) * (1 + 1e-6)


def build(spec: EngineSpec, group: Group) -> EngineWorker:
    return EngineWorker(load_parts(spec, group), group)
