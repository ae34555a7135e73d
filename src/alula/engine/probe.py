"""Forwards that measure an engine before it serves, over a small cache of their own. Knows no requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable
from alula.models.llama import LlamaModel
from alula.spec.drafting import ChainStart, Drafter, Extension, greedy_chooser

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


def frame(geometry: Geometry, position: int) -> Callable[[], Any]:
    """What builds a forward of one row, without running it: the host's share of every pass."""
    scratch, table = scratch_geometry(geometry, geometry.kv_multiple), scratch_table()
    ids = torch.zeros(1, dtype=torch.int64, device=geometry.device)
    return lambda: build_forward(scratch, [Segment(table, position, 1)], ids, "other")


def draft_passes(drafter: Drafter, position: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What runs one draft step, and an extend of two rows, behind `position` tokens of a cache of their own."""
    own = Drafter(drafter.model, scratch_geometry(drafter.geometry, drafter.geometry.kv_multiple))
    table, cache = scratch_table(), own.geometry.cache.k_LSKD
    features_2F = torch.zeros(2, drafter.model.config.num_features, dtype=cache.dtype, device=cache.device)
    extension = Extension(Segment(table, position, 2), (0, 0), wants_state=True)
    (state,) = own.extend([extension], features_2F)
    assert state is not None  # it was asked for
    start = ChainStart(table, position + 2, 2, state)
    return lambda: own.chain([start], greedy_chooser), lambda: own.extend([extension], features_2F)
