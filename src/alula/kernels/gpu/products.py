"""The two ways to multiply a few rows with a large constant matrix, and what may follow inside the same kernel.

`streamed_product`: tiles of 16 to 64 weight rows by BLOCK_K columns flow through a ring in shared memory into the
tensor cores, weights as the left operand, rows as the (narrow) right one; the first AHEAD_K columns are in registers
before the program waits for the kernel before it. `resident_product`: for short rows of weights
(small models), a program's whole share is loaded into registers before it waits for the kernel before it.

Row independence (DESIGN 4.5): a row's sums run over the inputs in one order, by one kind of instruction, whatever
BLOCK_R, BLOCK_K, the number of rows and the ring's depth are; SPLITS (of the inputs, over programs) and LANES (within
one) are chosen from the matrix's shape alone.

Early start (early_start.py): a product fetches constant weights, then waits until everything before it is done; it
touches nothing that changes before that. A streamed one lets the next kernel start at once, a resident one only after
its own wait.

R rows, O outputs, K inputs, C parts of a row's sum of squares.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.kernels.gpu import modes

QKV: tl.constexpr = tl.constexpr(modes.QKV)


@triton.jit
def fetch_ahead(rows_O1, LINES: tl.constexpr):
    """Asks the second-level cache for the first LINES lines of 128 bytes of each row of 2-byte weights."""
    fetch_lines(rows_O1 + (tl.arange(0, LINES) * 64)[None, :])


@triton.jit
def fetch_lines(pointers):
    """Asks the second-level cache for the lines of 128 bytes that the pointers lie in."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def columns_of(tile, O, HEAD_DIM: tl.constexpr, MODE: tl.constexpr, BLOCK_O: tl.constexpr):
    """The outputs of a tile and which of them exist. In QKV mode a tile lies in one head and holds pairs that rotate
    together: first the half of lower dimensions, then their partners."""
    lane = tl.arange(0, BLOCK_O)
    if MODE == QKV:
        HALF: tl.constexpr = HEAD_DIM // 2
        PAIRS: tl.constexpr = BLOCK_O // 2
        TILES: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
        pair = (tile % TILES) * PAIRS + lane % PAIRS
        columns = (tile // TILES) * HEAD_DIM + pair + (lane // PAIRS) * HALF
        return columns, pair < HALF
    columns = tile * BLOCK_O + lane
    return columns, columns < O


@triton.jit
def inverse_rms(squares_ptr, rows, row_ok, C, K, eps, C_PADDED: tl.constexpr):
    part = tl.arange(0, C_PADDED)
    squares = tl.load(
        squares_ptr + rows[:, None] * C + part[None, :], mask=row_ok[:, None] & (part < C)[None, :], other=0.0
    )
    return tl.rsqrt(tl.sum(squares, axis=1) / K + eps)


@triton.jit
def weights_at(weight_O1, k, K, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    """Columns k..k+BLOCK_K-1 of a tile's weights, [O, BLOCK_K]."""
    lane = k + tl.arange(0, BLOCK_K)
    if EVEN_K:
        return tl.load(weight_O1 + lane[None, :])
    return tl.load(weight_O1 + lane[None, :], mask=(lane < K)[None, :], other=0.0)


@triton.jit
def inputs_at(x_R1, row_ok, k, K, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    """Columns k..k+BLOCK_K-1 of the rows, [R, BLOCK_K]."""
    lane = k + tl.arange(0, BLOCK_K)
    if EVEN_K:
        return tl.load(x_R1 + lane[None, :], mask=row_ok[:, None], other=0.0)
    return tl.load(x_R1 + lane[None, :], mask=row_ok[:, None] & (lane < K)[None, :], other=0.0)


@triton.jit
def streamed_product(
    sums, second, x_R1, row_ok, weight_O1, second_offset, first_k, K, TWO: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Adds to [O, R] sums over inputs first_k..K-1 of x times the weight rows, and with TWO of x times those
    `second_offset` elements further on."""
    for k in tl.range(first_k, K, BLOCK_K, num_stages=STAGES):
        w = weights_at(weight_O1, k, K, BLOCK_K, EVEN_K)
        x = inputs_at(x_R1, row_ok, k, K, BLOCK_K, EVEN_K)
        if TWO:
            w2 = weights_at(weight_O1 + second_offset, k, K, BLOCK_K, EVEN_K)
        sums = tl.dot(w, tl.trans(x), sums, input_precision="ieee")
        if TWO:
            second = tl.dot(w2, tl.trans(x), second, input_precision="ieee")
    return sums, second


@triton.jit
def add_splits(
    sums, work_ptr, arrivals_ptr, tile, split, SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr
):
    """The sum over a tile's splits, in order, for the last program to arrive -> (sums, whether this is the last)."""
    cell = tl.arange(0, BLOCK_R)[:, None] * BLOCK_O + tl.arange(0, BLOCK_O)[None, :]
    base = work_ptr + tile * SPLITS * BLOCK_R * BLOCK_O + cell
    tl.store(base + split * BLOCK_R * BLOCK_O, sums)
    tl.debug_barrier()
    last = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.debug_barrier()
        sums = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
        for i in tl.static_range(SPLITS):
            sums += tl.load(base + i * BLOCK_R * BLOCK_O)
        tl.store(arrivals_ptr + tile, 0)
    return sums, last


@triton.jit
def resident_weights(weight_ptr, columns, column_ok, first_k, K, LANES: tl.constexpr, LANE_K: tl.constexpr):
    """A tile's weights, [LANES, O, LANE_K]: inputs from `first_k` on, cut into LANES stretches."""
    k = first_k + (tl.arange(0, LANES) * LANE_K)[:, None] + tl.arange(0, LANE_K)[None, :]
    mask = (k < K)[:, None, :] & column_ok[None, :, None]
    return tl.load(weight_ptr + columns.to(tl.int64)[None, :, None] * K + k[:, None, :], mask=mask, other=0.0)


@triton.jit
def resident_inputs(x_ptr, rows, row_ok, x_stride, first_k, K, LANES: tl.constexpr, LANE_K: tl.constexpr):
    """The rows' inputs as `resident_weights` are cut, ready for a product: [LANES, LANE_K, R]."""
    k = first_k + (tl.arange(0, LANES) * LANE_K)[:, None] + tl.arange(0, LANE_K)[None, :]
    mask = (k < K)[:, None, :] & row_ok[None, :, None]
    x = tl.load(x_ptr + rows.to(tl.int64)[None, :, None] * x_stride + k[:, None, :], mask=mask, other=0.0)
    return tl.permute(x, (0, 2, 1))


@triton.jit
def resident_product(weights, rest, x, x_rest, REST_K: tl.constexpr):
    """[R, O]: each warp sums some stretches, then the stretches are added in one order."""
    sums = tl.dot(weights, x, input_precision="ieee")
    if REST_K > 0:
        sums = tl.dot(rest, x_rest, sums, input_precision="ieee")
    return tl.trans(tl.sum(sums, axis=0))
