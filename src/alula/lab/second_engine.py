"""A second engine over the parts of the first, in every rank: served differently, with nothing loaded again.

Weights and caches are shared, which is sound while the first engine is idle. Runs inside of ranks, called through
`LLM.experiment`: no decision in here depends on a clock, since ranks must stay in step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from alula.comm.group import Group
from alula.core.records import CycleRecord, Refusal
from alula.engine.backends import build_engine
from alula.engine.engine import Engine
from alula.engine.request import RequestSpec
from alula.engine.setup import Parts
from alula.lab.listening import Heard, Listener
from alula.spec.drafting import Drafter


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different. forced: tokens per cycle. boundaries: what the head reads. without: backends of
    collectives. prefill_attention: every width through the kernel that prompts take."""

    forced: float | None = None
    boundaries: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()
    prefill_attention: bool = False


AS_IT_IS = Variation()


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw. heard: its collective calls, where it listened."""

    rank: int
    cycles: tuple[CycleRecord, ...]
    heard: tuple[Heard, ...] = ()


def serve(
    engine: Engine, specs: Sequence[RequestSpec], variation: Variation = AS_IT_IS, listen: bool = False
) -> Served:
    """Decodes the requests one after another and returns the records of all their cycles."""
    group = engine.parts.group
    with _rules_without(group, variation.without):
        second = build_engine(_varied(engine.parts, variation))
        cycles: list[CycleRecord] = []
        with Listener(group, cycles) as listener:
            if not listen:
                listener.stop()
            for spec in specs:
                second.add(spec)
                while second.has_work:
                    cycles.append(second.step().record)
    return Served(rank=group.rank, cycles=tuple(cycles), heard=tuple(listener.heard))


def _varied(parts: Parts, variation: Variation) -> Parts:
    """The same weights and caches under another config. One request at a time, so one graph size."""
    speculation = parts.config.speculation
    if variation.forced is not None:
        speculation = msgspec.structs.replace(
            speculation, forced_tokens_per_cycle=variation.forced, speculate="always"
        )
    graphs = msgspec.structs.replace(parts.config.graphs, batches=(1,))
    config = msgspec.structs.replace(parts.config, speculation=speculation, graphs=graphs, max_batch=1)
    varied = replace(parts, config=config, facts=dict(parts.facts))
    if variation.boundaries is not None and parts.drafter is not None:
        varied = replace(varied, drafter=_reading(parts.drafter, variation.boundaries))
    if variation.prefill_attention and parts.block is not None:
        varied = replace(varied, block=replace(parts.block, attend=parts.block.attend_wide))
    return varied


def _reading(drafter: Drafter, boundaries: tuple[int, ...]) -> Drafter:
    """The same head, reading other layers."""
    model = copy.copy(drafter.model)
    model.config = msgspec.structs.replace(model.config, boundaries=boundaries)
    return Drafter(model, drafter.geometry)


@contextmanager
def _rules_without(group: Group, names: Sequence[str]) -> Iterator[None]:
    """Within it the group chooses as if these backends were not there."""
    if not names:
        yield
        return
    dispatcher: Any = group._dispatcher
    before = group.rules
    refused = tuple(Refusal(backend=name, reason="left out by an experiment") for name in names)
    dispatcher.adopt(msgspec.structs.replace(before, unusable=(*before.unusable, *refused), families={}))
    try:
        yield
    finally:
        dispatcher.adopt(before)
