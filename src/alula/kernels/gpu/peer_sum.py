"""A sum over ranks by pushing: each rank writes its rows into every peer's memory, raises a flag there, and adds what
it was sent. Alone, or with the residual stream added and made ready for the next norm, which saves two kernels a layer.

One program a tile of a row. Tiles are sent to one of two places in turn, so that no meeting is needed at the end: a
rank that sends its tile of call c + 2 has seen every peer's flag of call c + 1, and a peer raises that one after it has
read everything of call c. Each tile counts its own calls, in memory, so a replayed graph goes on where the last one
ended. A tile's places hold its elements in any dtype: calls of several dtypes do not share bytes between tiles.
Release and acquire at system scope (PTX memory model): the flag is written behind a barrier of the program, by one
thread, and makes visible what all threads of the program wrote.

Sums are made in fp32, in rank order, and rounded once: the same bits on every rank, whatever other rows there are. What
is added to the residual is the rounded sum: the new stream has the bits of a sum followed by an addition, and only the
squares are added up in another order than `enter` does it.

R rows, H hidden, C tiles of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.reference.fused import Deferred, Norm, Stream

MAX_ROWS = 128
TILE = 1024  # elements: 16 bytes of bf16 for each of a program's 128 threads
MAX_TILES = 16
_PARITIES = 2
_TILE_BYTES = TILE * 4


def mailbox_bytes(num_ranks: int) -> int:
    """What each rank's memory for peers takes: flags, then tiles by parity, sender, row and place in the row."""
    return _flag_bytes(num_ranks) + _PARITIES * num_ranks * MAX_ROWS * MAX_TILES * _TILE_BYTES


def _flag_bytes(num_ranks: int) -> int:
    return num_ranks * MAX_ROWS * MAX_TILES * 4


@dataclass(frozen=True)
class Mailboxes:
    """addresses: int64 [ranks], on the device: where every rank's zeroed memory for peers lies in this rank's view.
    calls_RC: int32 [MAX_ROWS, MAX_TILES] zeros of this rank's own."""

    rank: int
    num_ranks: int
    addresses: Tensor
    calls_RC: Tensor


def peer_sum(y_RH: Tensor, boxes: Mailboxes) -> Tensor:
    """The sum over ranks, [R, H] of R <= MAX_ROWS rows."""
    out_RH = torch.empty_like(y_RH)
    _launch(y_RH, y_RH, y_RH, out_RH, out_RH, boxes.calls_RC, boxes, fused=False)
    return out_RH


def peer_sum_onto(y_RH: Tensor, onto_RH: Tensor, norm: Norm, boxes: Mailboxes) -> Stream:
    """onto + the sum over ranks, as a stream that is ready for `norm`."""
    x_RH, scaled_RH = torch.empty_like(onto_RH), torch.empty_like(onto_RH)
    num_tiles = triton.cdiv(y_RH.shape[1], TILE)
    squares_RC = torch.empty(y_RH.shape[0], num_tiles, dtype=torch.float32, device=y_RH.device)
    _launch(y_RH, onto_RH, norm.weight_H, x_RH, scaled_RH, squares_RC, boxes, fused=True)
    return Stream(x_RH, Deferred(scaled_RH, squares_RC, norm.eps))


def _launch(
    y_RH: Tensor, onto_RH: Tensor, norm_H: Tensor, x_RH: Tensor, scaled_RH: Tensor, squares_RC: Tensor,
    boxes: Mailboxes, fused: bool
) -> None:  # fmt: skip
    num_rows, size = y_RH.shape
    if num_rows == 0:
        return
    _alula_peer_sum_kernel[(num_rows, triton.cdiv(size, TILE))](
        *(y_RH, onto_RH, norm_H, x_RH, scaled_RH, squares_RC, boxes.addresses, boxes.calls_RC, size),
        RANK=boxes.rank,
        RANKS=boxes.num_ranks,
        MAX_ROWS=MAX_ROWS,
        MAX_TILES=MAX_TILES,
        FLAG_BYTES=_flag_bytes(boxes.num_ranks),
        FUSED=fused,
        TILE=TILE,
        num_warps=4,
        **early_launch(y_RH.device),
    )


@triton.jit
def _sent_at(box, parity, sender, place, RANKS: tl.constexpr, PLACES: tl.constexpr, TILE_BYTES: tl.constexpr):
    """Address of a tile in a box, which begins behind the flags."""
    return box + ((parity * RANKS + sender) * PLACES + place).to(tl.int64) * TILE_BYTES


@triton.jit
def _alula_peer_sum_kernel(
    y_ptr, onto_ptr, norm_ptr, x_ptr, scaled_ptr, squares_ptr, boxes_ptr, calls_ptr, H,
    RANK: tl.constexpr, RANKS: tl.constexpr, MAX_ROWS: tl.constexpr, MAX_TILES: tl.constexpr,
    FLAG_BYTES: tl.constexpr, FUSED: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    PLACES: tl.constexpr = MAX_ROWS * MAX_TILES
    TILE_BYTES: tl.constexpr = TILE * 4
    row, tile = tl.program_id(0), tl.program_id(1)
    place = row * MAX_TILES + tile
    inside = tl.arange(0, TILE)
    h = tile * TILE + inside
    ok = h < H
    at = row.to(tl.int64) * H + h
    wait(EARLY)
    begin(EARLY)
    mine = tl.load(y_ptr + at, mask=ok, other=0.0)
    call = tl.load(calls_ptr + place) + 1
    parity = call & 1
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            box = tl.load(boxes_ptr + peer)
            sent = _sent_at(box + FLAG_BYTES, parity, RANK, place, RANKS, PLACES, TILE_BYTES).to(y_ptr.dtype)
            tl.store(sent + inside, mine, mask=ok)
    tl.debug_barrier()
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            flags = tl.load(boxes_ptr + peer).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(flags + RANK * PLACES + place, call, sem="release", scope="sys")
    own = tl.load(boxes_ptr + RANK)
    own_flags = own.to(tl.pointer_type(tl.int32))
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            # A peer is at this call or already at the next: it cannot pass the one after that without us.
            seen = tl.atomic_add(own_flags + peer * PLACES + place, 0, sem="acquire", scope="sys")
            while seen == call - 1:
                seen = tl.atomic_add(own_flags + peer * PLACES + place, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    total = tl.zeros((TILE,), dtype=tl.float32)
    for peer in tl.static_range(RANKS):
        if peer == RANK:
            total += mine.to(tl.float32)
        else:
            sent = _sent_at(own + FLAG_BYTES, parity, peer, place, RANKS, PLACES, TILE_BYTES).to(y_ptr.dtype)
            total += tl.load(sent + inside, mask=ok, other=0.0, volatile=True).to(tl.float32)
    summed = total.to(x_ptr.dtype.element_ty)
    if FUSED:
        onto = tl.load(onto_ptr + at, mask=ok, other=0.0).to(tl.float32)
        norm = tl.load(norm_ptr + h, mask=ok, other=0.0).to(tl.float32)
        rounded = (summed.to(tl.float32) + onto).to(x_ptr.dtype.element_ty)
        values = rounded.to(tl.float32)
        tl.store(x_ptr + at, rounded, mask=ok)
        tl.store(scaled_ptr + at, (values * norm).to(x_ptr.dtype.element_ty), mask=ok)
        tl.store(squares_ptr + row * tl.num_programs(1) + tile, tl.sum(values * values, axis=0))
    else:
        tl.store(x_ptr + at, summed, mask=ok)
    tl.store(calls_ptr + place, call)
