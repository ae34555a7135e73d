"""Products of a few rows with constant weights, fused with the norm before and the activation, residual or rotation
after: twins of kernels/reference/fused.py.

R rows, H hidden, I inputs, O outputs, M MLP width, C parts of a row's sum of squares, N query heads, K kv heads, D head
dimension, S cache slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu import modes
from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.epilogues import gate, store_added, store_plain, store_qkv
from alula.kernels.gpu.launch import arrivals, early_launch
from alula.kernels.gpu.linear_plan import LinearPlan, plan_linear
from alula.kernels.gpu.products import (
    add_splits,
    columns_of,
    fetch_ahead,
    inputs_at,
    inverse_rms,
    resident_inputs,
    resident_product,
    resident_weights,
    streamed_product,
    weights_at,
)
from alula.kernels.reference.fused import Deferred, Norm, Rope, Stream

GATED: tl.constexpr = tl.constexpr(modes.GATED)
ADDING: tl.constexpr = tl.constexpr(modes.ADDING)
QKV: tl.constexpr = tl.constexpr(modes.QKV)
_VARYING = ["R", "C", "C_OUT"]


def linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """norm(x) W^T + b -> [R, O]."""
    out_RO = x.value_RI.new_empty(x.value_RI.shape[0], weight_OI.shape[0])
    _launch(modes.PLAIN, x, weight_OI, bias_O, out_RO)
    return out_RO


def gated_linear(x: Deferred, weight_2MI: Tensor, bias_2M: Tensor | None = None) -> Tensor:
    """silu(gate) * up of one fused product, gate first -> [R, M]."""
    out_RM = x.value_RI.new_empty(x.value_RI.shape[0], weight_2MI.shape[0] // 2)
    _launch(modes.GATED, x, weight_2MI, bias_2M, out_RM)
    return out_RM


def adding_linear(x: Deferred, weight_OI: Tensor, bias_O: Tensor | None, onto_RO: Tensor, norm: Norm) -> Stream:
    """onto + x W^T + b as a stream, ready for `norm`."""
    out_RO, scaled_RO = torch.empty_like(onto_RO), torch.empty_like(onto_RO)
    squares_RC = _launch(modes.ADDING, x, weight_OI, bias_O, out_RO, _Sum(onto_RO, norm.weight_H, scaled_RO))
    return Stream(out_RO, Deferred(scaled_RO, squares_RC, norm.eps))


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
    queries [R, N, D]."""
    num_kv_heads, head_dim = k_SKD.shape[1:]
    num_heads = weight_AI.shape[0] // head_dim - 2 * num_kv_heads
    q_RND = x.value_RI.new_empty(x.value_RI.shape[0], num_heads, head_dim)
    _launch(modes.QKV, x, weight_AI, bias_A, q_RND, cache=_Cache(rope, k_SKD, v_SKD, slots_R, num_heads))
    return q_RND


@dataclass(frozen=True)
class _Sum:
    onto_RO: Tensor
    norm_O: Tensor
    scaled_RO: Tensor


@dataclass(frozen=True)
class _Cache:
    rope: Rope
    k_SKD: Tensor
    v_SKD: Tensor
    slots_R: Tensor
    num_heads: int


def _launch(
    mode: int,
    x: Deferred,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    out: Tensor,
    total: _Sum | None = None,
    cache: _Cache | None = None,
) -> Tensor:
    """Runs one product -> the parts of the rows' squares, in ADDING mode."""
    num_rows, num_inputs = x.value_RI.shape
    num_outputs = weight_OI.shape[0] // (2 if mode == modes.GATED else 1)
    head_dim = cache.k_SKD.shape[2] if cache else 0
    plan = plan_linear(mode, num_rows, num_inputs, num_outputs, head_dim, weight_OI.element_size())
    num_tiles = _num_tiles(plan, num_outputs, head_dim)
    grid = (num_tiles, triton.cdiv(num_rows, plan.block_rows), plan.splits)
    squares_RC = torch.empty(num_rows if total else 0, num_tiles, dtype=torch.float32, device=out.device)
    parts = 1 if x.squares_RC is None else x.squares_RC.shape[1]
    tensors = (
        *(x.value_RI, out if x.squares_RC is None else x.squares_RC, weight_OI, out if bias_O is None else bias_O),
        *((total.onto_RO, total.norm_O, total.scaled_RO) if total else (out, out, out)),
        *(out, squares_RC),
        *((cache.k_SKD, cache.v_SKD, cache.rope.cos_PD, cache.rope.sin_PD) if cache else (out, out, out, out)),
        *((cache.rope.positions_R, cache.slots_R) if cache else (out, out)),
    )
    heads = (
        (cache.num_heads, cache.k_SKD.shape[1], cache.k_SKD.stride(0), cache.v_SKD.stride(0)) if cache else (0,) * 4
    )
    numbers = (num_rows, num_inputs, num_outputs, parts, num_tiles, x.value_RI.stride(0), *heads, x.eps)
    flags: dict[str, Any] = {
        "MODE": mode,
        "DEFERRED": x.squares_RC is not None,
        "BIAS": bias_O is not None,
        "HEAD_DIM": head_dim,
        "C_PADDED": max(16, triton.next_power_of_2(parts)),
        "BLOCK_R": plan.block_rows,
        "BLOCK_O": plan.block_outputs,
        "num_warps": plan.warps,
        **early_launch(out.device),
    }
    _run(plan, grid, tensors, numbers, flags, out.device)
    return squares_RC


def _num_tiles(plan: LinearPlan, num_outputs: int, head_dim: int) -> int:
    if not head_dim:
        return triton.cdiv(num_outputs, plan.block_outputs)
    return num_outputs // head_dim * triton.cdiv(head_dim // 2, plan.block_outputs // 2)


def _run(
    plan: LinearPlan,
    grid: tuple[int, int, int],
    tensors: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    flags: dict[str, Any],
    device: torch.device,
) -> None:
    if plan.lanes:
        _resident_kernel[grid[:2]](
            *(*tensors, *numbers),
            LANES=plan.lanes,
            LANE_K=plan.lane_inputs,
            REST_K=plan.rest_inputs,
            **flags,
        )
        return
    num_cells = grid[0] * grid[1] * plan.splits * plan.block_rows * plan.block_outputs
    work = torch.empty(num_cells if plan.splits > 1 else 1, dtype=torch.float32, device=device)
    _streamed_kernel[grid](
        *(*tensors, work, arrivals(device, grid[0] * grid[1]), *numbers),
        BLOCK_K=plan.block_inputs,
        EVEN_K=numbers[1] % (plan.block_inputs * plan.splits) == 0,
        STAGES=plan.stages,
        SPLITS=plan.splits,
        LINES=plan.lines_ahead if device.type == "cuda" else 0,
        AHEAD_K=plan.inputs_ahead,
        **flags,
    )


@triton.jit
def _finish_tile(
    y, up, scale, bias_ptr, onto, norm, out_ptr, scaled_ptr, squares_out_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr,
    positions_ptr, slots_ptr, rows, row_ok, columns, column_ok, tile, O, C_OUT, N, KV, k_stride, v_stride,
    MODE: tl.constexpr, DEFERRED: tl.constexpr, BIAS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr
):  # fmt: skip
    ok = row_ok[:, None] & column_ok[None, :]
    if DEFERRED:
        y = y * scale[:, None]
        up = up * scale[:, None]
    if BIAS:
        y += tl.load(bias_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)[None, :]
        if MODE == GATED:
            up += tl.load(bias_ptr + O + columns, mask=column_ok, other=0.0).to(tl.float32)[None, :]
    if MODE == QKV:
        store_qkv(
            y, out_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, rows, row_ok, tile, N, KV,
            k_stride, v_stride, HEAD_DIM, BLOCK_R, BLOCK_O
        )  # fmt: skip
    elif MODE == ADDING:
        store_added(
            y, onto, norm, out_ptr, scaled_ptr, squares_out_ptr, rows, row_ok, columns, ok, O, tile, C_OUT
        )  # fmt: skip
    elif MODE == GATED:
        store_plain(gate(y, up), out_ptr, rows, columns, ok, O)
    else:
        store_plain(y, out_ptr, rows, columns, ok, O)


@triton.jit(do_not_specialize=_VARYING)
def _streamed_kernel(
    x_ptr, squares_ptr, weight_ptr, bias_ptr, onto_ptr, norm_ptr, scaled_ptr, out_ptr, squares_out_ptr, k_ptr, v_ptr,
    cos_ptr, sin_ptr, positions_ptr, slots_ptr, work_ptr, arrivals_ptr, R, K, O, C, C_OUT, x_stride, N, KV, k_stride,
    v_stride, eps, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr,
    LINES: tl.constexpr, AHEAD_K: tl.constexpr, MODE: tl.constexpr, DEFERRED: tl.constexpr, BIAS: tl.constexpr,
    HEAD_DIM: tl.constexpr, C_PADDED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    begin(EARLY)
    tile = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_ok = rows < R
    columns, column_ok = columns_of(tile, O, HEAD_DIM, MODE, BLOCK_O)
    weight_O1 = weight_ptr + tl.where(column_ok, columns, 0).to(tl.int64)[:, None] * K
    split_k = K // SPLITS
    first_k = tl.program_id(2) * split_k
    if AHEAD_K > 0:
        ahead = weights_at(weight_O1, first_k, K, AHEAD_K, True)
        if MODE == GATED:
            ahead_up = weights_at(weight_O1 + O * K, first_k, K, AHEAD_K, True)
    if LINES > 0:
        fetch_ahead(weight_O1 + first_k + AHEAD_K, LINES)
        if MODE == GATED:
            fetch_ahead(weight_O1 + O * K + first_k + AHEAD_K, LINES)
    wait(EARLY)
    onto = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
    norm = tl.zeros((BLOCK_O,), tl.float32)
    scale = tl.zeros((BLOCK_R,), tl.float32)
    if MODE == ADDING:
        at = rows.to(tl.int64)[:, None] * O + columns[None, :]
        onto = tl.load(onto_ptr + at, mask=row_ok[:, None] & column_ok[None, :], other=0.0).to(tl.float32)
        norm = tl.load(norm_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)
    if DEFERRED:
        scale = inverse_rms(squares_ptr, rows, row_ok, C, K, eps, C_PADDED)
    x_R1 = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    y = tl.zeros((BLOCK_O, BLOCK_R), tl.float32)
    up = tl.zeros((BLOCK_O, BLOCK_R), tl.float32)
    if AHEAD_K > 0:
        x = inputs_at(x_R1, row_ok, first_k, K, AHEAD_K, True)
        y = tl.dot(ahead, tl.trans(x), y, input_precision="ieee")
        if MODE == GATED:
            up = tl.dot(ahead_up, tl.trans(x), up, input_precision="ieee")
    y, up = streamed_product(
        y, up, x_R1, row_ok, weight_O1, O * K, first_k + AHEAD_K, first_k + split_k, MODE == GATED, BLOCK_K, EVEN_K,
        STAGES,
    )  # fmt: skip
    y, up = tl.trans(y), tl.trans(up)
    last = True
    if SPLITS > 1:
        cell = tl.program_id(1) * tl.num_programs(0) + tile
        y, last = add_splits(y, work_ptr, arrivals_ptr, cell, tl.program_id(2), SPLITS, BLOCK_R, BLOCK_O)
    if last:
        _finish_tile(
            y, up, scale, bias_ptr, onto, norm, out_ptr, scaled_ptr, squares_out_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr,
            positions_ptr, slots_ptr, rows, row_ok, columns, column_ok, tile, O, C_OUT, N, KV, k_stride, v_stride,
            MODE, DEFERRED, BIAS, HEAD_DIM, BLOCK_R, BLOCK_O
        )  # fmt: skip


@triton.jit(do_not_specialize=_VARYING)
def _resident_kernel(
    x_ptr, squares_ptr, weight_ptr, bias_ptr, onto_ptr, norm_ptr, scaled_ptr, out_ptr, squares_out_ptr, k_ptr, v_ptr,
    cos_ptr, sin_ptr, positions_ptr, slots_ptr, R, K, O, C, C_OUT, x_stride, N, KV, k_stride, v_stride, eps,
    LANES: tl.constexpr, LANE_K: tl.constexpr, REST_K: tl.constexpr, MODE: tl.constexpr, DEFERRED: tl.constexpr,
    BIAS: tl.constexpr, HEAD_DIM: tl.constexpr, C_PADDED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_ok = rows < R
    columns, column_ok = columns_of(tile, O, HEAD_DIM, MODE, BLOCK_O)
    w = resident_weights(weight_ptr, columns, column_ok, 0, K, LANES, LANE_K)
    w_rest = w
    if REST_K > 0:
        w_rest = resident_weights(weight_ptr, columns, column_ok, LANES * LANE_K, K, LANES, REST_K)
    if MODE == GATED:
        w2 = resident_weights(weight_ptr + O * K, columns, column_ok, 0, K, LANES, LANE_K)
        w2_rest = w2
        if REST_K > 0:
            w2_rest = resident_weights(weight_ptr + O * K, columns, column_ok, LANES * LANE_K, K, LANES, REST_K)
    norm = tl.zeros((BLOCK_O,), tl.float32)
    if MODE == ADDING:
        norm = tl.load(norm_ptr + columns, mask=column_ok, other=0.0).to(tl.float32)
    wait(EARLY)
    begin(EARLY)  # not sooner: the next kernels' programs would crowd this one's
    x = resident_inputs(x_ptr, rows, row_ok, x_stride, 0, K, LANES, LANE_K)
    x_rest = x
    if REST_K > 0:
        x_rest = resident_inputs(x_ptr, rows, row_ok, x_stride, LANES * LANE_K, K, LANES, REST_K)
    onto = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
    scale = tl.zeros((BLOCK_R,), tl.float32)
    if MODE == ADDING:
        at = rows.to(tl.int64)[:, None] * O + columns[None, :]
        onto = tl.load(onto_ptr + at, mask=row_ok[:, None] & column_ok[None, :], other=0.0).to(tl.float32)
    if DEFERRED:
        scale = inverse_rms(squares_ptr, rows, row_ok, C, K, eps, C_PADDED)
    y = resident_product(w, w_rest, x, x_rest, REST_K)
    up = tl.zeros_like(y)
    if MODE == GATED:
        up = resident_product(w2, w2_rest, x, x_rest, REST_K)
    _finish_tile(
        y, up, scale, bias_ptr, onto, norm, out_ptr, scaled_ptr, squares_out_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr,
        positions_ptr, slots_ptr, rows, row_ok, columns, column_ok, tile, O, C_OUT, N, KV, k_stride, v_stride,
        MODE, DEFERRED, BIAS, HEAD_DIM, BLOCK_R, BLOCK_O
    )  # fmt: skip
