"""Engines for the GPU suite: loading one with its start-up timed, requests that only seem to sit there, served cycles.

Reaches into a loaded engine on purpose: an isolated replay of a phase needs seats without requests. B requests of a
batch, S seats, P pages of a seat.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from alula import LLM, SamplingParams
from alula.bench.results import decode_cycles
from alula.core.config import MAX_STEPS, EngineConfig
from alula.core.records import CycleRecord
from alula.engine.device_clock import Mark
from alula.engine.device_engine import DeviceEngine
from alula.engine.device_phases import FEATURES_READ, Variant
from alula.engine.setup import Parts
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels
from alula.models.source import ModelSource

DEVICE_PHASES = ("draft", "verify", "accept", "extend")
PLAIN, DRAFTED = Variant(), Variant(features=FEATURES_READ)
WARM_UP = 3  # replays and served cycles that are not counted


@dataclass
class Loaded:
    """An engine that is ready, and what that took."""

    llm: LLM
    engine: DeviceEngine
    start_up: dict[str, Any]

    @property
    def parts(self) -> Parts:
        return self.engine.parts

    def forget(self) -> None:
        """Whoever still holds this holds no memory by it."""
        del self.llm, self.engine


@contextmanager
def reference_kernels_on_cpu() -> Iterator[None]:
    """Within it an engine on a CPU is one whose cycles stay on the device, over torch's reference kernels."""
    with (
        mock.patch("alula.engine.setup.choose_kernels", lambda device, dtype: reference_kernels()),
        mock.patch(
            "alula.engine.setup.choose_block_kernels", lambda device, ranks: (reference_block_kernels(), None)
        ),
    ):
        yield


@contextmanager
def loaded(model: str | ModelSource, draft: str | None, config: EngineConfig) -> Iterator[Loaded]:
    """Loads, yields, and gives the memory back. Raises RuntimeError where the engine's cycle is led by the host."""
    free_memory()  # of an engine before this one whose error kept it alive
    began, weights_there = time.perf_counter(), [0.0]

    def note(message: str) -> None:
        if message.startswith("loading"):
            weights_there[0] = time.perf_counter()

    llm = LLM(model, draft=draft, config=config, progress=note)
    ready = time.perf_counter()
    facts = llm.describe().facts
    try:
        engine = llm._backend._worker._engine  # type: ignore[attr-defined]
        if not isinstance(engine, DeviceEngine):
            raise RuntimeError(f"no device-resident cycle here: {facts['device_cycle']['refusal']}")
        start_up = {
            "seconds": ready - began,
            # The last message of loading comes before the head is read: that counts as after the weights.
            "seconds_after_weights": ready - (weights_there[0] or began),
            "graphs": facts["graphs"],
            "step_costs_ms": [[c.batch, c.plain_ms, c.cycle_ms] for c in engine.step_costs],
            "kv_tokens": facts["kv_tokens"],
            "context_tokens": facts["context_tokens"],
            "exactness_off": facts["exactness"]["off"],
        }
        own = Loaded(llm, engine, start_up)
        del engine
        yield own
        own.forget()
    finally:
        llm.close()
        del llm
        free_memory()


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fill_caches(parts: Parts) -> None:
    """Random keys and values everywhere, since zeros would be read but cost a memory less power to move."""
    geometries = [parts.geometry, *([parts.drafter.geometry] if parts.drafter is not None else [])]
    generator = torch.Generator(parts.device).manual_seed(0)
    for geometry in geometries:
        for values in (geometry.cache.k_LSKD, geometry.cache.v_LSKD):
            for layer in values:
                layer.normal_(generator=generator)


@contextmanager
def seated(engine: DeviceEngine, first: Sequence[int], span: int | None = None) -> Iterator[Callable[[], None]]:
    """One made-up request a seat, with `first[i]` tokens in its cache and drafts that may all count. No request must
    be running. span: positions that each has pages for; the same span gives a seat the same pages again.

    Yields what puts their positions back, in the stream, without waiting.
    """
    seats, parts = engine.cycle.state.seats, engine.parts
    generator = torch.Generator().manual_seed(1)
    count, vocab_size = len(first), parts.shape.vocab_size
    pages = -(-(span or max(first) + MAX_STEPS + 1) // seats.page_tokens)
    if count * pages >= parts.num_pages:
        raise RuntimeError(f"{count * pages} pages of cache needed, {parts.num_pages - 1} there")
    own_pages = torch.arange(1, 1 + count * pages, dtype=torch.int32).view(count, pages)
    seats.tables_SP[1 : count + 1, :pages] = own_pages.to(parts.device)
    drafts = torch.randint(vocab_size, (count, MAX_STEPS), generator=generator)
    seats.drafts_SK[1 : count + 1] = drafts.to(parts.device)
    seats.root_S[1 : count + 1] = torch.randint(vocab_size, (count,), generator=generator).to(parts.device)
    seats.limit_S[1 : count + 1] = MAX_STEPS
    start = torch.zeros_like(seats.num_kv_S)
    start[1 : count + 1] = torch.tensor(list(first), dtype=torch.int32).to(parts.device)
    seats.num_kv_S.copy_(start)
    try:
        yield lambda: seats.num_kv_S.copy_(start)
    finally:
        for values in (seats.tables_SP, seats.num_kv_S, seats.limit_S):
            values[1 : count + 1] = 0


def time_replays(engine: DeviceEngine, kv: int, batch: int, width: int, repeats: int) -> dict[str, Any]:
    """Medians of isolated replays: every phase, and the whole cycle without marks inside it.

    kv: tokens that the first row's attention reads, itself included. Replays follow each other without a pause, as in
    serving, so that what the host does is hidden as far as it is there.
    """
    cycle, variant = engine.cycle, PLAIN if width == 1 else DRAFTED
    with seated(engine, [kv - 1] * batch) as again:
        phases = cycle._phases_of(batch, width, variant)
        for key, work in phases:
            with cycle.state.dummies(batch):
                cycle.graphs.prepare(key, work)
        cycle.state.seat_batch(batch, tuple(range(1, batch + 1)))
        steps = [(lambda key=key, work=work: cycle.graphs.run(key, work)) for key, work in phases]
        apart = _medians(engine, again, steps, repeats)
        (whole_ms,) = _medians(engine, again, [lambda: cycle.replay(batch, width, variant)], repeats)
        again()
        refused = {key.phase: cycle.graphs.run(key, work)[1].reason for key, work in phases}
        cycle.state.seat_batch(batch, ())
    return {
        "kv_tokens": kv,
        "batch": batch,
        "width": width,
        "ms": whole_ms,
        "phases_ms": {key.phase: ms for (key, _), ms in zip(phases, apart, strict=True)},
        "eager_because": {phase: reason for phase, reason in refused.items() if reason},
    }


def _medians(
    engine: DeviceEngine, again: Callable[[], None], steps: Sequence[Callable[[], Any]], repeats: int
) -> list[float]:
    rounds = []
    for _ in range(WARM_UP + repeats):
        again()
        marks = [Mark(engine.parts.device)]
        for step in steps:
            step()
            marks.append(Mark(engine.parts.device))
        rounds.append(marks)
    rounds[-1][-1].wait()
    counted = rounds[WARM_UP:]
    return [statistics.median(m[i + 1].since_ms(m[i]) for m in counted) for i in range(len(steps))]


@dataclass
class Served:
    """Cycles as records, with the host's own clock between their arrivals beside."""

    cycles: list[CycleRecord] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)

    def decoding(self) -> list[tuple[CycleRecord, float]]:
        """Cycles that only decoded, with their time by the host's clock."""
        kept = {id(cycle) for cycle in decode_cycles(self.cycles)}
        return [pair for pair in zip(self.cycles, self.host_ms, strict=True) if id(pair[0]) in kept]


@contextmanager
def watched(llm: LLM) -> Iterator[Served]:
    """Within it every cycle of `llm` is noted. What the engine does between two cycles counts in the host's time of
    the later one, so nothing that a caller waits for is lost."""
    served = Served()
    llm.take_cycles()
    last, plain_step = time.perf_counter(), llm.step

    def step() -> Any:
        nonlocal last
        output = plain_step()
        now = time.perf_counter()
        served.cycles.append(output.record)
        served.host_ms.append((now - last) * 1e3)
        last = now
        return output

    llm.step = step  # type: ignore[method-assign]
    try:
        yield served
    finally:
        del llm.step  # the class's own again
        llm.take_cycles()


def time_served(
    llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int, steps: int, num_cycles: int
) -> dict[str, Any]:
    """Greedy answers decoded together; figures of the first `num_cycles` cycles in which all of them decoded."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    with watched(llm) as served:
        answers = llm.generate([list(prompt) for prompt in prompts], params, steps=steps)
    errors = [answer.error for answer in answers if answer.finish_reason == "error"]
    if errors:
        raise RuntimeError(f"a request failed: {errors[0]}")
    full = [
        (cycle, host_ms)
        for cycle, host_ms in served.decoding()
        if len(cycle.requests) == len(prompts)
        and cycle.drafted == (steps > 0)
        and not any(request.truncated for request in cycle.requests)
    ][WARM_UP : WARM_UP + num_cycles]
    if not full:
        raise RuntimeError("no cycle in which all requests decoded: too few tokens for so many prompts")
    return served_figures(full)


def served_figures(pairs: Sequence[tuple[CycleRecord, float]]) -> dict[str, Any]:
    """wall: of the records. host: between arrivals at the caller. device: what the phases took."""
    cycles = [cycle for cycle, _ in pairs]
    emitted = sum(request.emitted for cycle in cycles for request in cycle.requests)
    rows = sum(len(cycle.requests) for cycle in cycles)
    eager = {
        f"{phase}: {outcome.reason}"
        for cycle in cycles
        for phase, outcome in cycle.outcomes.items()
        if not outcome.replayed
    }
    phases = {name: statistics.median(cycle.phases_ms[name] for cycle in cycles) for name in cycles[0].phases_ms}
    device_ms = statistics.median(sum(cycle.phases_ms[name] for name in DEVICE_PHASES) for cycle in cycles)
    host_ms = [ms for _, ms in pairs]
    return {
        "cycles": len(cycles),
        "batch": len(cycles[0].requests),
        "mean_kv_tokens": statistics.fmean(r.kv_tokens for cycle in cycles for r in cycle.requests),
        "tokens_per_cycle": emitted / rows,
        "wall_ms": statistics.median(cycle.wall_ms for cycle in cycles),
        "host_ms": statistics.median(host_ms),
        "host_mean_ms": statistics.fmean(host_ms),
        "device_ms": device_ms,
        "phases_ms": phases,
        "wall_over_device": statistics.median(cycle.wall_ms for cycle in cycles) / device_ms,
        "host_over_device": statistics.median(host_ms) / device_ms,
        "tokens_per_s_wall": 1e3 * emitted / sum(cycle.wall_ms for cycle in cycles),
        "tokens_per_s": 1e3 * emitted / sum(host_ms),
        "eager": sorted(eager),
    }
