"""Causal attention of a few rows a request over paged KV, in plain torch.

Query heads that share a kv head are folded into the row axis, because torch's own `enable_gqa` is several times slower
for one row in bf16 on a CPU. Rows are independent; what a row sees is decided by its mask and its slots alone.

R rows, B requests of a group, W rows of each, N query heads, K kv heads, G query heads a kv head, D head dimension,
S slots of the cache, T tokens seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionGroup:
    """Requests that have the same number of rows and are attended in one call.

    rows: B*W rows of the forward, request by request (a slice where they lie together).
    slots: [B, T] cache slots of positions 0..T-1, or one slice where a single request's pages lie together.
    mask: additive, [B, 1, W*G, T] (rows in order of width, then query head), or None where every row sees all T. A mask
    with more rows asks for query rows of zeros up to that number, whose results are dropped.
    views: keys and values of the slots for each layer, [1, K, T, D], where somebody made them once for all layers.
    """

    rows: slice | Tensor
    num_requests: int
    width: int
    slots: slice | Tensor
    mask: Tensor | None
    views: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None


def paged_attention(
    q_RND: Tensor, k_SKD: Tensor, v_SKD: Tensor, groups: tuple[AttentionGroup, ...], layer: int = 0
) -> Tensor:
    """Softmax(q k^T / sqrt(D) + mask) v for every group -> [R, N*D]. Rows outside every group come back as zeros.

    layer: which of a group's views belong to `k_SKD` and `v_SKD`.
    """
    covers_all = len(groups) == 1 and groups[0].num_requests * groups[0].width == q_RND.shape[0]
    if covers_all and isinstance(groups[0].rows, slice):
        return _attend(q_RND, *_seen(k_SKD, v_SKD, groups[0], layer), groups[0])
    out = q_RND.new_zeros(q_RND.shape[0], q_RND.shape[1] * q_RND.shape[2])
    for group in groups:
        out[group.rows] = _attend(q_RND[group.rows], *_seen(k_SKD, v_SKD, group, layer), group)
    return out


def _attend(q_RND: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, group: AttentionGroup) -> Tensor:
    num_kv_heads, head_dim = k_BKTD.shape[1], k_BKTD.shape[3]
    batch, width = group.num_requests, group.width
    if batch == width == 1 and group.mask is None:
        q_1KGD = q_RND.view(1, num_kv_heads, -1, head_dim)
        return torch.nn.functional.scaled_dot_product_attention(q_1KGD, k_BKTD, v_BKTD).reshape(1, -1)
    q_BWKGD = q_RND.view(batch, width, num_kv_heads, -1, head_dim)
    q_BKXD = q_BWKGD.permute(0, 2, 1, 3, 4).reshape(batch, num_kv_heads, -1, head_dim)
    num_rows = q_BKXD.shape[2]
    if group.mask is not None and group.mask.shape[2] > num_rows:
        q_BKXD = torch.nn.functional.pad(q_BKXD, (0, 0, 0, group.mask.shape[2] - num_rows))
    out_BKXD = torch.nn.functional.scaled_dot_product_attention(q_BKXD, k_BKTD, v_BKTD, attn_mask=group.mask)
    out_BWKGD = out_BKXD[:, :, :num_rows].unflatten(2, (width, -1)).permute(0, 2, 1, 3, 4)
    return out_BWKGD.reshape(batch * width, -1)


def _seen(k_SKD: Tensor, v_SKD: Tensor, group: AttentionGroup, layer: int) -> tuple[Tensor, Tensor]:
    if group.views is not None:
        return group.views[0][layer], group.views[1][layer]
    return _gather(k_SKD, group), _gather(v_SKD, group)


def _gather(cache_SKD: Tensor, group: AttentionGroup) -> Tensor:
    """[B, K, T, D]: a view where the slots are a slice, else a copy."""
    if isinstance(group.slots, slice):
        return cache_SKD[group.slots].transpose(0, 1)[None]
    picked = cache_SKD.index_select(0, group.slots.flatten())
    return picked.view(*group.slots.shape, *cache_SKD.shape[1:]).transpose(1, 2)
