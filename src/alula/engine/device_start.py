"""What a device-resident engine does before its first request: capture graphs, time steps. Says how far it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from alula.engine.device_clock import Mark
from alula.engine.device_cycle import DeviceCycle
from alula.engine.device_phases import FEATURES_KEPT, FEATURES_READ, NO_FEATURES, Variant
from alula.engine.setup import Parts
from alula.engine.step_costs import StepCost

_WARM_UPS, _TIMED = 2, 5
# Rows of prompts that take kernels of their own: narrow products of three heights, and a library's.
_PROMPT_ROWS = (16, 32, 64, 96)

Shape = tuple[int, int, Variant]  # batch, width, variant


def prepare_graphs(cycle: DeviceCycle, parts: Parts, say: Callable[[str], None]) -> None:
    """Captures what greedy requests need; other draws and widths are captured at their first use. Leaves the number of
    graphs, seconds, memory and failures in the facts."""
    refusal = cycle.graphs.refusal("")
    shapes = [] if refusal else wanted_shapes(parts)
    began = time.perf_counter()
    cycle.prepare(shapes, lambda done, count: say(f"capturing CUDA graphs: {done} of {count}"))
    parts.facts["graphs"] = {
        "captured": cycle.graphs.num_captured,
        "seconds": round(time.perf_counter() - began, 2),
        "memory_bytes": cycle.graphs.memory_bytes,
        "batches": list(parts.config.graphs.batches),
        "eager_by_option": list(parts.config.graphs.eager),
        "refusal": refusal,
        "failures": cycle.graphs.failures,
    }
    if cycle.graphs.failures:
        say(f"graphs that could not be captured: {len(cycle.graphs.failures)}")


def warm_prompts(cycle: DeviceCycle, parts: Parts, say: Callable[[str], None]) -> None:
    """Reads prompts into the dummy seat, so that no first request waits for kernels to be compiled."""
    if parts.device.type != "cuda":
        return
    say("warming up kernels for prompts")
    drafts = parts.drafter is not None
    cycle.state.prompt.seats_B.zero_()
    seats = cycle.state.seats
    for num_rows in (rows for rows in _PROMPT_ROWS if rows <= seats.tables_SP.shape[1] * seats.page_tokens):
        read = cycle.phases.read_chunk([0] * num_rows, 0, True, drafts)
        cycle.phases.draw_first(read, Variant())
        if drafts:
            cycle.phases.extend_chunk(read, 0, True, Variant())


def wanted_shapes(parts: Parts) -> list[Shape]:
    """Every batch size that this engine can meet, with the widths that it will use."""
    speculation = parts.config.speculation
    drafts = parts.drafter is not None and speculation.speculate != "never"
    widths = sorted({speculation.steps + 1, *parts.config.graphs.widths} - {1}) if drafts else []
    found: list[Shape] = []
    for batch in parts.config.graphs.sizes_up_to(parts.config.max_batch):
        found.append((batch, 1, Variant(features=NO_FEATURES)))
        if drafts:
            found.append((batch, 1, Variant(features=FEATURES_KEPT)))
        found += [(batch, width, Variant(features=FEATURES_READ)) for width in widths]
    return found


def time_steps(cycle: DeviceCycle, parts: Parts) -> tuple[StepCost, ...]:
    """A plain step and a drafted cycle of each batch size, as graphs, with short caches."""
    if parts.drafter is None or parts.config.speculation.speculate == "never":
        return ()
    width = parts.config.speculation.steps + 1
    sizes = sorted({batch for batch, _, _ in wanted_shapes(parts)})
    costs = []
    for batch in sizes:
        with cycle.state.dummies(batch):
            plain_ms = _median_ms(cycle, parts, (batch, 1, Variant(features=FEATURES_KEPT)))
            cycle_ms = _median_ms(cycle, parts, (batch, width, Variant(features=FEATURES_READ)))
        costs.append(StepCost(batch=batch, plain_ms=plain_ms, cycle_ms=cycle_ms))
    return tuple(costs)


def _median_ms(cycle: DeviceCycle, parts: Parts, shape: Shape) -> float:
    times = []
    for index in range(_WARM_UPS + _TIMED):
        begin = Mark(parts.device)
        cycle.replay(*shape)
        end = Mark(parts.device)
        end.wait(parts.group.peers, "verify")
        if index >= _WARM_UPS:
            times.append(end.since_ms(begin))
    return statistics.median(times)
