"""The sum over the splits of an attention, by the last program to arrive.

X folded rows, J splits, D head dimension, L lines (rows times heads).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_splits(
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
