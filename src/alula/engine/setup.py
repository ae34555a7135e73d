"""From a config to loaded parts: device, dtype, target, head, caches. Runs the same on every rank.

Knows nothing of requests. What was chosen, and why something faster was not, ends in `facts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from alula.comm.group import Group
from alula.core.config import EngineConfig
from alula.core.errors import InvalidOption, OutOfMemory, UnsupportedModel
from alula.core.shape import ModelShape, parse_shape
from alula.engine.agreement import agreed_minimum
from alula.engine.device import device_name, free_memory_bytes, resolve_device
from alula.engine.exactness import Exactness, plan_exactness
from alula.engine.memory import CYCLE, KV_CACHE, WEIGHTS, cycle_bytes, memory_errors
from alula.engine.probe import row_logits, scratch_geometry, scratch_table
from alula.engine.threads import ThreadChoice, choose_threads
from alula.kernels.gpu.launch import refusal as gpu_refusal
from alula.layers.attention import check_heads
from alula.layers.block_kernels import BlockKernels, triton_block_kernels
from alula.layers.geometry import Geometry
from alula.layers.kernels import choose_kernels
from alula.layers.kv_cache import KVCache
from alula.layers.weights import WeightReader
from alula.models.checkpoint import Checkpoint, open_checkpoint
from alula.models.llama import LlamaModel
from alula.models.source import ModelSource
from alula.models.tokenizer import Tokenizer, load_tokenizer
from alula.spec.draft_model import DraftModel
from alula.spec.drafting import Drafter
from alula.spec.head_loading import HeadPlace, load_head

Progress = Callable[[str], None]
# Share of the free memory that the KV cache may take where no budget is given.
_CPU_SHARE, _CUDA_SHARE = 0.4, 0.85
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a rank needs to build its engine; picklable."""

    source: ModelSource
    head: Path | None
    config: EngineConfig


@dataclass(frozen=True)
class Parts:
    """A loaded engine's parts. `drafter` is None without a head."""

    config: EngineConfig
    shape: ModelShape
    tokenizer: Tokenizer
    target: LlamaModel
    drafter: Drafter | None
    geometry: Geometry
    exactness: Exactness
    group: Group
    device: torch.device
    num_pages: int
    context_tokens: int
    facts: dict[str, Any]
    block: BlockKernels | None = None


def load_parts(spec: EngineSpec, group: Group, progress: Progress | None = None) -> Parts:
    """Loads target and head and sizes the caches, the same on every rank.

    Raises UserErrors for bad input, OutOfMemory where it does not fit.
    """
    say = progress or (lambda message: None)
    config, device = _prepare(spec.config, group)
    checkpoint = open_checkpoint(spec.source)
    shape = parse_shape(checkpoint.config)
    check_heads(shape.num_heads, shape.num_kv_heads, group.size)
    dtype = resolve_dtype(config.dtype, checkpoint.config, device)
    kernels = choose_kernels(device, dtype)
    context = _context(config, shape)
    place = HeadPlace(group, dtype, device, kernels, config.parallel.draft, context, config.seed)
    with memory_errors("the weights", WEIGHTS):
        _check_room(checkpoint, dtype, device, group.size)
        reader = WeightReader(checkpoint, dtype, device, _weights_progress(say))
        target = LlamaModel(reader, shape, context, group, kernels)
        draft = _load_draft(spec, target, place, say)
    block, block_refusal = choose_block_kernels(device, group)
    features = 0 if draft is None else draft.config.num_features
    reserve = cycle_bytes(config, shape.vocab_size, features, dtype) if block is not None else 0
    with memory_errors("the KV cache", KV_CACHE):
        caches = _size_caches(config, shape, draft, place, reserve)
    say("timing threads")
    threads = _choose_threads(config, target, caches.target)
    say("probing exactness")
    exactness = plan_exactness(config.exact, device, dtype, target, caches.target, block_refusal)
    loaded = _Loaded(checkpoint, shape, target, draft, exactness, threads, block, block_refusal)
    return _assemble(spec, config, place, caches, loaded)


@dataclass(frozen=True)
class _Caches:
    target: Geometry
    draft: Geometry | None
    num_pages: int


@dataclass(frozen=True)
class _Loaded:
    checkpoint: Checkpoint
    shape: ModelShape
    target: LlamaModel
    draft: DraftModel | None
    exactness: Exactness
    threads: ThreadChoice
    block: BlockKernels | None
    block_refusal: str | None


def choose_block_kernels(device: torch.device, group: Group) -> tuple[BlockKernels | None, str | None]:
    """The kernels of a cycle that stays on the device, or why this engine has none."""
    refusal = gpu_refusal(device) or group.capture_refusal
    return (None, refusal) if refusal else (triton_block_kernels(), None)


def _assemble(spec: EngineSpec, config: EngineConfig, place: HeadPlace, caches: _Caches, loaded: _Loaded) -> Parts:
    exactness, draft = loaded.exactness, loaded.draft
    if exactness.off is None and place.group.order_refusal is not None:
        exactness = msgspec.structs.replace(exactness, off=place.group.order_refusal)
    context = _fit_context(config, place.context_tokens, caches.num_pages)
    geometry = exactness.apply(caches.target)
    facts = {
        "processor": device_name(place.device),
        "weights": loaded.checkpoint.description,
        **place.kernels.facts(),
        "device_cycle": {"kernels": loaded.block.name if loaded.block else None, "refusal": loaded.block_refusal},
        "threads": msgspec.to_builtins(loaded.threads),
        "exactness": msgspec.to_builtins(exactness),
        "kv_tokens": (caches.num_pages - 1) * config.page_tokens,
        "context_tokens": context,
        "model_context_tokens": loaded.shape.max_position,
        "head": None if draft is None else _head_facts(draft),
        "forced_tokens_per_cycle": config.speculation.forced_tokens_per_cycle,
    }
    if place.group.size > 1:
        facts["collectives"] = _collective_facts(place.group)
    dtype_name = str(place.dtype).removeprefix("torch.")
    return Parts(
        config=msgspec.structs.replace(config, dtype=dtype_name, device=place.device.type),
        shape=loaded.shape,
        tokenizer=load_tokenizer(spec.source, loaded.checkpoint),
        target=loaded.target,
        drafter=Drafter(draft, caches.draft) if draft is not None and caches.draft is not None else None,
        geometry=geometry,
        exactness=exactness,
        group=place.group,
        device=place.device,
        num_pages=caches.num_pages,
        context_tokens=context,
        facts=facts,
        block=loaded.block,
    )


def resolve_dtype(name: str, model_config: dict[str, Any], device: torch.device) -> torch.dtype:
    """What "auto" means: the checkpoint's own float type, but bfloat16 for float16 on a CPU (no fast half products)."""
    if name != "auto":
        return _DTYPES[name]
    stored = str(model_config.get("dtype") or model_config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if stored == "float16" and device.type == "cpu":
        stored = "bfloat16"
    if stored not in _DTYPES:
        raise UnsupportedModel(
            f"config.json: dtype {stored!r}; alula runs {', '.join(_DTYPES)}: give one with --dtype"
        )
    return _DTYPES[stored]


def _check_room(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, num_ranks: int) -> None:
    """Raises OutOfMemory where the weights alone are more than what is free: a CPU would be killed without a word."""
    numbers = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
    needed, free = numbers * dtype.itemsize // num_ranks, free_memory_bytes(device)
    if needed > free:
        raise OutOfMemory(
            f"the weights are {needed / 2**30:.1f} GiB in {str(dtype).removeprefix('torch.')} a rank and "
            f"{free / 2**30:.1f} GiB are free; use a smaller --dtype, more ranks (--tp) or a smaller model"
        )


def _prepare(config: EngineConfig, group: Group) -> tuple[EngineConfig, torch.device]:
    torch.set_grad_enabled(False)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    elif group.size > 1:
        torch.set_num_threads(1)
    return config, resolve_device(config.device, group.rank)


def _choose_threads(config: EngineConfig, target: LlamaModel, geometry: Geometry) -> ThreadChoice:
    """Timed where the caller left it open; ranks have one thread each, and a GPU needs no more."""
    if config.threads is not None or geometry.device.type != "cpu":
        return ThreadChoice(num_threads=torch.get_num_threads())
    scratch, table, ids = scratch_geometry(geometry, 0), scratch_table(), torch.zeros(1, dtype=torch.int64)
    return choose_threads(lambda: row_logits(target, scratch, table, ids, 32))


def _load_draft(spec: EngineSpec, target: LlamaModel, place: HeadPlace, say: Progress) -> DraftModel | None:
    if spec.head is None and spec.config.speculation.head == "trained":
        return None
    say("loading the EAGLE-3 head")
    return load_head(spec.head, spec.config.speculation, target, place)


def _size_caches(
    config: EngineConfig, shape: ModelShape, draft: DraftModel | None, place: HeadPlace, reserve: int
) -> _Caches:
    """As many pages as the budget holds, but no more than max_batch requests of full context can use. Without a budget,
    a share of the memory that is free beside `reserve`, what a device-resident cycle needs."""
    num_kv_heads = shape.num_kv_heads // place.group.size
    slot_bytes = KVCache.bytes_per_slot(shape.num_layers, num_kv_heads, shape.head_dim, place.dtype)
    if draft is not None:
        slot_bytes += KVCache.bytes_per_slot(1, draft.num_kv_heads, draft.config.head_dim, place.dtype)
    page_bytes = slot_bytes * config.page_tokens
    budget = config.kv_memory_bytes or _kv_budget(place, reserve, page_bytes)
    wanted = config.max_batch * -(-place.context_tokens // config.page_tokens)
    num_pages = agreed_minimum(place.group, min(wanted, budget // page_bytes)) + 1
    if num_pages < 2:
        raise InvalidOption(f"the KV memory of {budget} bytes holds no page of {page_bytes} bytes; give it more")
    num_slots = num_pages * config.page_tokens
    target_cache = KVCache(shape.num_layers, num_slots, num_kv_heads, shape.head_dim, place.dtype, place.device)
    target = Geometry(target_cache, shape.num_query_groups, place.device)
    if draft is None:
        return _Caches(target, None, num_pages)
    head = draft.config
    draft_cache = KVCache(1, num_slots, draft.num_kv_heads, head.head_dim, place.dtype, place.device)
    return _Caches(target, Geometry(draft_cache, head.num_heads // head.num_kv_heads, place.device), num_pages)


def _kv_budget(place: HeadPlace, reserve: int, page_bytes: int) -> int:
    """A share of what is free beside `reserve`. Raises OutOfMemory where that is less than a page."""
    share = _CPU_SHARE / place.group.size if place.device.type == "cpu" else _CUDA_SHARE
    free = free_memory_bytes(place.device)
    budget = int(max(0, free - reserve) * share)
    if reserve and budget < page_bytes:
        raise OutOfMemory(
            f"out of memory: {free >> 20} MiB are free beside the weights, and the requests' state and the graphs need "
            f"about {reserve >> 20}: use a smaller --dtype, or {CYCLE}"
        )
    return budget


def _context(config: EngineConfig, shape: ModelShape) -> int:
    if config.context_tokens is not None and config.context_tokens > shape.max_position:
        raise InvalidOption(
            f"--context is {config.context_tokens}; this model was made for {shape.max_position} tokens at most"
        )
    return config.context_tokens or shape.max_position


def _fit_context(config: EngineConfig, context: int, num_pages: int) -> int:
    capacity = (num_pages - 1) * config.page_tokens
    if config.context_tokens is not None and config.context_tokens > capacity:
        raise InvalidOption(
            f"a context of {config.context_tokens} tokens does not fit the KV cache, which holds {capacity}: "
            "give it more memory (--kv-memory) or ask for less context"
        )
    return min(context, capacity)


def _collective_facts(group: Group) -> dict[str, Any]:
    rules = group.rules
    return {
        "mode": rules.mode,
        "families": rules.families,
        "refused": msgspec.to_builtins(rules.unusable),
        "table": None if rules.table is None else msgspec.to_builtins(rules.table),
        "order_refusal": group.order_refusal,
    }


def _head_facts(draft: DraftModel) -> dict[str, Any]:
    head = draft.config
    return {
        "format": head.format,
        "boundaries": list(head.boundaries),
        "feedback": head.feedback,
        "draft_vocab": head.draft_vocab_size or head.vocab_size,
        "placement": draft.placement,
    }


def _weights_progress(say: Progress) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if done % 20 == 0 or done == total:
            say(f"loading weights: {done} of {total} tensors")

    return report
