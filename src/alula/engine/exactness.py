"""Whether a row's logits depend on the rows beside it, measured on the engine's own target (DESIGN 4.5).

Exact decoding needs two things: each row's attention is computed over a length that depends on its position alone
(layers/geometry.py), and the matrix products give a row the same bits however many rows come with it. The second
differs between machines, so it is probed: without padding, then with total rows padded to a fixed multiple.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable
from alula.models.llama import LlamaModel

# torch's CPU attention walks keys in blocks of 512: a length that is a multiple of it leaves no ragged block.
KV_MULTIPLE = 512
PADDED_ROWS = 16
_PREFIX_TOKENS = 19
_WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 16, 32)
_PAGE_TOKENS = 64


class Exactness(msgspec.Struct, frozen=True, kw_only=True):
    """off: None where a row's bits are its own, else why they are not. row_multiple: padding that this takes."""

    off: str | None
    kv_multiple: int = 0
    row_multiple: int = 1


def plan_exactness(
    wanted: bool, device: torch.device, dtype: torch.dtype, target: LlamaModel, geometry: Geometry
) -> Exactness:
    """Probes the target, over a cache of its own, where exactness is wanted (always in fp32 on a CPU)."""
    if device.type != "cpu":
        return Exactness(off="cuda_kernels_not_row_independent")
    if not wanted and dtype != torch.float32:
        return Exactness(off=f"{str(dtype).removeprefix('torch.')}_on_cpu_without_exact")
    scratch = _scratch_cache(geometry.cache)
    for row_multiple in (1, PADDED_ROWS):
        candidate = replace(geometry, cache=scratch, kv_multiple=KV_MULTIPLE, row_multiple=row_multiple)
        if _rows_keep_their_bits(target, candidate):
            return Exactness(off=None, kv_multiple=KV_MULTIPLE, row_multiple=row_multiple)
    return Exactness(off="matrix_products_depend_on_row_count", kv_multiple=KV_MULTIPLE, row_multiple=PADDED_ROWS)


def _rows_keep_their_bits(target: LlamaModel, geometry: Geometry) -> bool:
    table = SlotTable(_PAGE_TOKENS, [1])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.shape.vocab_size, (_PREFIX_TOKENS + max(_WIDTHS),), generator=generator)
    _logits(target, geometry, table, ids[:_PREFIX_TOKENS], 0)
    alone = _logits(target, geometry, table, ids[_PREFIX_TOKENS : _PREFIX_TOKENS + 1], _PREFIX_TOKENS)[0]
    same = True
    for width in _WIDTHS:
        block = ids[_PREFIX_TOKENS : _PREFIX_TOKENS + width]
        same = same and torch.equal(_logits(target, geometry, table, block, _PREFIX_TOKENS)[0], alone)
    return same


def _scratch_cache(like: KVCache) -> KVCache:
    num_layers, _, num_kv_heads, head_dim = like.k_LSKD.shape
    num_slots = 2 * _PAGE_TOKENS + KV_MULTIPLE
    return KVCache(num_layers, num_slots, num_kv_heads, head_dim, like.k_LSKD.dtype, like.k_LSKD.device)


def _logits(target: LlamaModel, geometry: Geometry, table: SlotTable, ids: Tensor, position: int) -> Tensor:
    forward = build_forward(geometry, [Segment(table, position, len(ids))], ids, "other")
    output = target(forward)
    return target.logits(output.hidden_RH[: len(ids)], "other")
