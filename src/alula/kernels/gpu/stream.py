"""Row operations that no product can take along: the embedding, a stream from a tensor, a finished norm, the draft's
two norms side by side. Twins of kernels/reference/fused.py. One program a row.

A forward begins with one of `embed`, `enter`, `join_norms` and `chain_rows.embed_rows`. The three here let others start
only after their own wait: so whatever was written before them (positions, tables, keys of earlier positions) may be
read by all kernels of the forward at once. What they write themselves may not.

R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.reference.fused import Deferred, Norm, Stream


def embed(ids_R: Tensor, table_VH: Tensor, norm: Norm) -> Stream:
    """The stream at its beginning: rows of the embedding."""
    x_RH = table_VH.new_empty(ids_R.shape[0], table_VH.shape[1])
    return _entered(table_VH, ids_R, x_RH, norm)


def enter(x_RH: Tensor, norm: Norm) -> Stream:
    """A stream from a tensor."""
    return _entered(x_RH, None, x_RH, norm)


def finish(stream: Stream) -> Tensor:
    """The normalised stream itself, [R, H], for who needs more than a product of it."""
    normed = stream.normed
    assert normed.squares_RC is not None
    num_rows, size = normed.value_RI.shape
    out_RH = torch.empty_like(normed.value_RI)
    parts = normed.squares_RC.shape[1]
    _finish_kernel[(num_rows,)](
        *(normed.value_RI, normed.squares_RC, out_RH, size, parts, normed.eps),
        C_PADDED=triton.next_power_of_2(parts),
        BLOCK_H=triton.next_power_of_2(size),
        **early_launch(out_RH.device),
    )
    return out_RH


def join_norms(ids_R: Tensor, table_VH: Tensor, norm: Norm, feature_RH: Tensor, feature_norm: Norm) -> Tensor:
    """(norm of the embedding, norm of the feature), side by side -> [R, 2H]."""
    num_rows, size = feature_RH.shape
    out_RX = feature_RH.new_empty(num_rows, 2 * size)
    _join_kernel[(num_rows, 2)](
        *(ids_R, table_VH, norm.weight_H, feature_RH, feature_norm.weight_H, out_RX),
        *(size, norm.eps, feature_norm.eps, feature_RH.stride(0)),
        BLOCK_H=triton.next_power_of_2(size),
        **early_launch(out_RX.device),
    )
    return out_RX


def _entered(source: Tensor, ids_R: Tensor | None, x_RH: Tensor, norm: Norm) -> Stream:
    num_rows, size = x_RH.shape
    scaled_RH = x_RH.new_empty(num_rows, size)
    squares_R1 = torch.empty(num_rows, 1, dtype=torch.float32, device=x_RH.device)
    _enter_kernel[(num_rows,)](
        *(source, source if ids_R is None else ids_R, norm.weight_H, x_RH, scaled_RH, squares_R1, size),
        source.stride(0),
        GATHER=ids_R is not None,
        BLOCK_H=triton.next_power_of_2(size),
        **early_launch(x_RH.device),
    )
    return Stream(x_RH, Deferred(scaled_RH, squares_R1, norm.eps))


@triton.jit
def _enter_kernel(
    source_ptr, ids_ptr, norm_ptr, x_ptr, scaled_ptr, squares_ptr, H, source_stride, GATHER: tl.constexpr,
    BLOCK_H: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    h = tl.arange(0, BLOCK_H)
    ok = h < H
    norm = tl.load(norm_ptr + h, mask=ok, other=0.0).to(tl.float32)
    wait(EARLY)
    begin(EARLY)
    line = row.to(tl.int64)
    if GATHER:
        line = tl.load(ids_ptr + row)
    x = tl.load(source_ptr + line * source_stride + h, mask=ok, other=0.0)
    at = row.to(tl.int64) * H + h
    if GATHER:
        tl.store(x_ptr + at, x, mask=ok)
    values = x.to(tl.float32)
    tl.store(scaled_ptr + at, (values * norm).to(x.dtype), mask=ok)
    tl.store(squares_ptr + row, tl.sum(values * values, axis=0))


@triton.jit(do_not_specialize=["C"])
def _finish_kernel(
    scaled_ptr, squares_ptr, out_ptr, H, C, eps, C_PADDED: tl.constexpr, BLOCK_H: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    row = tl.program_id(0)
    part = tl.arange(0, C_PADDED)
    h = tl.arange(0, BLOCK_H)
    at = row.to(tl.int64) * H + h
    squares = tl.load(squares_ptr + row * C + part, mask=part < C, other=0.0)
    x = tl.load(scaled_ptr + at, mask=h < H, other=0.0)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / H + eps)
    tl.store(out_ptr + at, (x.to(tl.float32) * scale).to(x.dtype), mask=h < H)


@triton.jit
def _join_kernel(
    ids_ptr, table_ptr, norm_ptr, feature_ptr, feature_norm_ptr, out_ptr, H, eps, feature_eps, feature_stride,
    BLOCK_H: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    is_feature = tl.program_id(1) == 1
    h = tl.arange(0, BLOCK_H)
    ok = h < H
    norm = tl.load(tl.where(is_feature, feature_norm_ptr, norm_ptr) + h, mask=ok, other=0.0).to(tl.float32)
    wait(EARLY)
    begin(EARLY)
    if is_feature:
        x = tl.load(feature_ptr + row.to(tl.int64) * feature_stride + h, mask=ok, other=0.0)
    else:
        x = tl.load(table_ptr + tl.load(ids_ptr + row) * H + h, mask=ok, other=0.0)
    values = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / H + tl.where(is_feature, feature_eps, eps))
    at = (row.to(tl.int64) * 2 + tl.program_id(1)) * H + h
    tl.store(out_ptr + at, (values * scale * norm).to(x.dtype), mask=ok)
