"""Attention of narrow blocks of rows over paged KV: split over positions, combined by the last program to arrive.

A program holds ROWS folded rows (row by row, the query heads of one kv head side by side) of one request and walks
every NUM_SPLITS-th chunk of CHUNK positions. Chunks and splits lie at fixed absolute positions and a tile always has
ROWS lines, so the order of a row's sums, and with it every bit, is its position's alone: not the width's, the batch's
or the length's. A chunk or split that a row does not see adds exact zeros to it.

R rows, B requests, W rows of each, N query heads, K kv heads, G query heads a kv head, D head dimension, S slots of the
cache (in `tables_SP`: seats), P pages of a table, J splits, X folded rows of a tile, T positions of a chunk. A line is
one query head of a row.
"""

from __future__ import annotations

import functools

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.combine_splits import combine_splits
from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import arrivals, early_launch
from alula.kernels.reference.paged import PagedRows

NUM_SPLITS = 16
ROWS = 16  # of every tile, whatever W*G is: another height is another matrix instruction, with other bits
_COMBINED_FLOATS = 64  # of a thread, so that all reads of a step are under way together
# Up to so many kv heads of requests a program takes registers for keys before its turn comes; with more of them, what
# counts is how many programs a multiprocessor holds. Either way computes the same.
_FEW_HEADS = 16
_LOG2E = 1.4426950408889634


def block_attention(q_RND: Tensor, k_SKD: Tensor, v_SKD: Tensor, rows: PagedRows) -> Tensor:
    """Softmax(q k^T / sqrt(D)) v -> [R, N*D]. Row j of request b sees positions 0..first_B[b]+j, its own included.

    The last dimension of q, k and v is dense, and the heads of q too. Method: Dao et al., "Flash-Decoding", 2023.
    """
    num_rows, num_heads, head_dim = q_RND.shape
    num_kv_heads, batch = k_SKD.shape[1], rows.seats_B.shape[0]
    out_RE = q_RND.new_empty(num_rows, num_heads * head_dim)
    if not num_rows:
        return out_RE
    shape = chunk_shape(head_dim, k_SKD.element_size())
    num_tiles = triton.cdiv(rows.width * (num_heads // num_kv_heads), ROWS)
    table_pages = rows.tables_SP.shape[1]
    num_splits = min(NUM_SPLITS, triton.cdiv(table_pages * rows.page_tokens, shape.positions))
    num_lines = num_rows * num_heads
    partial = q_RND.new_empty(
        (num_lines * NUM_SPLITS * (head_dim + 2)) if num_splits > 1 else 1, dtype=torch.float32
    )
    _block_kernel[(batch * num_kv_heads, num_tiles, num_splits)](
        *(q_RND, k_SKD, v_SKD, out_RE, rows.tables_SP, rows.seats_B, rows.first_B),
        *(partial, arrivals(q_RND.device, batch * num_kv_heads * num_tiles)),
        *(rows.width, table_pages, rows.tables_SP.stride(0), num_lines, q_RND.stride(0)),
        *(k_SKD.stride(0), k_SKD.stride(1), v_SKD.stride(0), v_SKD.stride(1)),
        head_dim**-0.5 * _LOG2E,
        K=num_kv_heads,
        G=num_heads // num_kv_heads,
        D=head_dim,
        BLOCK_D=padded_dim(head_dim),
        PAGE=rows.page_tokens,
        ROWS=ROWS,
        CHUNK=shape.positions,
        NUM_SPLITS=NUM_SPLITS,
        COMBINED_SPLITS=shape.combined_splits,
        COMBINED_ROWS=shape.combined_rows,
        WIDEN=q_RND.device.type == "cpu",
        AHEAD=batch * num_kv_heads <= _FEW_HEADS,
        num_warps=shape.warps,
        num_stages=shape.stages,
        **early_launch(q_RND.device),
    )
    return out_RE


def padded_dim(head_dim: int) -> int:
    """The power of two that holds a head, at least what a matrix instruction takes."""
    return max(16, triton.next_power_of_2(head_dim))


class ChunkShape(msgspec.Struct, frozen=True):
    """positions of a chunk, warps of a program, stages of its loop, splits and folded rows combined at once."""

    positions: int
    warps: int
    stages: int
    combined_splits: int
    combined_rows: int


@functools.cache
def chunk_shape(head_dim: int, element_bytes: int) -> ChunkShape:
    """Measured on an H200; depends on the model alone, never on rows or lengths. Five stages keep the keys and values
    of two chunks under way, three of one, where two would not fit into shared memory."""
    padded = padded_dim(head_dim)
    positions, warps, splits = (32, 4, 16) if head_dim <= 64 else (64, 8, 8)
    stages = 5 if 4 * positions * padded * element_bytes <= 1 << 16 else 3
    rows = min(ROWS, max(1, _COMBINED_FLOATS * 32 * warps // (splits * padded)))
    return ChunkShape(positions, warps, stages, splits, rows)


@triton.jit(do_not_specialize=["width", "table_pages", "table_stride", "num_lines"])
def _block_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, seats_ptr, first_ptr, partial_ptr, arrivals_ptr,
    width, table_pages, table_stride, num_lines, q_stride, k_slot, k_head, v_slot, v_head, scale,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, NUM_SPLITS: tl.constexpr,
    COMBINED_SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr, EARLY: tl.constexpr, WIDEN: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    request, head = tl.program_id(0) // K, tl.program_id(0) % K
    tile, split = tl.program_id(1), tl.program_id(2)
    # Written before the forward's first kernel let others start (stream.py), or by it, where it never does so
    # (chain_rows.py).
    first = tl.load(first_ptr + request)
    table_ptr = tables_ptr + tl.load(seats_ptr + request).to(tl.int64) * table_stride
    last = tl.minimum(first + tl.minimum(width - 1, (tile * ROWS + ROWS - 1) // G), table_pages * PAGE - 1)
    k_ptr += head * k_head
    v_ptr += head * v_head
    position_T = split * CHUNK + tl.arange(0, CHUNK)
    slot_T = slots_of(table_ptr, position_T, last, PAGE)
    if AHEAD:  # keys and values of earlier positions too: no kernel under way writes them
        old_k_TD = read_slots(k_ptr, slot_T, position_T < first, k_slot, D, BLOCK_D)
        old_v_TD = read_slots(v_ptr, slot_T, position_T < first, v_slot, D, BLOCK_D)
    wait(EARLY)
    x_X = tile * ROWS + tl.arange(0, ROWS)
    d_D = tl.arange(0, BLOCK_D)
    mine_XD = (x_X < width * G)[:, None] & (d_D < D)[None, :]
    row_X = request * width + x_X // G
    head_X = head * G + x_X % G
    q_at_XD = q_ptr + row_X[:, None] * q_stride + (head_X * D)[:, None] + d_D[None, :]
    q_XD = tl.load(q_at_XD, mask=mine_XD, other=0.0)
    if WIDEN:  # Triton's interpreter takes bf16 operands for integers
        q_XD = q_XD.to(tl.float32)
    num_chunks = last // CHUNK + 1
    active = tl.minimum(num_chunks, NUM_SPLITS)
    if split >= active:
        return
    sight_X = tl.minimum(first + x_X // G, table_pages * PAGE - 1)
    m_X = tl.full([ROWS], float("-inf"), tl.float32)
    l_X = tl.zeros([ROWS], tl.float32)
    acc_XD = tl.zeros([ROWS, BLOCK_D], tl.float32)
    new_T = (position_T >= (first if AHEAD else 0)) & (position_T <= last)
    k_TD = read_slots(k_ptr, slot_T, new_T, k_slot, D, BLOCK_D)
    v_TD = read_slots(v_ptr, slot_T, new_T, v_slot, D, BLOCK_D)
    if AHEAD:
        k_TD = tl.where(new_T[:, None], k_TD, old_k_TD)
        v_TD = tl.where(new_T[:, None], v_TD, old_v_TD)
    m_X, l_X, acc_XD = attend(m_X, l_X, acc_XD, q_XD, k_TD, v_TD, split * CHUNK, sight_X, scale, CHUNK, True, WIDEN)
    for chunk in range(split + NUM_SPLITS, num_chunks, NUM_SPLITS):
        m_X, l_X, acc_XD = attend_chunk(
            m_X, l_X, acc_XD, q_XD, k_ptr, v_ptr, table_ptr, k_slot, v_slot, chunk * CHUNK, last, sight_X, scale,
            D, BLOCK_D, PAGE, CHUNK, True, WIDEN,
        )  # fmt: skip
    line_X = (row_X * (K * G) + head_X).to(tl.int64)
    _leave(
        acc_XD, m_X, l_X, partial_ptr, out_ptr, arrivals_ptr + (request * tl.num_programs(1) + tile) * K + head,
        line_X, split, active, request * width, head * G, tile * ROWS, width * G, num_lines,
        K * G, G, D, BLOCK_D, ROWS, NUM_SPLITS, COMBINED_SPLITS, COMBINED_ROWS,
    )  # fmt: skip


@triton.jit
def _leave(
    acc_XD, m_X, l_X, partial_ptr, out_ptr, counter_ptr, line_X, split, active, first_row, first_head, first_x, num_x,
    num_lines, N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    NUM_SPLITS: tl.constexpr, COMBINED_SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr,
):  # fmt: skip
    """Writes the result of a tile that has one split. Of several, each leaves its part, and the last one combines."""
    mine_X = first_x + tl.arange(0, ROWS) < num_x
    d_D = tl.arange(0, BLOCK_D)
    mine_XD = mine_X[:, None] & (d_D < D)[None, :]
    if active == 1:
        # Bit for bit what combining would give: its weight would be exp2(0) = 1 and the others would add zeros.
        out_XD = (acc_XD / l_X[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + line_X[:, None] * D + d_D[None, :], out_XD, mask=mine_XD)
    else:
        part_X = split.to(tl.int64) * num_lines + line_X
        sums_ptr = partial_ptr + NUM_SPLITS * num_lines.to(tl.int64) * D
        tl.store(partial_ptr + part_X[:, None] * D + d_D[None, :], acc_XD, mask=mine_XD)
        tl.store(sums_ptr + part_X * 2, m_X, mask=mine_X)
        tl.store(sums_ptr + part_X * 2 + 1, l_X, mask=mine_X)
        tl.debug_barrier()  # all of the program's stores before its one arrival
        if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == active - 1:
            tl.store(counter_ptr, 0)
            combine_splits(
                partial_ptr, sums_ptr, out_ptr, first_row, first_head, first_x, num_x, num_lines, active,
                N, G, D, BLOCK_D, ROWS, COMBINED_SPLITS, COMBINED_ROWS,
            )  # fmt: skip


@triton.jit
def slots_of(table_ptr, position_T, last, PAGE: tl.constexpr):
    """Cache slots of positions; the dummy page's behind `last`."""
    page_T = tl.load(table_ptr + position_T // PAGE, mask=position_T <= last, other=0)
    return page_T.to(tl.int64) * PAGE + position_T % PAGE


@triton.jit
def read_slots(ptr, slot_T, wanted_T, slot_stride, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Keys or values [T, D] of a head, zeros where they are not wanted."""
    d_D = tl.arange(0, BLOCK_D)
    mask = wanted_T[:, None] & (d_D < D)[None, :]
    return tl.load(ptr + slot_T[:, None] * slot_stride + d_D[None, :], mask=mask, other=0.0)


@triton.jit
def attend_chunk(
    m_X, l_X, acc_XD, q_XD, k_ptr, v_ptr, table_ptr, k_slot, v_slot, start, last, sight_X, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, CHUNK: tl.constexpr, MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """A chunk's part of an online softmax: (maximum, sum, weighted values) before -> after. `k_ptr` and `v_ptr` point
    at a head. Without MASKED every row must see all of the chunk."""
    position_T = start + tl.arange(0, CHUNK)
    end = last if MASKED else start + CHUNK
    slot_T = slots_of(table_ptr, position_T, end, PAGE)
    k_TD = read_slots(k_ptr, slot_T, position_T <= end, k_slot, D, BLOCK_D)
    v_TD = read_slots(v_ptr, slot_T, position_T <= end, v_slot, D, BLOCK_D)
    m_X, l_X, acc_XD = attend(m_X, l_X, acc_XD, q_XD, k_TD, v_TD, start, sight_X, scale, CHUNK, MASKED, WIDEN)
    return m_X, l_X, acc_XD


@triton.jit
def attend(
    m_X, l_X, acc_XD, q_XD, k_TD, v_TD, start, sight_X, scale, CHUNK: tl.constexpr, MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """`attend_chunk` with keys and values at hand."""
    position_T = start + tl.arange(0, CHUNK)
    if WIDEN:
        k_TD, v_TD = k_TD.to(tl.float32), v_TD.to(tl.float32)
    s_XT = tl.dot(q_XD, tl.trans(k_TD), input_precision="ieee") * scale
    if MASKED:
        s_XT = tl.where(position_T[None, :] <= sight_X[:, None], s_XT, float("-inf"))
    top_X = tl.maximum(m_X, tl.max(s_XT, 1))
    # Nothing seen yet: any finite number keeps -inf - -inf away.
    safe_X = tl.where(top_X == float("-inf"), 0.0, top_X)
    p_XT = tl.exp2(s_XT - safe_X[:, None])
    shrink_X = tl.exp2(m_X - safe_X)
    l_X = l_X * shrink_X + tl.sum(p_XT, 1)
    acc_XD = tl.dot(p_XT.to(v_TD.dtype), v_TD, acc_XD * shrink_X[:, None], input_precision="ieee")
    return top_X, l_X, acc_XD
