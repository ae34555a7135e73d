"""Forwards alone, inside of a rank: the target at several widths, the draft's own passes, their parts.

Over caches of their own, so that nothing of the engine's is touched. Rounds go through all forwards in turn, so that a
machine that slows down slows all of them. Called through `LLM.experiment`; the number of rounds is given, never decided
by a clock in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import msgspec
import torch

from alula.engine.device_clock import Mark
from alula.engine.device_engine import DeviceEngine
from alula.engine.device_phases import FEATURES_READ, Variant
from alula.engine.engine import Engine
from alula.engine.memory import KV_CACHE, memory_errors
from alula.engine.probe import draft_passes, frame, row_logits, scratch_geometry, scratch_table
from alula.engine.setup import Parts
from alula.lab.laboratory import Sizes
from alula.lab.listening import Silence
from alula.plan.shapes import HeadShape

WARM_UPS = 2
POSITION = 32  # tokens in the cache before the rows
TARGET, LOGITS, FRAME, DRAFT_STEP, EXTEND = "target", "logits", "frame", "draft step", "extend"


class Forwards(msgspec.Struct, frozen=True, kw_only=True):
    """What to time. widths: of target forwards. rounds: samples of each. silent: without collectives."""

    widths: tuple[int, ...] = ()
    rounds: int = 7
    silent: bool = False
    draft: bool = False
    eager: bool = False  # of a device-resident engine: without graphs


def sizes_of(engine: Engine) -> Sizes:
    """Shapes of what is loaded."""
    drafter = engine.parts.drafter
    if drafter is None:
        return Sizes(target=engine.parts.shape)
    config = drafter.model.config
    return Sizes(target=engine.parts.shape, head=HeadShape.of(config), boundaries=config.boundaries)


def time_forwards(engine: Engine, wanted: Forwards) -> dict[str, list[float]]:
    """Milliseconds by name: "target W" for each width, and with `draft` the draft's passes and the parts of a row."""
    with Silence(engine.parts.group) if wanted.silent else nullcontext():
        works = _on_device(engine, wanted) if isinstance(engine, DeviceEngine) else _on_host(engine.parts, wanted)
        return _rounds(works, engine.parts, wanted.rounds)


def _rounds(works: Mapping[str, Callable[[], Any]], parts: Parts, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for index in range(WARM_UPS + rounds):
        for name, work in works.items():
            begin = Mark(parts.device)
            work()
            end = Mark(parts.device)
            end.wait(parts.group.peers, "other")
            if index >= WARM_UPS:
                times[name].append(end.since_ms(begin))
    return times


def _on_host(parts: Parts, wanted: Forwards) -> dict[str, Callable[[], Any]]:
    scratch, table = scratch_geometry(parts.geometry, parts.geometry.kv_multiple), scratch_table()

    def forward(width: int) -> Callable[[], Any]:
        ids = torch.zeros(width, dtype=torch.int64, device=parts.device)
        return lambda: row_logits(parts.target, scratch, table, ids, POSITION)

    works = {f"{TARGET} {width}": forward(width) for width in wanted.widths}
    if wanted.draft and parts.drafter is not None:
        hidden_1H = torch.zeros(1, parts.shape.hidden_size, dtype=scratch.dtype, device=parts.device)
        works[LOGITS] = lambda: parts.target.logits(hidden_1H, "other")
        works[FRAME] = frame(parts.geometry, POSITION)
        works |= dict(zip((DRAFT_STEP, EXTEND), draft_passes(parts.drafter, POSITION), strict=True))
    return works


def _on_device(engine: DeviceEngine, wanted: Forwards) -> dict[str, Callable[[], Any]]:
    """Phases of the device-resident cycle, with the dummy in the batch."""
    reads = Variant(features=FEATURES_READ) if engine.parts.drafter is not None else Variant()

    def phase(name: str, width: int) -> Callable[[], Any]:
        def run() -> None:
            with engine.cycle.state.dummies(1):
                engine.cycle.replay_phase(name, width, reads if width > 1 else Variant(), eager=wanted.eager)

        return run

    works = {f"{TARGET} {width}": phase("verify", width) for width in wanted.widths}
    if wanted.draft and engine.parts.drafter is not None:
        width = engine.parts.config.speculation.steps + 1
        if width > 2:
            works[DRAFT_STEP] = phase("draft", width)
        works[EXTEND] = phase("extend", width)
    return works


def memory_bytes_per_s(engine: Engine, num_bytes: int, rounds: int) -> float:
    """The most bytes a second that copying or reading a block of memory reached on the engine's device."""
    with memory_errors("two blocks of memory to measure its bandwidth with", KV_CACHE):
        x = torch.ones(num_bytes // 4, dtype=torch.float32, device=engine.parts.device)
        y = torch.empty_like(x)
    best = 0.0
    for moved, work in ((2 * x.nbytes, lambda: y.copy_(x)), (x.nbytes, x.sum)):
        work()
        for _ in range(rounds):
            begin = Mark(engine.parts.device)
            work()
            end = Mark(engine.parts.device)
            end.wait(engine.parts.group.peers, "other")
            best = max(best, 1e3 * moved / max(end.since_ms(begin), 1e-6))
    return best
