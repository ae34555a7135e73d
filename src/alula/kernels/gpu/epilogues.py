"""What happens to a tile of a product before it leaves the registers: a bias, a residual, a gate, a rotation.

R rows, O outputs (of a tile), C parts of a row's sum of squares, N query heads, K kv heads, D head dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_plain(y_RO, out_ptr, rows, columns, ok_RO, out_stride):
    at = rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(out_ptr + at, y_RO.to(out_ptr.dtype.element_ty), mask=ok_RO)


@triton.jit
def gate(gate_RO, up_RO):
    """silu(gate) * up."""
    return gate_RO * tl.sigmoid(gate_RO) * up_RO


@triton.jit
def store_added(
    y_RO, onto_RO, norm_O, out_ptr, scaled_ptr, squares_ptr, rows, row_ok, columns, ok_RO, out_stride, tile, C
):
    """The residual stream, the same times the next norm's weight, and this tile's part of the rows' squares."""
    rounded_RO = (y_RO + onto_RO).to(out_ptr.dtype.element_ty)
    at = rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(out_ptr + at, rounded_RO, mask=ok_RO)
    x_RO = tl.where(ok_RO, rounded_RO.to(tl.float32), 0.0)
    tl.store(scaled_ptr + at, (x_RO * norm_O[None, :]).to(out_ptr.dtype.element_ty), mask=ok_RO)
    tl.store(squares_ptr + rows * C + tile, tl.sum(x_RO * x_RO, axis=1), mask=row_ok)


@triton.jit
def store_qkv(
    y_RO,
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    rows,
    row_ok,
    tile,
    N,
    K,
    k_stride,
    v_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Rotates the pairs of a query or key tile; queries go to [R, N, D], keys and values to the rows' slots."""
    HALF: tl.constexpr = HEAD_DIM // 2
    PAIRS: tl.constexpr = BLOCK_O // 2
    TILES: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    head = tile // TILES
    pair = (tile % TILES) * PAIRS + tl.arange(0, PAIRS)
    ok = row_ok[:, None] & (pair < HALF)[None, :]
    rounded = y_RO.to(q_ptr.dtype.element_ty).to(tl.float32)
    low, high = tl.split(tl.permute(tl.reshape(rounded, (BLOCK_R, 2, PAIRS)), (0, 2, 1)))
    if head < N + K:
        position = tl.load(positions_ptr + rows, mask=row_ok, other=0)
        angle = position[:, None] * HEAD_DIM + pair[None, :]
        cos = tl.load(cos_ptr + angle, mask=ok, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle + HALF, mask=ok, other=0.0).to(tl.float32)
        low, high = low * cos - high * sin, high * cos + low * sin
    if head < N:
        at = q_ptr + (rows.to(tl.int64)[:, None] * N + head) * HEAD_DIM + pair[None, :]
    else:
        slot = tl.load(slots_ptr + rows, mask=row_ok, other=0)[:, None]
        if head < N + K:
            at = k_ptr + slot * k_stride + (head - N) * HEAD_DIM + pair[None, :]
        else:
            at = v_ptr + slot * v_stride + (head - N - K) * HEAD_DIM + pair[None, :]
    tl.store(at, low.to(q_ptr.dtype.element_ty), mask=ok)
    tl.store(at + HALF, high.to(q_ptr.dtype.element_ty), mask=ok)
