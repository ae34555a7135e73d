"""Matrix products with what surrounds them in a decoder layer, in plain torch: the definition of the fused kernels.

A norm is *deferred*: whoever adds to the residual stream also writes the stream times the next norm's weight, and parts
of each row's sum of squares; the product that follows multiplies its result by one over the root mean square, which is
the same number as normalising first. So a norm costs neither a pass nor a kernel of its own.

R rows, H hidden, I inputs, O outputs, M MLP width, C parts of a row, N query heads, K kv heads, D head dimension,
S cache slots, P positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from alula.kernels.reference.activation import silu_and_multiply
from alula.kernels.reference.norm import rms_norm
from alula.kernels.reference.rope import apply_rope


@dataclass(frozen=True)
class Deferred:
    """Input of a product. value_RI: what is multiplied. squares_RC: fp32 parts of each row's sum of squares of the
    stream, where the product's result is still to be divided by the root mean square; None where it is not.
    eps: the norm's."""

    value_RI: Tensor
    squares_RC: Tensor | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Stream:
    """x_RH: the residual stream. normed: the same behind its next norm, deferred."""

    x_RH: Tensor
    normed: Deferred


@dataclass(frozen=True)
class Norm:
    """An RMS norm's weight and eps."""

    weight_H: Tensor
    eps: float


def embed(ids_R: Tensor, table_VH: Tensor, norm: Norm) -> Stream:
    """The stream at its beginning: rows of the embedding."""
    return enter(table_VH.index_select(0, ids_R), norm)


def enter(x_RH: Tensor, norm: Norm) -> Stream:
    """A stream from a tensor."""
    values_RH = x_RH.float()
    scaled_RH = (values_RH * norm.weight_H.float()).to(x_RH.dtype)
    return Stream(x_RH, Deferred(scaled_RH, values_RH.square().sum(-1, keepdim=True), norm.eps))


def finish(stream: Stream) -> Tensor:
    """The normalised stream itself, [R, H], for who needs more than a product of it."""
    return finished(stream.normed)


def finished(x: Deferred) -> Tensor:
    """What a deferred norm stands for, [R, I]."""
    return x.value_RI if x.squares_RC is None else (x.value_RI * _inverse_rms(x)).to(x.value_RI.dtype)


def join_norms(ids_R: Tensor, table_VH: Tensor, norm: Norm, feature_RH: Tensor, feature_norm: Norm) -> Tensor:
    """(norm of the embedding, norm of the feature), side by side -> [R, 2H]."""
    embedded_RH = rms_norm(table_VH.index_select(0, ids_R), norm.weight_H, norm.eps)
    return torch.cat((embedded_RH, rms_norm(feature_RH, feature_norm.weight_H, feature_norm.eps)), dim=-1)


def linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """norm(x) W^T + b -> [R, O]."""
    return _product(x, weight_OI, bias_O).to(x.value_RI.dtype)


def gated_linear(x: Deferred, weight_2MI: Tensor, bias_2M: Tensor | None = None) -> Tensor:
    """silu(gate) * up of one fused product, gate first -> [R, M]."""
    return silu_and_multiply(_product(x, weight_2MI, bias_2M)).to(x.value_RI.dtype)


def adding_linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None, onto_RO: Tensor, norm: Norm) -> Stream:
    """onto + x W^T + b as a stream, ready for `norm`."""
    total_RO = _product(x, weight_OI, bias_O) + onto_RO.float()
    return enter(total_RO.to(onto_RO.dtype), norm)


@dataclass(frozen=True)
class Rope:
    """Tables [P, D] as of reference/rope.py, and the position of each row."""

    cos_PD: Tensor
    sin_PD: Tensor
    positions_R: Tensor


def qkv_linear(
    x: Deferred,
    weight_AI: Tensor,
    bias_A: Tensor | None,
    rope: Rope,
    k_SKD: Tensor,
    v_SKD: Tensor,
    slots_R: Tensor,
) -> Tensor:
    """The query, key and value product; keys rotated and written to the rows' slots with the values -> rotated
    queries [R, N, D]. Weight rows: query heads, key heads, value heads."""
    qkv_RAD = linear(x, weight_AI, bias_A).unflatten(-1, (-1, k_SKD.shape[2]))
    return rotate_and_write(qkv_RAD, rope, k_SKD, v_SKD, slots_R)


def rotate_and_write(qkv_RAD: Tensor, rope: Rope, k_SKD: Tensor, v_SKD: Tensor, slots_R: Tensor) -> Tensor:
    """Rotates queries and keys, writes keys and values to the rows' slots -> rotated queries [R, N, D]."""
    num_kv_heads = k_SKD.shape[1]
    cos_RD, sin_RD = rope.cos_PD.index_select(0, rope.positions_R), rope.sin_PD.index_select(0, rope.positions_R)
    rotated_RAD = apply_rope(qkv_RAD[:, :-num_kv_heads], cos_RD, sin_RD)
    k_SKD.index_copy_(0, slots_R, rotated_RAD[:, -num_kv_heads:])
    v_SKD.index_copy_(0, slots_R, qkv_RAD[:, -num_kv_heads:])
    return rotated_RAD[:, :-num_kv_heads]


def _product(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    y_RO = torch.nn.functional.linear(x.value_RI, weight_OI).float()
    if x.squares_RC is not None:
        y_RO = y_RO * _inverse_rms(x)
    return y_RO if bias_O is None else y_RO + bias_O.float()


def _inverse_rms(x: Deferred) -> Tensor:
    assert x.squares_RC is not None
    mean_R1 = x.squares_RC.sum(-1, keepdim=True) / x.value_RI.shape[-1]
    return torch.rsqrt(mean_R1 + x.eps)
