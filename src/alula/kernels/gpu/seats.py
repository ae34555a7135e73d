"""Triton twins of `kernels/reference/seats.py`: one launch each, nothing allocated, no synchronisation.

All of it is a few thousand bytes: what counts is the latency of two or three dependent reads. Sizes are run-time
numbers, so a batch's size and width compile nothing new.

S seats, K drafts a seat can hold, P pages of a seat, B requests, W rows a request, R = B*W, X = 2 + W.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.core.config import MAX_STEPS
from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.reference.seats import Forced, Seats

_LINES = 64  # requests that one program takes at a time
_COLUMNS = 16  # the next power of two above K + 1 rows


def prepare_rows(
    seats: Seats, seats_B: Tensor, width: int, ids_R: Tensor, positions_R: Tensor, slots_R: Tensor, first_B: Tensor
) -> None:
    """Writes the rows of one target forward: root, then drafts 0..W-2, at positions num_kv, num_kv+1, ..."""
    _prepare(seats, seats_B, width, 0, 0, ids_R, positions_R, slots_R, first_B)


def prepare_draft_rows(
    seats: Seats, seats_B: Tensor, step: int, ids_B: Tensor, positions_B: Tensor, slots_B: Tensor, first_B: Tensor
) -> None:
    """Writes the rows of the draft's forward number `step`: draft `step` of each seat, at position num_kv + step."""
    _prepare(seats, seats_B, 1, step, step + 1, ids_B, positions_B, slots_B, first_B)


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
    """Takes the longest prefix of drafts that equals the draws, and moves each seat on. One program: it also advances
    the cursor of `forced`, which every request reads."""
    assert 1 <= width <= MAX_STEPS + 1 and draws_R.numel() == len(seats_B) * width and results_BX.is_contiguous()
    _accept_kernel[(1,)](
        *(seats.root_S, seats.drafts_SK, seats.num_kv_S, seats.limit_S, seats_B, draws_R, bad_R.view(torch.int8)),
        forced.table_T if forced else seats_B,
        forced.cursor_1 if forced else draws_R,
        *(accepted_B, last_row_B, results_BX),
        *(len(seats_B), width, len(forced.table_T) if forced else 1),
        FORCED=forced is not None,
        K=MAX_STEPS,
        LINES=_LINES,
        COLUMNS=_COLUMNS,
        num_warps=4,
        **early_launch(draws_R.device),
    )


def store_drafts(seats: Seats, seats_B: Tensor, drafts_B: Tensor, column: int) -> None:
    """drafts_SK[seat, column] = draft, for all but seat 0."""
    _store_drafts_kernel[(len(seats_B),)](
        *(seats.drafts_SK, seats_B, drafts_B, column), K=MAX_STEPS, num_warps=1, **early_launch(drafts_B.device)
    )


def _prepare(
    seats: Seats,
    seats_B: Tensor,
    width: int,
    offset: int,
    first_column: int,
    ids_R: Tensor,
    positions_R: Tensor,
    slots_R: Tensor,
    first_B: Tensor,
) -> None:
    assert 1 <= width <= MAX_STEPS + 1 and seats.tables_SP.is_contiguous()
    _prepare_kernel[(len(seats_B),)](
        *(seats.root_S, seats.drafts_SK, seats.num_kv_S, seats.tables_SP, seats_B),
        *(ids_R, positions_R, slots_R, first_B),
        *(width, offset, first_column, seats.tables_SP.shape[1], seats.page_tokens),
        K=MAX_STEPS,
        COLUMNS=_COLUMNS,
        num_warps=1,
        **early_launch(ids_R.device),
    )


@triton.jit(do_not_specialize=["width", "offset", "first_column", "num_pages", "page_tokens"])
def _prepare_kernel(
    root_S, drafts_SK, num_kv_S, tables_SP, seats_B, ids_R, positions_R, slots_R, first_B,
    width, offset, first_column, num_pages, page_tokens,
    K: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program a request. Column 0 of a seat is its root, column c its draft c - 1."""
    begin(EARLY)
    wait(EARLY)
    request = tl.program_id(0)
    seat = tl.load(seats_B + request).to(tl.int64)
    row = tl.arange(0, COLUMNS)
    inside = row < width
    column = first_column + row
    first = tl.load(num_kv_S + seat) + offset
    root = tl.load(root_S + seat)
    drafts = tl.load(drafts_SK + seat * K + column - 1, mask=inside & (column > 0), other=0)
    position = first + row
    page_index = position // page_tokens
    known = page_index < num_pages
    page = tl.load(tables_SP + seat * num_pages + page_index, mask=inside & known, other=0).to(tl.int64)
    slot = tl.where(known, page * page_tokens + position % page_tokens, 0)
    out = request * width + row
    tl.store(ids_R + out, tl.where(column > 0, drafts, root), mask=inside)
    tl.store(positions_R + out, position.to(tl.int64), mask=inside)
    tl.store(slots_R + out, slot, mask=inside)
    tl.store(first_B + request, first)


@triton.jit(do_not_specialize=["num_requests", "width", "num_forced"])
def _accept_kernel(
    root_S, drafts_SK, num_kv_S, limit_S, seats_B, draws_R, bad_R, table_T, cursor_1,
    accepted_B, last_row_B, results_BX, num_requests, width, num_forced,
    FORCED: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program; all memory is named as in the torch twin."""
    begin(EARLY)
    wait(EARLY)
    cursor = tl.load(cursor_1)
    first_entry = (cursor % num_forced).to(tl.int32)
    column = tl.arange(0, COLUMNS)[None, :]
    for start in range(0, num_requests, LINES):
        request = start + tl.arange(0, LINES)
        present = request < num_requests
        seat = tl.load(seats_B + request, mask=present, other=0).to(tl.int64)
        row = request[:, None] * width + column
        inside = present[:, None] & (column < width)
        is_draft = present[:, None] & (column < width - 1)
        draws = tl.load(draws_R + row, mask=inside, other=0)
        bad = tl.load(bad_R + row, mask=inside, other=0)
        drafts = tl.load(drafts_SK + seat[:, None] * K + column, mask=is_draft, other=0)
        num_kv = tl.load(num_kv_S + seat)
        counted = tl.minimum(tl.load(limit_S + seat), width - 1)
        if FORCED:
            entry = (first_entry + request) % num_forced
            counted = tl.minimum(counted, tl.load(table_T + entry, mask=present, other=0))
        else:
            disagrees = is_draft & (draws != drafts)
            counted = tl.minimum(counted, tl.min(tl.where(disagrees, column, COLUMNS), axis=1))
        first_bad = tl.min(tl.where(bad != 0, column, COLUMNS), axis=1)
        counted = tl.maximum(tl.minimum(counted, first_bad - 1), 0)
        root = tl.sum(tl.where(column == counted[:, None], draws, 0), axis=1)
        # Warps hold copies of one another's lines: all of them must have read before one writes.
        tl.debug_barrier()
        real = seat > 0
        tl.store(num_kv_S + seat, num_kv + counted + 1, mask=real)
        tl.store(root_S + seat, root, mask=real)
        tl.store(accepted_B + request, counted, mask=present)
        tl.store(last_row_B + request, (request * width + counted).to(tl.int64), mask=present)
        result = results_BX + request * (width + 2)
        tl.store(result, counted.to(tl.int64), mask=present)
        tl.store(result + 1, (first_bad == 0).to(tl.int64), mask=present)
        tl.store(result[:, None] + 2 + column, draws, mask=inside)
    if FORCED:
        tl.debug_barrier()  # for a batch of nothing; others have met one
        tl.store(cursor_1, cursor + 1)


@triton.jit(do_not_specialize=["column"])
def _store_drafts_kernel(drafts_SK, seats_B, drafts_B, column, K: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    wait(EARLY)
    request = tl.program_id(0)
    seat = tl.load(seats_B + request).to(tl.int64)
    tl.store(drafts_SK + seat * K + column, tl.load(drafts_B + request), mask=seat > 0)
