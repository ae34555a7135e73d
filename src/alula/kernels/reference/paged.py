"""Causal attention of equally wide blocks of rows over paged KV, with everything that changes read from device tensors.

Nothing here waits for the device, so a call can be captured. What lies in slots that a request's last row does not see
(stale or NaN) has no influence. Within a request, a later row's keys and values must be finite for the earlier rows.

R rows, B requests, W rows of each, N query heads, K kv heads, G query heads a kv head, D head dimension, S slots of the
cache (in `tables_SP`: seats), P pages of a table, T positions that a table can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PagedRows:
    """Where the rows of B requests stand. Row r belongs to request r // width.

    tables_SP: int32, pages of each seat; zeros (the dummy page) behind its end.
    seats_B: int32, each request's line of the tables; 0 pads a batch.
    first_B: int32, position of each request's first row.
    """

    tables_SP: Tensor
    seats_B: Tensor
    first_B: Tensor
    width: int
    page_tokens: int


def block_attention(q_RND: Tensor, k_SKD: Tensor, v_SKD: Tensor, rows: PagedRows) -> Tensor:
    """Softmax(q k^T / sqrt(D)) v -> [R, N*D]. Row j of request b sees positions 0..first_B[b]+j, its own included.

    Softmax and sums are in fp32. The keys and values of the rows themselves must be in the cache already.
    """
    num_kv_heads, head_dim = k_SKD.shape[1:]
    batch, width = rows.seats_B.shape[0], rows.width
    slots_BT = _slots(rows)
    steps_W = torch.arange(width, device=q_RND.device)
    last_BW = rows.first_B[:, None] + steps_W
    positions_T = torch.arange(slots_BT.shape[1], device=q_RND.device)
    read_BT11 = (positions_T <= last_BW[:, -1:])[:, :, None, None]
    k_BKDT = torch.where(read_BT11, k_SKD[slots_BT].float(), 0.0).permute(0, 2, 3, 1)
    v_BKTD = torch.where(read_BT11, v_SKD[slots_BT].float(), 0.0).transpose(1, 2)
    group = q_RND.shape[1] // num_kv_heads
    q_BWKGD = q_RND.float().reshape(batch, width, num_kv_heads, group, head_dim)
    q_BKXD = q_BWKGD.permute(0, 2, 1, 3, 4).flatten(2, 3)
    scores_BKWGT = ((q_BKXD * head_dim**-0.5) @ k_BKDT).unflatten(2, (width, group))
    hidden_BWT = positions_T > last_BW[:, :, None]
    scores_BKWGT = scores_BKWGT.masked_fill(hidden_BWT[:, None, :, None, :], float("-inf"))
    out_BKXD = scores_BKWGT.softmax(-1).flatten(2, 3) @ v_BKTD
    out_BWKGD = out_BKXD.unflatten(2, (width, group)).permute(0, 2, 1, 3, 4)
    return out_BWKGD.reshape(batch * width, num_kv_heads * group * head_dim).to(q_RND.dtype)


def prefill_attention(q_RND: Tensor, k_SKD: Tensor, v_SKD: Tensor, rows: PagedRows) -> Tensor:
    """As `block_attention`; on a GPU, what wide rows (a chunk of a prompt) are attended with."""
    return block_attention(q_RND, k_SKD, v_SKD, rows)


def _slots(rows: PagedRows) -> Tensor:
    """[B, T]: the slot of every position a request's table can hold."""
    pages_BP = rows.tables_SP[rows.seats_B.long()].long()
    offsets = torch.arange(rows.page_tokens, device=pages_BP.device)
    return (pages_BP[:, :, None] * rows.page_tokens + offsets).flatten(1)
