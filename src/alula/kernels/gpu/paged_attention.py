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

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.launch import arrivals, launches_early
from alula.kernels.gpu.products import begin, wait
from alula.kernels.reference.paged import PagedRows

CHUNK = 64
NUM_SPLITS = 16
ROWS = 16  # of every tile, whatever W*G is: another height is another matrix instruction, with other bits
NUM_WARPS = 8
COMBINED_SPLITS = 8
_COMBINED_FLOATS = 64  # of a thread, so that all reads of a step are under way together
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
    num_tiles = triton.cdiv(rows.width * (num_heads // num_kv_heads), ROWS)
    table_pages = rows.tables_SP.shape[1]
    num_splits = min(NUM_SPLITS, triton.cdiv(table_pages * rows.page_tokens, CHUNK))
    num_lines = num_rows * num_heads
    partial = q_RND.new_empty(
        (num_lines * NUM_SPLITS * (head_dim + 2)) if num_splits > 1 else 1, dtype=torch.float32
    )
    pdl = launches_early(q_RND.device)
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
        CHUNK=CHUNK,
        NUM_SPLITS=NUM_SPLITS,
        COMBINED_SPLITS=COMBINED_SPLITS,
        COMBINED_ROWS=combined_rows(head_dim),
        PDL=pdl,
        WIDEN=q_RND.device.type == "cpu",
        num_warps=NUM_WARPS,
        num_stages=num_stages(head_dim, k_SKD.element_size()),
        **({"launch_pdl": True} if pdl else {}),
    )
    return out_RE


def padded_dim(head_dim: int) -> int:
    """The power of two that holds a head, at least what a matrix instruction takes."""
    return max(16, triton.next_power_of_2(head_dim))


def combined_rows(head_dim: int) -> int:
    """Folded rows that the last program combines at once."""
    return min(ROWS, max(1, _COMBINED_FLOATS * 32 * NUM_WARPS // (COMBINED_SPLITS * padded_dim(head_dim))))


def num_stages(head_dim: int, element_bytes: int) -> int:
    """5: keys and values of two chunks are under way; 3, where two would not fit into shared memory: of one."""
    return 5 if 4 * CHUNK * padded_dim(head_dim) * element_bytes <= 1 << 16 else 3


@triton.jit(do_not_specialize=["width", "table_pages", "table_stride", "num_lines"])
def _block_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, seats_ptr, first_ptr, partial_ptr, arrivals_ptr,
    width, table_pages, table_stride, num_lines, q_stride, k_slot, k_head, v_slot, v_head, scale,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, NUM_SPLITS: tl.constexpr,
    COMBINED_SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr, PDL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    request, head = tl.program_id(0) // K, tl.program_id(0) % K
    tile, split = tl.program_id(1), tl.program_id(2)
    # Written before the forward's first kernel began to let others start early (stream.py).
    first = tl.load(first_ptr + request)
    seat = tl.load(seats_ptr + request)
    table_ptr = tables_ptr + seat.to(tl.int64) * table_stride
    k_ptr += head * k_head
    v_ptr += head * v_head
    # Keys and values of earlier positions too: no kernel under way writes them.
    k_TD, v_TD = load_chunk(
        k_ptr, v_ptr, table_ptr, k_slot, v_slot, split * CHUNK, 0, first - 1, D, BLOCK_D, PAGE, CHUNK
    )  # fmt: skip
    wait(PDL)
    x_X = tile * ROWS + tl.arange(0, ROWS)
    d_D = tl.arange(0, BLOCK_D)
    mine_XD = (x_X < width * G)[:, None] & (d_D < D)[None, :]
    row_X = request * width + x_X // G
    head_X = head * G + x_X % G
    q_XD = tl.load(
        q_ptr + row_X[:, None] * q_stride + (head_X * D)[:, None] + d_D[None, :], mask=mine_XD, other=0.0
    )
    if WIDEN:  # Triton's interpreter takes bf16 operands for integers
        q_XD = q_XD.to(tl.float32)
    last = tl.minimum(first + tl.minimum(width - 1, (tile * ROWS + ROWS - 1) // G), table_pages * PAGE - 1)
    num_chunks = last // CHUNK + 1
    active = tl.minimum(num_chunks, NUM_SPLITS)
    if split >= active:
        return
    sight_X = tl.minimum(first + x_X // G, table_pages * PAGE - 1)
    m_X = tl.full([ROWS], float("-inf"), tl.float32)
    l_X = tl.zeros([ROWS], tl.float32)
    acc_XD = tl.zeros([ROWS, BLOCK_D], tl.float32)
    new_k_TD, new_v_TD = load_chunk(
        k_ptr, v_ptr, table_ptr, k_slot, v_slot, split * CHUNK, first, last, D, BLOCK_D, PAGE, CHUNK
    )  # fmt: skip
    is_new_T1 = (split * CHUNK + tl.arange(0, CHUNK) >= first)[:, None]
    m_X, l_X, acc_XD = attend(
        m_X, l_X, acc_XD, q_XD, tl.where(is_new_T1, new_k_TD, k_TD), tl.where(is_new_T1, new_v_TD, v_TD),
        split * CHUNK, sight_X, scale, CHUNK, True, WIDEN,
    )  # fmt: skip
    for chunk in range(split + NUM_SPLITS, num_chunks, NUM_SPLITS):
        m_X, l_X, acc_XD = attend_chunk(
            m_X, l_X, acc_XD, q_XD, k_ptr, v_ptr, table_ptr, k_slot, v_slot, chunk * CHUNK, last, sight_X, scale,
            D, BLOCK_D, PAGE, CHUNK, True, WIDEN,
        )  # fmt: skip
    line_X = (row_X * (K * G) + head_X).to(tl.int64)
    if active == 1:
        # Bit for bit what combining would give: its weight would be exp2(0) = 1 and the others would add zeros.
        out_XD = (acc_XD / l_X[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + line_X[:, None] * D + d_D[None, :], out_XD, mask=mine_XD)
    else:
        part_X = split.to(tl.int64) * num_lines + line_X
        sums_ptr = partial_ptr + NUM_SPLITS * num_lines.to(tl.int64) * D
        tl.store(partial_ptr + part_X[:, None] * D + d_D[None, :], acc_XD, mask=mine_XD)
        tl.store(sums_ptr + part_X * 2, m_X, mask=x_X < width * G)
        tl.store(sums_ptr + part_X * 2 + 1, l_X, mask=x_X < width * G)
        tl.debug_barrier()  # all of the program's stores before its one arrival
        counter_ptr = arrivals_ptr + (request * tl.num_programs(1) + tile) * K + head
        if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == active - 1:
            tl.store(counter_ptr, 0)
            _combine(
                partial_ptr, sums_ptr, out_ptr, request * width, head * G, tile * ROWS, width * G, num_lines, active,
                K * G, G, D, BLOCK_D, ROWS, COMBINED_SPLITS, COMBINED_ROWS,
            )  # fmt: skip


@triton.jit
def load_chunk(
    k_ptr, v_ptr, table_ptr, k_slot, v_slot, start, begin_at, last, D: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Keys and values [T, D] of a chunk at its positions from `begin_at` to `last`, zeros elsewhere. `k_ptr` and
    `v_ptr` point at a head."""
    d_D = tl.arange(0, BLOCK_D)
    position_T = start + tl.arange(0, CHUNK)
    wanted_T = (position_T >= begin_at) & (position_T <= last)
    page_T = tl.load(table_ptr + position_T // PAGE, mask=wanted_T, other=0)
    slot_T = page_T.to(tl.int64) * PAGE + position_T % PAGE
    read_TD = wanted_T[:, None] & (d_D < D)[None, :]
    k_TD = tl.load(k_ptr + slot_T[:, None] * k_slot + d_D[None, :], mask=read_TD, other=0.0)
    v_TD = tl.load(v_ptr + slot_T[:, None] * v_slot + d_D[None, :], mask=read_TD, other=0.0)
    return k_TD, v_TD


@triton.jit
def attend_chunk(
    m_X, l_X, acc_XD, q_XD, k_ptr, v_ptr, table_ptr, k_slot, v_slot, start, last, sight_X, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, CHUNK: tl.constexpr, MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """A chunk's part of an online softmax: (maximum, sum, weighted values) before -> after. `k_ptr` and `v_ptr` point
    at a head. Without MASKED every row must see all of the chunk."""
    if MASKED:
        k_TD, v_TD = load_chunk(
            k_ptr, v_ptr, table_ptr, k_slot, v_slot, start, start, last, D, BLOCK_D, PAGE, CHUNK
        )  # fmt: skip
    else:
        k_TD, v_TD = load_chunk(
            k_ptr, v_ptr, table_ptr, k_slot, v_slot, start, start, start + CHUNK, D, BLOCK_D, PAGE, CHUNK
        )  # fmt: skip
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


@triton.jit
def _combine(
    partial_ptr, sums_ptr, out_ptr, first_row, first_head, first_x, num_x, num_lines, active,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    COMBINED_SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr,
):  # fmt: skip
    """Writes a tile's result from what its splits left, a few folded rows at a time."""
    d_D = tl.arange(0, BLOCK_D)
    for start in range(first_x, tl.minimum(first_x + ROWS, num_x), COMBINED_ROWS):
        x_X = start + tl.arange(0, COMBINED_ROWS)
        line_X = ((first_row + x_X // G) * N + first_head + x_X % G).to(tl.int64)
        mine_X = x_X < num_x
        out_XD = _sum_of_splits(
            partial_ptr, sums_ptr, line_X, mine_X, num_lines, active, D, BLOCK_D, COMBINED_SPLITS, COMBINED_ROWS
        )
        mine_XD = mine_X[:, None] & (d_D < D)[None, :]
        tl.store(out_ptr + line_X[:, None] * D + d_D[None, :], out_XD.to(out_ptr.dtype.element_ty), mask=mine_XD)


@triton.jit
def _sum_of_splits(
    partial_ptr, sums_ptr, line_X, mine_X, num_lines, active,
    D: tl.constexpr, BLOCK_D: tl.constexpr, COMBINED_SPLITS: tl.constexpr, COMBINED_ROWS: tl.constexpr,
):  # fmt: skip
    """[X, D]: the sum over splits, in an order that does not depend on how many are active."""
    d_D = tl.arange(0, BLOCK_D)
    top_X = tl.full([COMBINED_ROWS], float("-inf"), tl.float32)
    sum_X = tl.zeros([COMBINED_ROWS], tl.float32)
    out_XD = tl.zeros([COMBINED_ROWS, BLOCK_D], tl.float32)
    for first_split in range(0, active, COMBINED_SPLITS):
        split_J = first_split + tl.arange(0, COMBINED_SPLITS)
        part_XJ = split_J.to(tl.int64)[None, :] * num_lines + line_X[:, None]
        there_XJ = mine_X[:, None] & (split_J < active)[None, :]
        there_XJD = there_XJ[:, :, None] & (d_D < D)[None, None, :]
        # .cg: past L1, which does not see what other processors wrote.
        acc_ptr_XJD = partial_ptr + part_XJ[:, :, None] * D + d_D[None, None, :]
        acc_XJD = tl.load(acc_ptr_XJD, mask=there_XJD, other=0.0, cache_modifier=".cg")
        m_XJ = tl.load(sums_ptr + part_XJ * 2, mask=there_XJ, other=float("-inf"), cache_modifier=".cg")
        l_XJ = tl.load(sums_ptr + part_XJ * 2 + 1, mask=there_XJ, other=0.0, cache_modifier=".cg")
        # Every row sees split 0, so the first maximum is finite already.
        new_X = tl.maximum(top_X, tl.max(m_XJ, 1))
        weight_XJ = tl.exp2(m_XJ - new_X[:, None])
        shrink_X = tl.exp2(top_X - new_X)
        sum_X = sum_X * shrink_X + tl.sum(weight_XJ * l_XJ, 1)
        out_XD = out_XD * shrink_X[:, None] + tl.sum(weight_XJ[:, :, None] * acc_XJD, 1)
        top_X = new_X
    return out_XD / sum_X[:, None]
