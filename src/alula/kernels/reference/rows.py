"""The row-wise operations of a decoder layer as one set, so that a faster twin can replace all of them together.

R rows, H hidden, M MLP width, N query heads, K kv heads, D head dimension, S cache slots, A = N + 2K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.kernels.reference.activation import silu_and_multiply
from alula.kernels.reference.norm import rms_norm
from alula.kernels.reference.rope import apply_rope


class Rows:
    """Plain torch, any device and dtype. Inputs are not changed, except the cache."""

    name = "torch"

    def rms_norm(self, x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight."""
        return rms_norm(x_RH, weight_H, eps)

    def add_rms_norm(self, x_RH: Tensor, delta_RH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm)."""
        sum_RH = x_RH + delta_RH
        return sum_RH, rms_norm(sum_RH, weight_H, eps)

    def silu_and_multiply(self, gate_up_R2M: Tensor) -> Tensor:
        """silu(gate) * up -> [R, M]."""
        return silu_and_multiply(gate_up_R2M)

    def rotate_and_write(
        self,
        qkv_RAD: Tensor,
        rotary: tuple[Tensor, Tensor],
        k_SKD: Tensor,
        v_SKD: Tensor,
        slots: slice | Tensor,
        folded_rows: int = 0,
    ) -> Tensor:
        """Rotates queries and keys; keys and values go to the rows' slots -> rotated queries [R, N, D].

        folded_rows: X > 0 gives them as attention over one request wants them, [1, K, X, D]: the query heads of a kv
        head side by side, row by row, and zeros behind the last row.
        """
        num_kv_heads = k_SKD.shape[1]
        num_rotated = qkv_RAD.shape[1] - num_kv_heads
        rotated_RAD = apply_rope(qkv_RAD[:, :num_rotated], *rotary)
        num_heads = num_rotated - num_kv_heads
        if isinstance(slots, slice):
            k_SKD[slots] = rotated_RAD[:, num_heads:]
            v_SKD[slots] = qkv_RAD[:, num_rotated:]
        else:
            k_SKD.index_copy_(0, slots, rotated_RAD[:, num_heads:])
            v_SKD.index_copy_(0, slots, qkv_RAD[:, num_rotated:])
        if folded_rows:
            return _fold(rotated_RAD[:, :num_heads], num_kv_heads, folded_rows)
        return rotated_RAD[:, :num_heads]

    def unfold(self, folded_1KXD: Tensor, num_rows: int, num_heads: int) -> Tensor:
        """[1, K, X, D] -> [R, N*D]: the way back from `folded_rows`; rows of zeros are dropped."""
        group = num_heads // folded_1KXD.shape[1]
        kept_KRGD = folded_1KXD[0, :, : num_rows * group].unflatten(1, (num_rows, group))
        return kept_KRGD.transpose(0, 1).reshape(num_rows, -1)


def _fold(q_RND: Tensor, num_kv_heads: int, folded_rows: int) -> Tensor:
    q_KXD = q_RND.unflatten(1, (num_kv_heads, -1)).transpose(0, 1).flatten(1, 2)
    return torch.nn.functional.pad(q_KXD, (0, 0, 0, folded_rows - q_KXD.shape[1]))[None]


def rows_equal_enough(found: Tensor, expected: Tensor) -> bool:
    """Whether a twin's result is the reference's, up to the rounding of its element type."""
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(expected.dtype, 1e-5)
    return torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance)
