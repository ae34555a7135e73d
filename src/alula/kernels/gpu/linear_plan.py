"""Which kernel multiplies a matrix of a given shape, and with which blocks. Pure; measured on an H200.

What decides bits (the kernel, SPLITS, LANES) depends on the matrix alone; the rest may depend on the number of rows.
"""

from __future__ import annotations

import msgspec

from alula.kernels.gpu.modes import ADDING, GATED, QKV

# Up to so many bytes of inputs a program holds its share of the weights in registers before its turn comes (beyond it,
# on the way there, more than a multiprocessor's shared memory)...
RESIDENT_INPUT_BYTES = 4096
# ...unless there are so many outputs that streaming them is what takes the time.
RESIDENT_OUTPUTS = 16384
_MULTIPROCESSORS = 132
_SHARED_BYTES = 224_000
_INPUTS_AHEAD = 256


class LinearPlan(msgspec.Struct, frozen=True):
    """Blocks of one product. lanes > 0: the resident kernel, each holding a
    stretch of `lane_inputs` and one of `rest_inputs`; else the streamed one."""

    block_rows: int
    block_outputs: int
    warps: int
    lanes: int = 0
    lane_inputs: int = 0
    rest_inputs: int = 0
    block_inputs: int = 0
    stages: int = 0
    splits: int = 1
    lines_ahead: int = 0
    inputs_ahead: int = 0


def plan_linear(
    mode: int, num_rows: int, num_inputs: int, num_outputs: int, head_dim: int, item_bytes: int
) -> LinearPlan:
    """num_outputs: of one half in GATED mode. head_dim: in QKV mode."""
    if num_inputs * item_bytes <= RESIDENT_INPUT_BYTES and num_outputs <= RESIDENT_OUTPUTS:
        return _resident(num_inputs)
    block_outputs = min(64, max(16, _power(head_dim))) if mode == QKV else 64
    rows = next((size for size in (16, 32) if num_rows <= size), 64)
    splits = _splits(mode, num_inputs, num_outputs)
    lines, inputs = _ahead(mode, rows, block_outputs, num_inputs // splits, item_bytes)
    block_inputs, stages = _ring(mode, rows, block_outputs, num_inputs, item_bytes, inputs)
    return LinearPlan(
        block_rows=rows,
        block_outputs=block_outputs,
        warps=4,
        block_inputs=block_inputs,
        stages=stages,
        splits=splits,
        lines_ahead=lines,
        inputs_ahead=inputs,
    )


def _resident(num_inputs: int) -> LinearPlan:
    lanes, warps = (4, 4) if num_inputs <= 1024 else (8, 8)
    lane_inputs, rest_inputs = _stretches(num_inputs, lanes)
    return LinearPlan(8, 16, warps, lanes=lanes, lane_inputs=lane_inputs, rest_inputs=rest_inputs)


def _stretches(num_inputs: int, lanes: int) -> tuple[int, int]:
    """Inputs of each lane in two powers of two, the second of which may be 0: as few in all as cover the inputs."""
    whole = max(16, _power(-(-num_inputs // lanes)))
    half = whole // 2
    rest = max(16, _power(-(-(num_inputs - lanes * half) // lanes)))
    return (half, rest) if half >= 16 and rest < half else (whole, 0)


def _splits(mode: int, num_inputs: int, num_outputs: int) -> int:
    """Two where one program for each 64 outputs would leave half of the multiprocessors without work."""
    few = -(-num_outputs // 64) * 2 <= _MULTIPROCESSORS
    return 2 if few and mode not in (GATED, QKV) and num_inputs % 1024 == 0 else 1


def _ahead(mode: int, rows: int, block_outputs: int, num_inputs: int, item_bytes: int) -> tuple[int, int]:
    """(lines asked for, inputs loaded) before a program waits for the kernel before it."""
    if item_bytes != 2 or num_inputs % 256 or num_inputs < 1024:
        return 0, 0
    if mode in (ADDING, QKV) and rows == 16 and block_outputs == 64:
        return 0, _INPUTS_AHEAD
    return (4 if mode == GATED else 8), 0


def _ring(
    mode: int, rows: int, block_outputs: int, num_inputs: int, item_bytes: int, inputs_ahead: int
) -> tuple[int, int]:
    """(inputs of a block, blocks under way): as many bytes as shared memory holds, up to what was measured to pay."""
    matrices = 2 if mode == GATED else 1
    column_bytes = (matrices * block_outputs + rows) * item_bytes
    wide = 256 if mode == QKV and rows == 16 else 128
    block_inputs = wide if num_inputs % wide == 0 else 64
    wanted = {256: 3, 128: {GATED: 4, ADDING: 5}.get(mode, 6)}.get(block_inputs, 9)
    free_bytes = _SHARED_BYTES - inputs_ahead * column_bytes
    return block_inputs, max(2, min(wanted, free_bytes // (block_inputs * column_bytes)))


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()
