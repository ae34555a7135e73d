"""Device-resident engines on the CPU: the same phases over torch's reference kernels, without graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import msgspec

import engine_spy
from alula.core.config import GraphConfig
from alula.core.sampling import SamplingParams
from alula.engine.device_engine import DeviceEngine
from alula.engine.engine import Engine
from alula.engine.request import RequestSpec
from alula.engine.setup import Parts
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels


@functools.cache
def load(family: str = "plain", head: str | None = None) -> Parts:
    """As engine_spy.load, with weights that are not packed."""
    with mock.patch("alula.engine.setup.choose_kernels", lambda device, dtype: reference_kernels()):
        return engine_spy.load.__wrapped__(family, head)


def device_parts(parts: Parts, graphs: GraphConfig | None = None) -> Parts:
    """The same parts for a device-resident engine."""
    config = parts.config if graphs is None else msgspec.structs.replace(parts.config, graphs=graphs)
    return replace(parts, block=reference_block_kernels(), config=config)


def device_engine(family: str = "plain", head: str | None = None, **limits: int) -> DeviceEngine:
    return DeviceEngine(device_parts(engine_spy.with_limits(load(family, head), **limits)))


def host_engine(family: str = "plain", head: str | None = None, **limits: int) -> Engine:
    return Engine(engine_spy.with_limits(engine_spy.load(family, head), **limits))


def answers(
    engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], steps: int, decide=None
) -> dict[str, list[int]]:
    """Token ids of every request, all queued at once; `decide(cycle)` says whether a cycle may draft."""
    found: dict[str, list[int]] = {}
    for index, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        name = f"r{index}"
        found[name] = []
        engine.add(RequestSpec(request_id=name, prompt_ids=tuple(prompt), sampling=own, steps=steps))
    cycle = 0
    while engine.has_work:
        output = engine.step(True if decide is None else decide(cycle))
        cycle += 1
        for update in output.updates:
            found[update.request_id] += update.token_ids
        assert cycle < 5000
    return found
