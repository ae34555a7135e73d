"""The row-wise operations as native code: twins of kernels/reference/rows.py, for dense fp32 and bf16 tensors.

Between two matrix products the weights have swept the caches, and every small torch call then costs several
microseconds of cold code: doing in one call what torch does in a dozen takes a third off a decode step.

R rows, H hidden, M MLP width, N query heads, K kv heads, D head dimension, S cache slots, A = N + 2K.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from alula.kernels.cpu.native import BuildRefused, load_library
from alula.kernels.reference.rows import Rows as ReferenceRows
from alula.kernels.reference.rows import rows_equal_enough

_DEFINES = {torch.bfloat16: "BF16", torch.float32: "FP32"}
_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_SIGNATURES = {
    "rms_norm": [_POINTER] * 3 + [_COUNT] * 2 + [_FLOAT],
    "add_rms_norm": [_POINTER] * 5 + [_COUNT] * 2 + [_FLOAT],
    "silu_and_multiply": [_POINTER] * 2 + [_COUNT] * 2,
    "rotate_and_write": [_POINTER] * 7 + [_COUNT] * 6,
    "unfold": [_POINTER] * 2 + [_COUNT] * 6,
}


class Rows:
    """Native code for one element type. Raises BuildRefused where it cannot be built, or is wrong, here."""

    name = "native"

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in _DEFINES:
            raise BuildRefused(f"no native row operations for {dtype}")
        library = load_library(_DEFINES[dtype])
        functions = {name: getattr(library, name) for name in _SIGNATURES}
        for name, function in functions.items():
            function.argtypes, function.restype = _SIGNATURES[name], None
        self._rms_norm = functions["rms_norm"]
        self._add_rms_norm = functions["add_rms_norm"]
        self._silu_and_multiply = functions["silu_and_multiply"]
        self._rotate_and_write = functions["rotate_and_write"]
        self._unfold = functions["unfold"]
        _prove(self, dtype)

    def rms_norm(self, x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        x_RH = x_RH.contiguous()
        out_RH = torch.empty_like(x_RH)
        rows, size = x_RH.shape
        self._rms_norm(x_RH.data_ptr(), weight_H.data_ptr(), out_RH.data_ptr(), rows, size, eps)
        return out_RH

    def add_rms_norm(self, x_RH: Tensor, delta_RH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x_RH, delta_RH = x_RH.contiguous(), delta_RH.contiguous()
        sum_RH, out_RH = torch.empty_like(x_RH), torch.empty_like(x_RH)
        rows, size = x_RH.shape
        self._add_rms_norm(
            x_RH.data_ptr(),
            delta_RH.data_ptr(),
            weight_H.data_ptr(),
            sum_RH.data_ptr(),
            out_RH.data_ptr(),
            rows,
            size,
            eps,
        )
        return sum_RH, out_RH

    def silu_and_multiply(self, gate_up_R2M: Tensor) -> Tensor:
        gate_up_R2M = gate_up_R2M.contiguous()
        rows, size = gate_up_R2M.shape[0], gate_up_R2M.shape[1] // 2
        out_RM = gate_up_R2M.new_empty(rows, size)
        self._silu_and_multiply(gate_up_R2M.data_ptr(), out_RM.data_ptr(), rows, size)
        return out_RM

    def rotate_and_write(
        self,
        qkv_RAD: Tensor,
        rotary: tuple[Tensor, Tensor],
        k_SKD: Tensor,
        v_SKD: Tensor,
        slots: slice | Tensor,
        folded_rows: int = 0,
    ) -> Tensor:
        qkv_RAD = qkv_RAD.contiguous()
        cos_RD, sin_RD = rotary
        rows, num_all, size = qkv_RAD.shape
        num_slots, num_kv_heads, _ = k_SKD.shape
        num_heads = num_all - 2 * num_kv_heads
        q = _queries(qkv_RAD, num_heads, num_kv_heads, folded_rows)
        table, first = (None, slots.start) if isinstance(slots, slice) else (slots.data_ptr(), 0)
        if table is None and not 0 <= first <= num_slots - rows:
            raise IndexError(f"slots {first}..{first + rows - 1} are outside the cache of {num_slots}")
        self._rotate_and_write(
            qkv_RAD.data_ptr(),
            cos_RD.data_ptr(),
            sin_RD.data_ptr(),
            q.data_ptr(),
            k_SKD.data_ptr(),
            v_SKD.data_ptr(),
            table,
            first,
            rows,
            num_heads,
            num_kv_heads,
            size,
            folded_rows,
        )
        return q

    def unfold(self, folded_1KXD: Tensor, num_rows: int, num_heads: int) -> Tensor:
        _, num_kv_heads, _, size = folded_1KXD.shape
        out_RN = folded_1KXD.new_empty(num_rows, num_heads * size)
        _, kv_stride, row_stride, _ = folded_1KXD.stride()
        self._unfold(
            folded_1KXD.data_ptr(),
            out_RN.data_ptr(),
            kv_stride,
            row_stride,
            num_rows,
            num_heads,
            num_kv_heads,
            size,
        )
        return out_RN


def _queries(qkv_RAD: Tensor, num_heads: int, num_kv_heads: int, folded_rows: int) -> Tensor:
    """Room for the rotated queries. Folded rows beyond the real ones are zeros."""
    rows, _, size = qkv_RAD.shape
    if not folded_rows:
        return qkv_RAD.new_empty(rows, num_heads, size)
    filled = rows * (num_heads // num_kv_heads) == folded_rows
    return (qkv_RAD.new_empty if filled else qkv_RAD.new_zeros)(1, num_kv_heads, folded_rows, size)


def _prove(rows: Rows, dtype: torch.dtype) -> None:
    """Compares every operation with the reference once, since a compiler may be broken. Raises BuildRefused."""
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    reference, x, delta, weight = ReferenceRows(), made(3, 70), made(3, 70), made(70)
    qkv, rotary, slots = made(3, 8, 34), (made(3, 34), made(3, 34)), torch.tensor([4, 0, 2])
    results = []
    for one in (rows, reference):
        k, v = torch.zeros(6, 2, 34, dtype=dtype), torch.zeros(6, 2, 34, dtype=dtype)
        rotated = one.rotate_and_write(qkv, rotary, k, v, slots)
        added = one.add_rms_norm(x, delta, weight, 1e-5)
        folded = one.rotate_and_write(qkv, rotary, k, v, slots, folded_rows=7)
        back = one.unfold(folded, 3, 4)
        results.append(
            (one.rms_norm(x, weight, 1e-5), *added, one.silu_and_multiply(x), rotated, k, v, folded, back)
        )
    for found, expected in zip(*results, strict=True):
        if not rows_equal_enough(found, expected):
            raise BuildRefused("the native row operations disagree with the reference on this machine")
