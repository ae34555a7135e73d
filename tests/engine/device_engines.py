"""Device-resident engines on the CPU: the same phases over torch's reference kernels, without graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

import msgspec

import engine_spy
from alula.core.config import GraphConfig
from alula.core.records import CycleRecord, RequestCycle
from alula.core.sampling import SamplingParams
from alula.engine.device_engine import DeviceEngine
from alula.engine.engine import Engine
from alula.engine.request import RequestSpec, Update
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


@dataclass
class Told:
    """What an engine told of one request."""

    spec: RequestSpec
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    cycles: list[RequestCycle] = field(default_factory=list)
    last: Update | None = None

    @property
    def end(self) -> tuple[str | None, int | None]:
        assert self.last is not None
        return self.last.finish_reason, self.last.num_kept_tokens

    @property
    def accepted_by_start(self) -> dict[int, int]:
        """Tokens in the cache before each drafted cycle -> drafts accepted."""
        return {c.kv_tokens - c.accepted - 1: c.accepted for c in self.cycles if c.drafted}


def run(
    engine: Engine,
    specs: Sequence[RequestSpec],
    *,
    arrivals: Sequence[int] = (),
    decisions: Sequence[bool] = (True,),
    aborts: dict[str, int] | None = None,
) -> tuple[dict[str, Told], list[CycleRecord]]:
    """Runs to the end. arrivals: the step before which each request is added, 0 where left out. decisions: whether
    each launched cycle may draft, over and over. aborts: steps after a request's arrival, by id."""
    told: dict[str, Told] = {}
    records: list[CycleRecord] = []
    waiting = list(zip([*arrivals, *[0] * (len(specs) - len(arrivals))], specs, strict=True))
    due: dict[int, list[str]] = {}
    step = 0
    while waiting or engine.has_work:
        for at, spec in [pair for pair in waiting if pair[0] <= step]:
            engine.add(spec)
            told[spec.request_id] = Told(spec)
            waiting.remove((at, spec))
            if aborts and spec.request_id in aborts:
                due.setdefault(step + aborts[spec.request_id], []).append(spec.request_id)
        for request_id in due.pop(step, []):
            engine.abort(request_id)
        output = engine.step(decisions[step % len(decisions)])
        records.append(output.record)
        for part in output.record.requests:
            told[part.request_id].cycles.append(part)
        for update in output.updates:
            one = told[update.request_id]
            one.token_ids += update.token_ids
            one.text += update.text
            one.last = update if update.finish_reason else one.last
        step += 1
        assert step < 5000
    return told, records


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
