"""Attention of wide blocks of rows (a chunk of a prompt) over paged KV: one program walks all chunks of a tile of rows.

A program holds ROWS folded rows (row by row, the query heads of one kv head side by side). Chunks of CHUNK positions
lie at fixed absolute positions; which tile a row falls into depends on its place in the call alone. A chunk that a row
does not see adds exact zeros to it.

R rows, B requests, W rows of each, N query heads, K kv heads, G query heads a kv head, D head dimension, S slots of the
cache (in `tables_SP`: seats), P pages of a table, X folded rows of a tile, T positions of a chunk.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.gpu.paged_attention import attend_chunk, padded_dim
from alula.kernels.reference.paged import PagedRows

CHUNK = 64
_LOG2E = 1.4426950408889634


def prefill_attention(q_RND: Tensor, k_SKD: Tensor, v_SKD: Tensor, rows: PagedRows) -> Tensor:
    """Softmax(q k^T / sqrt(D)) v -> [R, N*D]. Row j of request b sees positions 0..first_B[b]+j, its own included.

    The last dimension of q, k and v is dense, and the heads of q too. Method: Dao, "FlashAttention-2", 2023.
    """
    num_rows, num_heads, head_dim = q_RND.shape
    num_kv_heads, batch = k_SKD.shape[1], rows.seats_B.shape[0]
    out_RE = q_RND.new_empty(num_rows, num_heads * head_dim)
    if not num_rows:
        return out_RE
    tile_rows, num_warps, num_stages = tile_shape(head_dim, k_SKD.element_size(), q_RND.device)
    num_tiles = triton.cdiv(rows.width * (num_heads // num_kv_heads), tile_rows)
    _prefill_kernel[(num_tiles, num_kv_heads, batch)](
        *(q_RND, k_SKD, v_SKD, out_RE, rows.tables_SP, rows.seats_B, rows.first_B),
        *(rows.width, rows.tables_SP.shape[1], rows.tables_SP.stride(0), q_RND.stride(0)),
        *(k_SKD.stride(0), k_SKD.stride(1), v_SKD.stride(0), v_SKD.stride(1)),
        head_dim**-0.5 * _LOG2E,
        K=num_kv_heads,
        G=num_heads // num_kv_heads,
        D=head_dim,
        BLOCK_D=padded_dim(head_dim),
        PAGE=rows.page_tokens,
        ROWS=tile_rows,
        CHUNK=CHUNK,
        WIDEN=q_RND.device.type == "cpu",
        num_warps=num_warps,
        num_stages=num_stages,
        **early_launch(q_RND.device),
    )
    return out_RE


@functools.cache
def tile_shape(head_dim: int, element_bytes: int, device: torch.device) -> tuple[int, int, int]:
    """(folded rows, warps, stages) of a program. Five stages keep the keys and values of two chunks under way."""
    if element_bytes > 2:
        return 16, 8, 3  # no matrix instructions for exact fp32: larger tiles spill
    if head_dim <= 64:
        return 64, 4, 5
    if head_dim > 128:
        return 64, 8, 3
    large = True
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        large = getattr(properties, "shared_memory_per_block_optin", 0) > 140_000
    return 128, 8, 5 if large else 3


@triton.jit(do_not_specialize=["width", "table_pages", "table_stride"])
def _prefill_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, seats_ptr, first_ptr,
    width, table_pages, table_stride, q_stride, k_slot, k_head, v_slot, v_head, scale,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head, request = tl.program_id(1), tl.program_id(2)
    first = tl.load(first_ptr + request)
    seat = tl.load(seats_ptr + request)
    x_X = tile * ROWS + tl.arange(0, ROWS)
    d_D = tl.arange(0, BLOCK_D)
    mine_XD = (x_X < width * G)[:, None] & (d_D < D)[None, :]
    row_X = (request * width + x_X // G).to(tl.int64)
    head_X = head * G + x_X % G
    q_XD = tl.load(
        q_ptr + row_X[:, None] * q_stride + (head_X * D)[:, None] + d_D[None, :], mask=mine_XD, other=0.0
    )
    if WIDEN:  # Triton's interpreter takes bf16 operands for integers
        q_XD = q_XD.to(tl.float32)
    last = tl.minimum(first + tl.minimum(width - 1, (tile * ROWS + ROWS - 1) // G), table_pages * PAGE - 1)
    # Before `all_seen`, every row of the tile sees all of a chunk.
    all_seen = tl.minimum(first + tile * ROWS // G + 1, last + 1) // CHUNK * CHUNK
    table_ptr = tables_ptr + seat.to(tl.int64) * table_stride
    sight_X = tl.minimum(first + x_X // G, table_pages * PAGE - 1)
    m_X = tl.full([ROWS], float("-inf"), tl.float32)
    l_X = tl.zeros([ROWS], tl.float32)
    acc_XD = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for start in range(0, all_seen, CHUNK):
        m_X, l_X, acc_XD = attend_chunk(
            m_X, l_X, acc_XD, q_XD, k_ptr + head * k_head, v_ptr + head * v_head, table_ptr, k_slot, v_slot,
            start, last, sight_X, scale, D, BLOCK_D, PAGE, CHUNK, False, WIDEN,
        )  # fmt: skip
    for start in range(all_seen, last + 1, CHUNK):
        m_X, l_X, acc_XD = attend_chunk(
            m_X, l_X, acc_XD, q_XD, k_ptr + head * k_head, v_ptr + head * v_head, table_ptr, k_slot, v_slot,
            start, last, sight_X, scale, D, BLOCK_D, PAGE, CHUNK, True, WIDEN,
        )  # fmt: skip
    out_XD = (acc_XD / l_X[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row_X * (K * G) + head_X)[:, None] * D + d_D[None, :], out_XD, mask=mine_XD)
