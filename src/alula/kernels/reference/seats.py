"""The cycle's own arithmetic on tables that live on the device: which rows come next, which drafts count.

A *seat* is one line of the state tables and belongs to one running request; seat 0 is the dummy that pads a batch, and
its lines never change. Every request of a batch has the same width: its root and width - 1 drafts. Nothing here
synchronises with the host, and everything is written in place, so that a graph may hold it. Knows nothing of logits.

S seats, K drafts a seat can hold (MAX_STEPS), P pages of a seat, B requests of the batch, W rows a request (the width),
R = B*W rows request by request, T entries of a forced table, X = 2 + W columns of a result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from alula.core.config import MAX_STEPS


@dataclass(frozen=True)
class Seats:
    """root: the emitted token that is not in the cache yet. num_kv: tokens in the cache. limit: how many drafts may
    count, 0..K. tables: pages of positions in order, 0 (the dummy page) behind the end."""

    root_S: Tensor  # int64
    drafts_SK: Tensor  # int64
    num_kv_S: Tensor  # int32
    limit_S: Tensor  # int32
    tables_SP: Tensor  # int32
    page_tokens: int

    @staticmethod
    def make(num_seats: int, num_pages_each: int, page_tokens: int, device: torch.device | str = "cpu") -> Seats:
        """All zeros. `num_seats` counts the dummy."""
        return Seats(
            root_S=torch.zeros(num_seats, dtype=torch.int64, device=device),
            drafts_SK=torch.zeros(num_seats, MAX_STEPS, dtype=torch.int64, device=device),
            num_kv_S=torch.zeros(num_seats, dtype=torch.int32, device=device),
            limit_S=torch.zeros(num_seats, dtype=torch.int32, device=device),
            tables_SP=torch.zeros(num_seats, num_pages_each, dtype=torch.int32, device=device),
            page_tokens=page_tokens,
        )


@dataclass(frozen=True)
class Forced:
    """Accepted counts that a measurement dictates: request b of call c gets table[(c + b) mod T], as far as limits
    allow. cursor: c, one more after each call."""

    table_T: Tensor  # int32
    cursor_1: Tensor  # int64


def prepare_rows(
    seats: Seats, seats_B: Tensor, width: int, ids_R: Tensor, positions_R: Tensor, slots_R: Tensor, first_B: Tensor
) -> None:
    """Writes the rows of one target forward: root, then drafts 0..W-2, at positions num_kv, num_kv+1, ...

    `ids_R`, `positions_R`, `slots_R` are int64 and `first_B`, the first position of each request, is int32. Positions
    beyond a seat's table get slot 0, in the dummy page. `width` 1 is plain decoding.
    """
    seats_index_B = seats_B.long()
    num_kv_B = seats.num_kv_S[seats_index_B]
    root_B1 = seats.root_S[seats_index_B][:, None]
    ids_BW = torch.cat([root_B1, seats.drafts_SK[seats_index_B, : width - 1]], dim=1)
    positions_BW = num_kv_B.long()[:, None] + torch.arange(width, device=num_kv_B.device)
    ids_R.copy_(ids_BW.flatten())
    positions_R.copy_(positions_BW.flatten())
    slots_R.copy_(_slots(seats, seats_index_B, positions_BW).flatten())
    first_B.copy_(num_kv_B)


def prepare_draft_rows(
    seats: Seats, seats_B: Tensor, step: int, ids_B: Tensor, positions_B: Tensor, slots_B: Tensor, first_B: Tensor
) -> None:
    """Writes the rows of the draft's forward number `step` (0..K-2): draft `step` of each seat, at position num_kv +
    step. The dtypes are those of `prepare_rows`."""
    seats_index_B = seats_B.long()
    positions_row_B = seats.num_kv_S[seats_index_B].long() + step
    ids_B.copy_(seats.drafts_SK[seats_index_B, step])
    positions_B.copy_(positions_row_B)
    slots_B.copy_(_slots(seats, seats_index_B, positions_row_B[:, None])[:, 0])
    first_B.copy_(positions_row_B)


def accept_rows(
    seats: Seats,
    seats_B: Tensor,
    width: int,
    draws_R: Tensor,
    bad_R: Tensor,
    forced: Forced | None,
    accepted_B: Tensor,
    last_row_B: Tensor,
    results_BX: Tensor,
) -> None:
    """Takes the longest prefix of drafts that equals the draws (spec/acceptance.py), and moves each seat on.

    `draws_R` (int64) are the target's tokens, `bad_R` (bool or int8) the rows without numbers. At most `limit` drafts
    count, and none whose row is bad: the drafts may have broken it, and plain decoding would go on. A request is
    flagged where its row 0 is bad; then nothing is accepted. A seat gets num_kv + accepted + 1 and the draw of row
    `accepted` as its root; seat 0 keeps what it has.

    Writes `accepted_B` int32, `last_row_B` int64 (b*W + accepted) and `results_BX` int64: accepted, flag, all draws.
    """
    seats_index_B = seats_B.long()
    draws_BW, bad_BW = draws_R.reshape(-1, width), bad_R.reshape(-1, width).to(torch.int64)
    num_drafts = width - 1
    if forced is None:
        agrees_BD = draws_BW[:, :num_drafts] == seats.drafts_SK[seats_index_B, :num_drafts]
        counted_B = agrees_BD.to(torch.int64).cumprod(1).sum(1)
    else:
        counted_B = _forced_counts(forced, len(seats_B))
    counted_B = torch.minimum(counted_B, seats.limit_S[seats_index_B].long()).clamp_(0, num_drafts)
    good_rows_B = (1 - bad_BW).cumprod(1).sum(1)
    counted_B = torch.minimum(counted_B, (good_rows_B - 1).clamp_(min=0))

    root_B = draws_BW.gather(1, counted_B[:, None])[:, 0]
    num_kv_B = seats.num_kv_S[seats_index_B]
    real_B = seats_B > 0
    seats.root_S[seats_index_B] = torch.where(real_B, root_B, seats.root_S[seats_index_B])
    seats.num_kv_S[seats_index_B] = torch.where(real_B, num_kv_B + counted_B.to(torch.int32) + 1, num_kv_B)
    accepted_B.copy_(counted_B)
    last_row_B.copy_(torch.arange(len(seats_B), device=counted_B.device) * width + counted_B)
    results_BX.copy_(torch.cat([counted_B[:, None], bad_BW[:, :1], draws_BW], dim=1))


def store_drafts(seats: Seats, seats_B: Tensor, drafts_B: Tensor, column: int) -> None:
    """drafts_SK[seat, column] = draft, for all but seat 0. `drafts_B` is int64."""
    seats_index_B = seats_B.long()
    kept_B = seats.drafts_SK[seats_index_B, column]
    seats.drafts_SK[seats_index_B, column] = torch.where(seats_B > 0, drafts_B, kept_B)


def _slots(seats: Seats, seats_index_B: Tensor, positions_BW: Tensor) -> Tensor:
    num_pages = seats.tables_SP.shape[1]
    page_index_BW = positions_BW // seats.page_tokens
    pages_BW = seats.tables_SP[seats_index_B[:, None], page_index_BW.clamp(max=num_pages - 1)].long()
    slots_BW = pages_BW * seats.page_tokens + positions_BW % seats.page_tokens
    return torch.where(page_index_BW < num_pages, slots_BW, 0)


def _forced_counts(forced: Forced, num_requests: int) -> Tensor:
    requests_B = torch.arange(num_requests, device=forced.cursor_1.device)
    counts_B = forced.table_T[(forced.cursor_1 + requests_B) % len(forced.table_T)].long()
    forced.cursor_1.add_(1)
    return counts_B
