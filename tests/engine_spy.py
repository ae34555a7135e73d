"""An engine whose target tells what it computed: the logits of every row of every forward, by request and position.

Engines of one family share their loaded parts, and so a cache that holds what earlier ones left in it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

import tiny_models
from alula.comm.group import single_group
from alula.core.config import EngineConfig
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine, StepOutput
from alula.engine.request import RequestSpec, Update
from alula.engine.setup import EngineSpec, Parts, load_parts
from alula.models.source import resolve_source

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
# One of each kind of draw; a device-resident cycle draws the last two on the host.
SAMPLINGS = [
    GREEDY,
    SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=5),
    SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.7, top_k=20, top_p=0.9, seed=6),
    SamplingParams(max_tokens=7, ignore_eos=True, temperature=1.3, min_p=0.05, seed=7, sample_index=2),
    SamplingParams(
        max_tokens=12, ignore_eos=True, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3
    ),
    SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.9, repetition_penalty=1.2, logprobs=2, seed=8),
]


@functools.cache
def load(family: str = "plain", head: str | None = None, dtype: str = "float32", exact: bool = False) -> Parts:
    """The parts of a tiny model; head: "bigram", "random" or None. On one thread: a second one mostly waits."""
    config = EngineConfig(dtype=dtype, exact=exact, device="cpu", page_tokens=4, max_batch=16, threads=1)
    folder = tiny_models.checkpoint(family, getattr(torch, dtype))
    spec = EngineSpec(
        source=resolve_source(str(folder)),
        head=None if head is None else tiny_models.head(family, head),
        config=config,
    )
    return load_parts(spec, single_group())


def with_limits(
    parts: Parts, *, chunk_tokens: int | None = None, num_pages: int | None = None, max_batch: int | None = None
) -> Parts:
    """The same parts with other limits; pages are counted with the dummy."""
    limits = {"chunk_tokens": chunk_tokens, "max_batch": max_batch}
    config = msgspec.structs.replace(parts.config, **{k: v for k, v in limits.items() if v is not None})
    if num_pages is None:
        return replace(parts, config=config)
    context = min(parts.context_tokens, (num_pages - 1) * config.page_tokens)
    return replace(parts, config=config, num_pages=num_pages, context_tokens=context)


@dataclass(frozen=True)
class SeenRow:
    """One row of a target forward."""

    position: int
    token: int
    logits_V: Tensor


class SpyTarget:
    """Stands in front of a target, and keeps the ids, positions and logits of a cycle's forwards."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.seen: list[SeenRow] = []
        self.num_rows: list[int] = []  # of each forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def __call__(self, forward: Any, boundaries: tuple[int, ...] = ()) -> Any:
        output = self._target(forward, boundaries)
        logits_RV = self._target.logits(output.hidden_RH, forward.phase)
        columns = zip(forward.positions_R.tolist(), forward.ids_R.tolist(), logits_RV, strict=True)
        rows = [SeenRow(position, token, logits_V) for position, token, logits_V in columns]
        num_rows = sum(group.num_requests * group.width for group in forward.groups)  # the rest is padding
        self.seen += rows[:num_rows]
        self.num_rows.append(num_rows)
        return output


@dataclass
class Told:
    """What became of one request. `blocks` are its rows, a list for each cycle that it took part in."""

    spec: RequestSpec
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    blocks: list[list[SeenRow]] = field(default_factory=list)
    last: Update | None = None

    @property
    def ids(self) -> list[int]:
        return [*self.spec.prompt_ids, *self.token_ids]

    @property
    def true_rows(self) -> list[SeenRow]:
        """Rows on the path that was taken: a block counts up to its first rejected draft."""
        rows = []
        for block in self.blocks:
            for row in block:
                if row.position >= len(self.ids) or self.ids[row.position] != row.token:
                    break
                rows.append(row)
        return rows


class SpiedEngine:
    """One engine and all that it told."""

    def __init__(self, parts: Parts) -> None:
        self._spy = SpyTarget(parts.target)
        self.engine = Engine(replace(parts, target=self._spy))  # type: ignore[arg-type]
        self.told: dict[str, Told] = {}
        self.cycles: list[CycleRecord] = []

    def add(self, prompt_ids: Sequence[int], sampling: SamplingParams | None = None, steps: int = 0) -> Told:
        sampling = sampling or SamplingParams(max_tokens=8, ignore_eos=True)
        spec = RequestSpec(
            request_id=f"request-{len(self.told)}", prompt_ids=tuple(prompt_ids), sampling=sampling, steps=steps
        )
        self.engine.add(spec)
        told = self.told[spec.request_id] = Told(spec)
        return told

    @property
    def forward_sizes(self) -> list[int]:
        """Rows of each target forward of the last cycle."""
        return list(self._spy.num_rows)

    def step(self) -> StepOutput:
        self._spy.seen, self._spy.num_rows = [], []
        output = self.engine.step()
        self.cycles.append(output.record)
        rows = iter(self._spy.seen)
        for part in output.record.requests:
            self.told[part.request_id].blocks.append([next(rows) for _ in range(part.width)])
        for update in output.updates:
            told = self.told[update.request_id]
            told.token_ids += update.token_ids
            told.text += update.text
            told.last = update if update.finish_reason else told.last
        return output

    def run(self) -> None:
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine never ran out of work")

    def rows_by_position(self) -> dict[str, dict[int, list[SeenRow]]]:
        found: dict[str, dict[int, list[SeenRow]]] = {}
        for request_id, told in self.told.items():
            found[request_id] = defaultdict(list)
            for row in told.true_rows:
                found[request_id][row.position].append(row)
        return found
