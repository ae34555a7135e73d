"""Row movements between the phases of a device-resident cycle: twins of kernels/reference/chain_rows.py, a launch each.

R rows (B requests of W rows each), H hidden, F target features, S seats, T kept positions, C parts of a row's squares.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, publish, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.reference import chain_rows as reference
from alula.kernels.reference.chain_rows import Prepared
from alula.kernels.reference.fused import Deferred, Norm, Stream
from alula.kernels.reference.seats import Seats

_MOST_PARTS = 4


def embed_rows(
    seats: Seats, seats_B: Tensor, width: int, prepared: Prepared, table_VH: Tensor, norm: Norm
) -> Stream:
    """`seats.prepare_rows` into `prepared`, and the embedding of its ids.

    The first kernel of a verify on one rank. Unlike the first kernels of stream.py it never lets the next one start
    early, since it writes positions itself: so these too, beside what was written before (tables, keys of earlier
    positions), may be read by all kernels of the forward at once.
    """
    num_rows, size = seats_B.shape[0] * width, table_VH.shape[1]
    x_RH, scaled_RH = table_VH.new_empty(num_rows, size), table_VH.new_empty(num_rows, size)
    squares_R1 = torch.empty(num_rows, 1, dtype=torch.float32, device=x_RH.device)
    _embed_kernel[(num_rows,)](
        *(seats.root_S, seats.drafts_SK, seats.num_kv_S, seats.tables_SP, seats_B, *prepared),
        *(table_VH, norm.weight_H, x_RH, scaled_RH, squares_R1),
        *(width, size, seats.tables_SP.shape[1], seats.drafts_SK.shape[1]),
        PAGE=seats.page_tokens,
        BLOCK_H=triton.next_power_of_2(size),
        **early_launch(x_RH.device),
    )
    return Stream(x_RH, Deferred(scaled_RH, squares_R1, norm.eps))


def store_features(parts: tuple[Tensor, ...], features_RF: Tensor) -> None:
    """Hidden states [R, H] side by side."""
    if len(parts) > _MOST_PARTS:
        reference.store_features(parts, features_RF)
        return
    _move(parts, features_RF, features_RF, features_RF, ring=0, width=1)


def keep_features(parts: tuple[Tensor, ...], kept_STF: Tensor, seats_B: Tensor, positions_R: Tensor) -> None:
    """As `store_features`, into each seat's ring: position p lies at p modulo T."""
    if len(parts) > _MOST_PARTS:
        reference.keep_features(parts, kept_STF, seats_B, positions_R)
        return
    _move(parts, kept_STF, seats_B, positions_R, kept_STF.shape[1], positions_R.shape[0] // seats_B.shape[0])


def begin_chains(stream: Stream, rows_B: Tensor, seats_B: Tensor, feedback_SH: Tensor, post: bool) -> Deferred:
    """Rows `rows_B` of a draft's stream, ready for its norm; each seat's feedback is set to that row, behind the norm
    where `post`."""
    normed = stream.normed
    assert normed.squares_RC is not None
    batch, size, parts = rows_B.shape[0], normed.value_RI.shape[1], normed.squares_RC.shape[1]
    scaled_BH, squares_BC = normed.value_RI.new_empty(batch, size), normed.squares_RC.new_empty(batch, parts)
    _chains_kernel[(batch,)](
        *(stream.x_RH, normed.value_RI, normed.squares_RC, rows_B, seats_B, feedback_SH, scaled_BH, squares_BC),
        *(size, parts, normed.eps),
        POST=post,
        BLOCK_H=triton.next_power_of_2(size),
        BLOCK_C=triton.next_power_of_2(parts),
        **early_launch(scaled_BH.device),
    )
    return Deferred(scaled_BH, squares_BC, normed.eps)


def _move(
    parts: tuple[Tensor, ...], target: Tensor, seats_B: Tensor, positions_R: Tensor, ring: int, width: int
) -> None:
    num_rows, size = parts[0].shape
    padded = (*parts, *parts[:1] * (_MOST_PARTS - len(parts)))
    _move_kernel[(num_rows, len(parts))](
        *(*padded, target, seats_B, positions_R, size, len(parts), width),
        RING=ring,
        BLOCK_H=triton.next_power_of_2(size),
        **early_launch(target.device),
    )


@triton.jit(do_not_specialize=["W", "P"])
def _embed_kernel(
    root_ptr, drafts_ptr, num_kv_ptr, tables_ptr, seats_ptr, ids_ptr, positions_ptr, slots_ptr, first_ptr, table_ptr,
    norm_ptr, x_ptr, scaled_ptr, squares_ptr, W, H, P, K, PAGE: tl.constexpr, BLOCK_H: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    h = tl.arange(0, BLOCK_H)
    ok = h < H
    norm = tl.load(norm_ptr + h, mask=ok, other=0.0).to(tl.float32)
    wait(EARLY)
    request, step = row // W, row % W
    seat = tl.load(seats_ptr + request).to(tl.int64)
    num_kv = tl.load(num_kv_ptr + seat)
    root = tl.load(root_ptr + seat, mask=step == 0, other=0)
    draft = tl.load(drafts_ptr + seat * K + step - 1, mask=step > 0, other=0)
    token = tl.where(step == 0, root, draft)
    position = num_kv + step
    page = position // PAGE
    held = tl.load(tables_ptr + seat * P + page, mask=page < P, other=0).to(tl.int64)
    tl.store(ids_ptr + row, token)
    tl.store(positions_ptr + row, position.to(tl.int64))
    tl.store(slots_ptr + row, tl.where(page < P, held * PAGE + position % PAGE, 0))
    tl.store(first_ptr + request, num_kv, mask=step == 0)
    publish(EARLY)  # attention reads it before its own wait
    x = tl.load(table_ptr + token * H + h, mask=ok, other=0.0)
    at = row.to(tl.int64) * H + h
    values = x.to(tl.float32)
    tl.store(x_ptr + at, x, mask=ok)
    tl.store(scaled_ptr + at, (values * norm).to(x.dtype), mask=ok)
    tl.store(squares_ptr + row, tl.sum(values * values, axis=0))


@triton.jit(do_not_specialize=["W"])
def _move_kernel(
    part0_ptr, part1_ptr, part2_ptr, part3_ptr, target_ptr, seats_ptr, positions_ptr, H, NUM_PARTS, W,
    RING: tl.constexpr, BLOCK_H: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    row, part = tl.program_id(0), tl.program_id(1)
    h = tl.arange(0, BLOCK_H)
    source = part0_ptr
    if part == 1:
        source = part1_ptr
    if part == 2:
        source = part2_ptr
    if part == 3:
        source = part3_ptr
    x = tl.load(source + row.to(tl.int64) * H + h, mask=h < H, other=0.0)
    line = row.to(tl.int64)
    if RING > 0:
        seat = tl.load(seats_ptr + row // W).to(tl.int64)
        line = seat * RING + tl.load(positions_ptr + row) % RING
    tl.store(target_ptr + (line * NUM_PARTS + part) * H + h, x, mask=h < H)


@triton.jit(do_not_specialize=["C"])
def _chains_kernel(
    x_ptr, scaled_ptr, squares_ptr, rows_ptr, seats_ptr, feedback_ptr, scaled_out_ptr, squares_out_ptr, H, C, eps,
    POST: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    request = tl.program_id(0)
    row, seat = tl.load(rows_ptr + request), tl.load(seats_ptr + request).to(tl.int64)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    scaled = tl.load(scaled_ptr + row * H + h, mask=h < H, other=0.0)
    squares = tl.load(squares_ptr + row * C + c, mask=c < C, other=0.0)
    tl.store(scaled_out_ptr + request * H + h, scaled, mask=h < H)
    tl.store(squares_out_ptr + request * C + c, squares, mask=c < C)
    if POST:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / H + eps)
        feedback = (scaled.to(tl.float32) * scale).to(scaled.dtype)
    else:
        feedback = tl.load(x_ptr + row * H + h, mask=h < H, other=0.0)
    tl.store(feedback_ptr + seat * H + h, feedback, mask=h < H)
