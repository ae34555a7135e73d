"""Forwards that measure an engine before it serves, over a small cache of their own. Knows no requests."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable
from alula.models.llama import LlamaModel

_PAGE_TOKENS = 96


def scratch_geometry(geometry: Geometry, num_slots: int) -> Geometry:
    """The same geometry over a new cache: the dummy page, one page for `scratch_table`, and `num_slots` behind them."""
    like = geometry.cache.k_LSKD
    num_layers, _, num_kv_heads, head_dim = like.shape
    total = 2 * _PAGE_TOKENS + num_slots
    return replace(geometry, cache=KVCache(num_layers, total, num_kv_heads, head_dim, like.dtype, like.device))


def scratch_table() -> SlotTable:
    """Positions 0..95 of a scratch cache."""
    return SlotTable(_PAGE_TOKENS, [1])


def row_logits(target: LlamaModel, geometry: Geometry, table: SlotTable, ids: Tensor, position: int) -> Tensor:
    """Logits of every row of a block of one request, [R, V]. Writes the cache."""
    forward = build_forward(geometry, [Segment(table, position, len(ids))], ids, "other")
    output = target(forward)
    return target.logits(output.hidden_RH[: len(ids)], "other")
