"""Sections of the GPU suite that need no weights: bandwidth, phases and cycles of a shape, bits, plain PyTorch beside.

R rows, V vocabulary, W rows a request.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from gpu_engines import DRAFTED, PLAIN, Loaded, fill_caches, loaded, seated, time_replays, time_served
from gpu_report import Section, clocks, say, table
from gpu_scale import FORCED, LARGE, NOMINAL_BANDWIDTH, STEPS, Scale
from torch import Tensor
from torch_llama import time_plain_pytorch

from alula.bench.prompts import random_prompts
from alula.core.config import SpeculationConfig
from alula.core.shape import parse_shape
from alula.engine.device_clock import Mark
from alula.plan.shapes import head_like
from alula.plan.work import Work, cycle, draft_forward, extend_forward, floor_ms, target_forward

_KV_GIB = {LARGE: 22.0}
_INTS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def bandwidth(section: Section, scale: Scale) -> None:
    """Bytes a second that reading alone, and copying (read and written bytes together), reach here."""
    device = torch.device(scale.device)
    values = torch.ones(scale.read_bytes // 4, device=device)
    copied = torch.empty_like(values)
    ways = {
        "read_sum": (values.sum, values.nbytes),
        "read_max": (values.max, values.nbytes),
        "copy": (lambda: copied.copy_(values), 2 * values.nbytes),
    }
    found: dict[str, float] = {}
    for name, (work, num_bytes) in ways.items():
        times = []
        for _ in range(3 + scale.repeats):
            begin = Mark(device)
            work()
            end = Mark(device)
            end.wait()
            times.append(end.since_ms(begin))
        found[name] = num_bytes / statistics.median(times[3:]) * 1e3
    section.entry.update(
        bytes=values.nbytes,
        read_bytes_per_s=max(found["read_sum"], found["read_max"]),
        copy_bytes_per_s=found["copy"],
        ways=found,
    )
    if device.type == "cuda":
        section.entry["clocks_after"] = clocks()
    table(("", "TB/s"), [(name, value / 1e12) for name, value in found.items()])


def shape(section: Section, scale: Scale, name: str, folder: Path, read_bandwidth: float | None) -> None:
    """Everything that is measured of one shape, over one load of it."""
    speculation = SpeculationConfig(steps=STEPS, head="random", speculate="always", forced_tokens_per_cycle=FORCED)
    config = scale.config(
        speculation,
        kv_gib=_KV_GIB.get(name, 8.0),
        context=scale.context if name == LARGE else None,
        chunk_tokens=scale.chunk_tokens,
    )
    with loaded(scale.source(name, folder), "auto", config) as own:
        section.entry["start_up"] = own.start_up
        _say_start_up(own.start_up)
        fill_caches(own.parts)
        floors = Floors(own, read_bandwidth)
        section.part("replays", lambda: replays(own, scale, floors))
        section.part("widths", lambda: widths(own, scale, floors))
        if name == LARGE:
            section.part("bits", lambda: differing_bits(own, scale))
        for index, kv in enumerate(kv_lengths(own, scale)):
            for batch in scale.batches:
                cycles = scale.cycles if index == 0 or batch == 1 else scale.long_cycles
                part = f"served_kv{scale.kv[index]}_batch{batch}"
                section.part(part, lambda k=kv, b=batch, c=cycles: served(own, k, b, c, floors))


def _say_start_up(start_up: dict[str, Any]) -> None:
    graphs = start_up["graphs"]
    say(
        f"ready in {start_up['seconds']:.1f} s, {start_up['seconds_after_weights']:.1f} s after the weights; "
        f"{graphs['captured']} graphs in {graphs['seconds']} s, {graphs['memory_bytes'] / 2**20:.0f} MiB"
    )


def kv_lengths(own: Loaded, scale: Scale) -> list[int]:
    """The lengths asked for, or the longest whose cycle still fits the context."""
    return [min(kv, own.parts.context_tokens - STEPS) for kv in scale.kv]


class Floors:
    """What memory cannot do faster, from `plan`: milliseconds at 4.3 TB/s and at what was read in this run."""

    def __init__(self, own: Loaded, read_bandwidth: float | None) -> None:
        self._shape, self._dtype = own.parts.shape, own.parts.config.dtype
        self._head = head_like(self._shape)
        self._read_bandwidth = read_bandwidth

    def forward(self, kv: int, batch: int, width: int) -> Work:
        return target_forward(self._shape, kv_tokens=kv - 1, batch=batch, width=width, dtype=self._dtype)

    def phases(self, kv: int, batch: int, width: int) -> dict[str, Work]:
        """Of a drafted cycle of that width, "whole" among them."""
        drafts, dtype = width - 1, self._dtype
        if drafts > 1:
            work = cycle(self._shape, self._head, steps=drafts, kv_tokens=kv - 1, batch=batch, dtype=dtype)
            return {"draft": work.draft, "verify": work.verify, "extend": work.extend, "whole": work.total}
        verify = self.forward(kv, batch, width)
        if not drafts:
            return {"verify": verify, "whole": verify}
        extend = extend_forward(self._head, kv_tokens=kv - 1, batch=batch, width=width, dtype=dtype)
        return {"verify": verify, "extend": extend, "whole": verify + extend}

    def draft_step(self, kv: int, batch: int) -> Work:
        return draft_forward(self._head, kv_tokens=kv - 1, batch=batch, dtype=self._dtype)

    def over(self, ms: float, work: Work) -> dict[str, float | None]:
        nominal = floor_ms(work.num_bytes, NOMINAL_BANDWIDTH)
        measured = floor_ms(work.num_bytes, self._read_bandwidth) if self._read_bandwidth else None
        return {
            "ms": ms,
            "floor_ms": nominal,
            "over_floor": ms / nominal,
            "over_measured_floor": ms / measured if measured else None,
        }


def _with_floors(timed: dict[str, Any], floors: Floors) -> dict[str, Any]:
    works = floors.phases(timed["kv_tokens"], timed["batch"], timed["width"])
    phases = {name: floors.over(ms, works[name]) for name, ms in timed["phases_ms"].items()}
    return {
        **{key: timed[key] for key in ("kv_tokens", "batch", "width", "eager_because")},
        "phases": phases,
        **floors.over(timed["ms"], works["whole"]),
    }


def replays(own: Loaded, scale: Scale, floors: Floors) -> list[dict[str, Any]]:
    """Plain step and drafted cycle by KV length and batch, as isolated replays."""
    found, lines = [], []
    for kv in kv_lengths(own, scale):
        for batch in scale.batches:
            plain, whole = (
                _with_floors(time_replays(own.engine, kv, batch, width, scale.repeats), floors)
                for width in (1, STEPS + 1)
            )
            row = {"kv_tokens": kv, "batch": batch, "plain": plain, "cycle": whole}
            row["verify_over_plain"] = whole["phases"]["verify"]["ms"] / plain["ms"]
            row["cycle_over_plain"] = whole["ms"] / plain["ms"]
            row["cycle_over_plain_floor"] = whole["floor_ms"] / plain["floor_ms"]
            found.append(row)
            parts = [whole["phases"][name]["ms"] for name in ("draft", "verify", "extend")]
            lines.append(
                (
                    *(kv, batch, plain["ms"], plain["over_floor"], *parts, whole["ms"], whole["over_floor"]),
                    *(row["verify_over_plain"], row["cycle_over_plain"]),
                )
            )
    heads = ("KV", "batch", "plain ms", "/floor", "draft", "verify", "extend", "cycle", "/floor", "verify/plain")
    table((*heads, "cycle/plain"), lines)
    return found


def widths(own: Loaded, scale: Scale, floors: Floors) -> list[dict[str, Any]]:
    """Verify by width at batch 1, and the draft and extend that go with it."""
    kv = kv_lengths(own, scale)[0]
    found = [_with_floors(time_replays(own.engine, kv, 1, width, scale.repeats), floors) for width in scale.widths]
    plain_ms = found[0]["phases"]["verify"]["ms"]
    for row in found:
        row["verify_over_plain"] = row["phases"]["verify"]["ms"] / plain_ms
    table(
        ("width", "verify ms", "/floor", "/plain", "draft ms", "extend ms"),
        [
            (
                row["width"],
                *(row["phases"]["verify"][key] for key in ("ms", "over_floor")),
                row["verify_over_plain"],
                *(row["phases"].get(name, {}).get("ms") for name in ("draft", "extend")),
            )
            for row in found
        ],
    )
    return found


def served(own: Loaded, kv: int, batch: int, num_cycles: int, floors: Floors) -> dict[str, Any]:
    """Plain steps and forced cycles as a caller sees them, their caches around `kv` tokens long."""
    sides = {}
    chunk = own.parts.config.chunk_tokens
    for name, steps, mean in (("plain", 0, 1.0), ("cycle", STEPS, FORCED)):
        counted = round(num_cycles * mean)
        # While the later prompts are read, the earlier requests decode already.
        waiting = -(-kv // chunk) * (batch - 1) + 16
        max_tokens = counted + round(waiting * mean)
        room = own.parts.context_tokens - max_tokens - 2 * STEPS - 2
        length = max(1, min(kv - counted // 2, room))
        vocab_size = own.parts.shape.vocab_size
        prompts = [list(prompt.token_ids) for prompt in random_prompts(batch, length, vocab_size, seed=kv)]
        sides[name] = time_served(own.llm, prompts, max_tokens, steps, num_cycles)
    plain, drafted = sides["plain"], sides["cycle"]
    plain |= floors.over(plain["host_ms"], floors.forward(kv, batch, 1))
    drafted |= floors.over(drafted["host_ms"], floors.phases(kv, batch, STEPS + 1)["whole"])
    result = {"kv_tokens": kv, **sides, "cycle_over_plain": drafted["host_ms"] / plain["host_ms"]}
    say(
        f"  served, KV {kv}, batch {batch}: plain {plain['host_ms']:.3f} ms, cycle {drafted['host_ms']:.3f} ms "
        f"({result['cycle_over_plain']:.3f} steps, {drafted['host_over_device']:.3f} of its device phases), "
        f"{drafted['tokens_per_s']:.1f} tokens/s at {drafted['tokens_per_cycle']:.3f} over {drafted['cycles']} cycles"
    )
    return result


def differing_bits(own: Loaded, scale: Scale) -> dict[str, Any]:
    """Logits of rows in blocks against the same tokens one by one, at batch 1 and width 1. Counts elements that are
    not the same bits."""
    most = max(scale.widths)
    count = max(scale.bits_batches)
    cached = list(scale.bits_cached[:count])
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(own.parts.shape.vocab_size, (count, most), generator=generator)
    span = max(cached) + most
    reference = [
        [_rows(own, [seat], [cached[seat] + j], tokens[:, j:], 1, span) for j in range(most)]
        for seat in range(count)
    ]
    rows: list[dict[str, Any]] = []
    for batch in scale.bits_batches:
        for width in scale.widths:
            logits_RV = _rows(own, list(range(batch)), cached[:batch], tokens, width, span)
            wanted_RV = torch.cat([reference[seat][j] for seat in range(batch) for j in range(width)])
            rows.append({"batch": batch, "width": width, **_compared(logits_RV, wanted_RV)})
    total = sum(row["differing"] for row in rows)
    largest = max(row["largest_difference"] for row in rows)
    say(
        f"  bits: {total} of {sum(row['elements'] for row in rows)} logits differ from width 1 at batch 1, "
        f"by {largest:g} at most"
    )
    return {"cached_tokens": cached, "differing": total, "rows": rows}


def _compared(logits_RV: Tensor, wanted_RV: Tensor) -> dict[str, Any]:
    """How many elements have other bits, and how far apart the numbers are at most."""
    kind = _INTS[logits_RV.element_size()]
    differing = logits_RV.view(kind) != wanted_RV.view(kind)
    return {
        "elements": logits_RV.numel(),
        "differing": int(differing.sum()),
        "largest_difference": float((logits_RV.float() - wanted_RV.float()).abs().max()),
    }


def _rows(own: Loaded, who: list[int], first: list[int], tokens: Tensor, width: int, span: int) -> Tensor:
    """Logits [R, V] of `width` tokens for each of these seats behind `first` cached ones."""
    engine = own.engine
    state, variant = engine.cycle.state, PLAIN if width == 1 else DRAFTED
    everyone = [0] * (max(who) + 1)
    for seat, position in zip(who, first, strict=True):
        everyone[seat] = position
    with seated(engine, everyone, span):
        tokens = tokens[: len(everyone)].to(own.parts.device)
        state.seats.root_S[1 : len(everyone) + 1] = tokens[:, 0]
        state.seats.drafts_SK[1 : len(everyone) + 1, : width - 1] = tokens[:, 1:width]
        state.seat_batch(len(who), tuple(seat + 1 for seat in who))
        logits_RV = engine.cycle.phases.verify(len(who), width, variant)()
        state.seat_batch(len(who), ())
    return logits_RV.clone(memory_format=torch.contiguous_format)


def plain_pytorch(section: Section, scale: Scale, folder: Path, read_bandwidth: float | None) -> None:
    """The plain step of plain PyTorch, the engines' memory freed before."""
    shape_ = parse_shape(scale.source(LARGE, folder).shape_config or {})
    kv = scale.kv[0]
    times = time_plain_pytorch(shape_, kv - 1, torch.device(scale.device))
    work = target_forward(shape_, kv_tokens=kv - 1)
    section.entry.update(times, kv_tokens=kv, floor_ms=floor_ms(work.num_bytes, NOMINAL_BANDWIDTH))
    graph_ms = times["graph_ms"]
    if graph_ms is not None:
        section.entry["graph_over_floor"] = graph_ms / section.entry["floor_ms"]
        if read_bandwidth:
            section.entry["graph_over_measured_floor"] = graph_ms / floor_ms(work.num_bytes, read_bandwidth)
    say(f"plain PyTorch, {LARGE}, KV {kv}: {times}, floor {section.entry['floor_ms']:.3f} ms")
