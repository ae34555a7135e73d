"""Which kernel multiplies a matrix of a given shape, and with which blocks. Pure; measured on an H200 (docs/kernels.md).

What decides bits (the kernel, SPLITS, LANES) depends on the matrix alone; the rest may depend on the number of rows.
"""

from __future__ import annotations

import msgspec

from alula.kernels.gpu.modes import ADDING, GATED, QKV

# Up to so many inputs a program holds its share of the weights in registers before its turn comes...
RESIDENT_INPUTS = 2048
# ...unless there are so many outputs that streaming them is what takes the time.
RESIDENT_OUTPUTS = 16384
_MULTIPROCESSORS = 132
_SHARED_BYTES = 224_000


class LinearPlan(msgspec.Struct, frozen=True):
    """Blocks of one product. lanes > 0: the resident kernel, with stretches of `lane_inputs`; else the streamed one."""

    block_rows: int
    block_outputs: int
    warps: int
    lanes: int = 0
    lane_inputs: int = 0
    block_inputs: int = 0
    stages: int = 0
    splits: int = 1
    lines_ahead: int = 0


def plan_linear(
    mode: int, num_rows: int, num_inputs: int, num_outputs: int, head_dim: int, item_bytes: int
) -> LinearPlan:
    """num_outputs: of one half in GATED mode. head_dim: in QKV mode."""
    if num_inputs <= RESIDENT_INPUTS and num_outputs <= RESIDENT_OUTPUTS:
        return _resident(num_inputs, item_bytes)
    block_outputs = min(64, max(16, _power(head_dim))) if mode == QKV else 64
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    splits = _splits(mode, num_inputs, num_outputs)
    block_inputs, stages = _ring(mode, rows, block_outputs, num_inputs, item_bytes)
    ahead = (4 if mode == GATED else 8) if item_bytes == 2 and num_inputs >= 512 * splits else 0
    return LinearPlan(
        block_rows=rows,
        block_outputs=block_outputs,
        warps=4,
        block_inputs=block_inputs,
        stages=stages,
        splits=splits,
        lines_ahead=ahead,
    )


def _resident(num_inputs: int, item_bytes: int) -> LinearPlan:
    lanes, warps = (4, 4) if num_inputs <= 1024 else (16, 8)
    lane_inputs = max(16, _power(-(-num_inputs // lanes)))
    return LinearPlan(block_rows=16, block_outputs=16, warps=warps, lanes=lanes, lane_inputs=lane_inputs)


def _splits(mode: int, num_inputs: int, num_outputs: int) -> int:
    """Two where one program for each 64 outputs would leave half of the multiprocessors without work."""
    few = -(-num_outputs // 64) * 2 <= _MULTIPROCESSORS
    return 2 if few and mode not in (GATED, QKV) and num_inputs % 1024 == 0 else 1


def _ring(mode: int, rows: int, block_outputs: int, num_inputs: int, item_bytes: int) -> tuple[int, int]:
    """(inputs of a block, blocks under way): as many bytes as shared memory holds, up to what was measured to pay."""
    matrices = 2 if mode == GATED else 1
    wide = 256 if mode == QKV and rows == 16 else 128
    block_inputs = wide if num_inputs % wide == 0 else 64
    block_bytes = (matrices * block_outputs + rows) * block_inputs * item_bytes
    wanted = {256: 4, 128: 4 if mode == GATED else 6}.get(block_inputs, 9)
    return block_inputs, max(2, min(wanted, _SHARED_BYTES // block_bytes))


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()
