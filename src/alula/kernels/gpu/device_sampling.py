"""Triton twin of `kernels/reference/device_sampling.py`; `filter_cuts.py` finds which tokens filters keep.

A draw is two launches: the best processed value of every block of tokens, with the noise made there, then of the row.
The logits are read once. Work: about 20 integer operations and two logarithms a token where the seat is sampled;
programs of greedy seats skip them. A row's result depends on that row alone.

R rows, V vocabulary, D draft vocabulary, B requests, W rows a request, J blocks of a row, S seats.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.filter_cuts import filter_cuts, load_values, order_codes
from alula.kernels.gpu.launch import early_launch
from alula.kernels.gpu.noise import gumbel_at, gumbel_tile
from alula.kernels.reference.device_sampling import DRAFT_AHEAD, TARGET_AHEAD, SamplingTable

_BLOCK = 2048
_WARPS = 4
_LINE_32 = tl.constexpr(8)  # the table's line in words of 32 bits
_LINE_64 = tl.constexpr(4)


def draw_tokens(
    logits_RV: Tensor,
    table: SamplingTable,
    seats_B: Tensor,
    width: int,
    positions_R: Tensor,
    *,
    filtered: bool,
    sampled: bool,
) -> tuple[Tensor, Tensor]:
    """(ids_R int64, bad_R bool): the target's draw at every row, and the rows that cannot be drawn from."""
    assert len(logits_RV) == len(seats_B) * width
    cut_R = filter_cuts(logits_RV, table, seats_B, width) if filtered and sampled else None
    return _draw(logits_RV, table, seats_B, width, positions_R, sampled, cut_R, None)


def draw_draft_tokens(
    logits_BD: Tensor,
    hot_D: Tensor,
    table: SamplingTable,
    seats_B: Tensor,
    positions_B: Tensor,
    *,
    sampled: bool,
) -> Tensor:
    """ids_B, int64: what the draft proposes, as tokens of the target. Filters are left out, as in the torch twin: they
    would cost some 30 us a step."""
    return _draw(logits_BD, table, seats_B, 1, positions_B, sampled, None, hot_D)[0]


def _draw(
    logits_RV: Tensor,
    table: SamplingTable,
    seats_B: Tensor,
    width: int,
    positions_R: Tensor,
    sampled: bool,
    cut_R: Tensor | None,
    hot_D: Tensor | None,
) -> tuple[Tensor, Tensor]:
    num_rows, vocab_size = logits_RV.shape
    assert logits_RV.stride(1) == 1
    device = logits_RV.device
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    best_RJ = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    largest_RJ = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    best_id_RJ = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=device)
    ids_R = torch.empty(num_rows, dtype=torch.int64, device=device)
    bad_R = torch.empty(num_rows, dtype=torch.bool, device=device)
    hot = positions_R if hot_D is None else hot_D
    _block_kernel[(num_rows, num_blocks)](
        *(logits_RV, positions_R if cut_R is None else cut_R, hot, best_RJ, best_id_RJ, largest_RJ),
        *(table.temperature_S, table.seed_S, table.sample_index_S, seats_B, positions_R),
        *(logits_RV.stride(0), vocab_size, width, num_blocks, TARGET_AHEAD if hot_D is None else DRAFT_AHEAD),
        SAMPLED=sampled,
        FILTERED=cut_R is not None,
        HOT=hot_D is not None,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **early_launch(device),
    )
    _row_kernel[(num_rows,)](
        *(best_RJ, best_id_RJ, largest_RJ, hot, ids_R, bad_R.view(torch.int8), num_blocks),
        HOT=hot_D is not None,
        MOST_BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=1,
        **early_launch(device),
    )
    return ids_R, bad_R


@triton.jit(do_not_specialize=["width", "num_blocks", "ahead"])
def _block_kernel(
    logits_ptr, cut_ptr, hot_ptr, best_ptr, best_id_ptr, largest_ptr,
    temperature_ptr, seed_ptr, sample_index_ptr, seats_ptr, positions_ptr,
    row_stride, vocab_size, width, num_blocks, ahead,
    SAMPLED: tl.constexpr, FILTERED: tl.constexpr, HOT: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Columns stand as [counters, 4]: four neighbours share a counter of the noise."""
    begin(EARLY)
    wait(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    counter = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    column = counter[:, None] * 4 + tl.arange(0, 4)[None, :]
    logits = load_values(logits_ptr + row * row_stride, column, vocab_size)
    values = logits
    if SAMPLED:
        seat = tl.load(seats_ptr + tl.program_id(0) // width)
        temperature = tl.load(temperature_ptr + seat * _LINE_32)
        if temperature != 0.0:
            seed = tl.load(seed_ptr + seat * _LINE_64)
            sample_index = tl.load(sample_index_ptr + seat * _LINE_64)
            position = tl.load(positions_ptr + row) + ahead
            if HOT:
                token = tl.load(hot_ptr + column, mask=column < vocab_size, other=0).to(tl.int32)
                noise = gumbel_at(token, seed, sample_index, position)
            else:
                noise = gumbel_tile(counter, seed, sample_index, position)
            values = logits / temperature + noise
            if FILTERED:
                kept = order_codes(logits, column) <= tl.load(cut_ptr + row)
                values = tl.where(kept, values, float("-inf"))
    best = tl.max(tl.max(values, axis=1), axis=0)
    is_best = (values == best) & (column < vocab_size)
    best_id = tl.min(tl.min(tl.where(is_best, column, vocab_size), axis=1), axis=0)
    out = row * num_blocks + block
    tl.store(best_ptr + out, best)
    tl.store(best_id_ptr + out, best_id)
    tl.store(largest_ptr + out, tl.max(tl.max(logits, axis=1), axis=0))


@triton.jit(do_not_specialize=["num_blocks"])
def _row_kernel(
    best_ptr, best_id_ptr, largest_ptr, hot_ptr, ids_ptr, bad_ptr, num_blocks,
    HOT: tl.constexpr, MOST_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, MOST_BLOCKS)
    place, inside = row * num_blocks + block, block < num_blocks
    values = tl.load(best_ptr + place, mask=inside, other=float("-inf"))
    ids = tl.load(best_id_ptr + place, mask=inside, other=0x7FFFFFFF)
    largest = tl.max(tl.load(largest_ptr + place, mask=inside, other=float("-inf")))
    best_id = tl.min(tl.where(values == tl.max(values), ids, 0x7FFFFFFF)).to(tl.int64)
    if HOT:
        best_id = tl.load(hot_ptr + best_id)
    tl.store(ids_ptr + row, best_id)
    is_number = tl.abs(largest) < float("inf")
    tl.store(bad_ptr + row, tl.where(is_number, 0, 1).to(tl.int8))
