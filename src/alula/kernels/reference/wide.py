"""The products of fused.py for many rows (a chunk of a prompt): the norm is finished first, a library multiplies.

R rows, H hidden, I inputs, O outputs, M MLP width, N query heads, K kv heads, D head dimension, S cache slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.kernels.reference.activation import silu_and_multiply
from alula.kernels.reference.fused import Deferred, Norm, Rope, Stream, enter, finished, rotate_and_write


def linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """norm(x) W^T + b -> [R, O]."""
    return torch.nn.functional.linear(finished(x), weight_OI, bias_O)


def gated_linear(x: Deferred, weight_2MI: Tensor, bias_2M: Tensor | None = None) -> Tensor:
    """silu(gate) * up of one fused product, gate first -> [R, M]."""
    return silu_and_multiply(linear(x, weight_2MI, bias_2M))


def adding_linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None, onto_RO: Tensor, norm: Norm) -> Stream:
    """onto + x W^T + b as a stream, ready for `norm`."""
    return enter(linear(x, weight_OI, bias_O).add_(onto_RO), norm)


def qkv_linear(
    x: Deferred,
    weight_AI: Tensor,
    bias_A: Tensor | None,
    rope: Rope,
    k_SKD: Tensor,
    v_SKD: Tensor,
    slots_R: Tensor,
) -> Tensor:
    """As fused.qkv_linear -> rotated queries [R, N, D]."""
    qkv_RAD = linear(x, weight_AI, bias_A).unflatten(-1, (-1, k_SKD.shape[2]))
    return rotate_and_write(qkv_RAD, rope, k_SKD, v_SKD, slots_R)
