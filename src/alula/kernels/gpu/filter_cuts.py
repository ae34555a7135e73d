"""Where top-k, top-p and min-p cut a row: `filter_cuts` of `kernels/reference/device_sampling.py`, three launches.

1. The largest logit of every block of a row.
2. A histogram of every filtered row: how many tokens, and how many units of weight, lie how far below the largest.
   Bins follow the bits of that distance (32 to each doubling), so they suit every temperature and need no range.
3. One program a row finds the bin that holds the cut, gathers its tokens into a list, and halves an interval of order
   codes until one token is left: the last one kept. Where more than LIST tokens share the bin, the row itself is read
   for every halving.

All that is added up are whole numbers, so neither the order of atomics nor the split of the work shows in a result.

Cost, V = 128k in bf16 (estimates, not measured): launches 1 and 2 read the logits once each, 3 to 5 us while the device
is not full; launch 3 reads them with one program a row for each of top-k and top-p, 10 to 20 us each, and about 10 us
for the halvings. About 30 us with one filter and 60 us with both, for 1 to 132 rows. A full list (very flat rows) costs
about half a millisecond. min-p alone needs no list and no histogram. Unfiltered rows leave at once.

R rows, V vocabulary, J blocks of a row, N bins, S seats.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.kernels.gpu.early_start import begin, wait
from alula.kernels.gpu.launch import early_launch
from alula.kernels.reference.device_sampling import ID_BITS, SamplingTable
from alula.kernels.reference.sampling import UNITS

_BLOCK = 4096  # tokens of a program of the first two launches
_CHUNK = 8192  # tokens that the last launch takes at a time
_LIST = 4096
_BINS = 1024
_BLOCK_WARPS, _ROW_WARPS = 8, 16

_ID_BITS = tl.constexpr(ID_BITS)
_ID_MASK = tl.constexpr((1 << ID_BITS) - 1)
_UNITS = tl.constexpr(UNITS)
_KEEP_ALL = tl.constexpr(1 << 62)
_FIRST_BIN = tl.constexpr((127 - 16) << 5)  # distances below 2^-16, 0 included, share bin 0
_LINE_32 = tl.constexpr(8)  # the table's line in words of 32 bits


def filter_cuts(logits_RV: Tensor, table: SamplingTable, seats_B: Tensor, width: int) -> Tensor:
    """int64 [R]: a row keeps the tokens whose order code is at most this; all of them where the seat has no filter, is
    greedy, or where the row is bad."""
    num_rows, vocab_size = logits_RV.shape
    assert logits_RV.stride(1) == 1 and num_rows == len(seats_B) * width and vocab_size < 1 << ID_BITS
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    device = logits_RV.device
    largest_RJ = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=device)
    bins_R2N = torch.empty(num_rows, 2, _BINS, dtype=torch.int64, device=device)
    list_RL = torch.empty(num_rows, _LIST, dtype=torch.int64, device=device)
    cut_R = torch.empty(num_rows, dtype=torch.int64, device=device)
    parameters = (table.temperature_S, table.top_k_S, table.top_p_S, table.log_min_p_S, seats_B)
    histogram_parameters = (table.temperature_S, table.top_k_S, table.top_p_S, seats_B)
    sizes = (logits_RV.stride(0), vocab_size, width, num_blocks)
    options: dict[str, Any] = {"BINS": _BINS, **early_launch(device)}
    grid = (num_rows, num_blocks)
    _largest_kernel[grid](
        logits_RV, largest_RJ, bins_R2N, *parameters, *sizes, BLOCK=_BLOCK, num_warps=_BLOCK_WARPS, **options
    )
    options["MOST_BLOCKS"] = triton.next_power_of_2(num_blocks)
    _histogram_kernel[grid](
        *(logits_RV, largest_RJ, bins_R2N, *histogram_parameters, *sizes),
        **{"BLOCK": _BLOCK, "num_warps": _BLOCK_WARPS, **options},
    )
    _cut_kernel[(num_rows,)](
        *(logits_RV, largest_RJ, bins_R2N, list_RL, cut_R, *parameters, *sizes),
        **{"CHUNK": _CHUNK, "LIST": _LIST, "num_warps": _ROW_WARPS, **options},
    )
    return cut_R


@triton.jit
def order_codes(values, ids):
    """Rise from the best token to the worst, equals by id; int64."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((0x7FFFFFFF - keys.to(tl.int64)) << _ID_BITS) | ids


@triton.jit
def _values(codes):
    keys = (0x7FFFFFFF - (codes >> _ID_BITS)).to(tl.int32)
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _logs(values, largest, temperature):
    return tl.div_rn(values - largest, temperature)


@triton.jit
def _units(values, largest, temperature):
    return (tl.exp(_logs(values, largest, temperature)) * _UNITS).to(tl.int64)


@triton.jit
def _bins(values, largest, BINS: tl.constexpr):
    bits = (largest - values).to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum((bits >> 18) - _FIRST_BIN, 0), BINS - 1)


@triton.jit
def load_values(row_ptr, ids, vocab_size):
    """Logits in fp32; -inf outside the vocabulary, and +inf for NaN, so that the largest tells of both."""
    values = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(values != values, float("inf"), values)


@triton.jit
def _row_largest(largest_ptr, row, num_blocks, MOST_BLOCKS: tl.constexpr):
    block = tl.arange(0, MOST_BLOCKS)
    largest = tl.load(largest_ptr + row * num_blocks + block, mask=block < num_blocks, other=float("-inf"))
    return tl.max(largest)


@triton.jit(do_not_specialize=["width", "num_blocks"])
def _largest_kernel(
    logits_ptr, largest_ptr, bins_ptr, temperature_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr, seats_ptr,
    row_stride, vocab_size, width, num_blocks,
    BINS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.load(seats_ptr + tl.program_id(0) // width) * _LINE_32
    filtered = tl.load(top_k_ptr + line) > 0
    filtered |= tl.load(top_p_ptr + line) < 1.0
    filtered |= tl.load(log_min_p_ptr + line) > float("-inf")
    if filtered & (tl.load(temperature_ptr + line) != 0.0):
        values = load_values(logits_ptr + row * row_stride, block * BLOCK + tl.arange(0, BLOCK), vocab_size)
        tl.store(largest_ptr + row * num_blocks + block, tl.max(values))
        if block == 0:
            both = tl.arange(0, 2 * BINS)
            tl.store(bins_ptr + row * (2 * BINS) + both, tl.zeros_like(both).to(tl.int64))


@triton.jit(do_not_specialize=["width", "num_blocks"])
def _histogram_kernel(
    logits_ptr, largest_ptr, bins_ptr, temperature_ptr, top_k_ptr, top_p_ptr, seats_ptr,
    row_stride, vocab_size, width, num_blocks,
    BINS: tl.constexpr, BLOCK: tl.constexpr, MOST_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """bins_ptr: [R, 2, N], tokens and units."""
    begin(EARLY)
    wait(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.load(seats_ptr + tl.program_id(0) // width) * _LINE_32
    temperature = tl.load(temperature_ptr + line)
    by_count, by_mass = tl.load(top_k_ptr + line) > 0, tl.load(top_p_ptr + line) < 1.0
    if (by_count | by_mass) & (temperature != 0.0):
        largest = _row_largest(largest_ptr, row, num_blocks, MOST_BLOCKS)
        if tl.abs(largest) < float("inf"):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            values = load_values(logits_ptr + row * row_stride, ids, vocab_size)
            bin_ptr = bins_ptr + row * (2 * BINS) + _bins(values, largest, BINS)
            if by_count:
                ones = tl.full([BLOCK], 1, tl.int64)
                tl.atomic_add(bin_ptr, ones, mask=ids < vocab_size, sem="relaxed")
            if by_mass:
                units = _units(values, largest, temperature)
                tl.atomic_add(bin_ptr + BINS, units, mask=units > 0, sem="relaxed")


@triton.jit(do_not_specialize=["width", "num_blocks"])
def _cut_kernel(
    logits_ptr, largest_ptr, bins_ptr, list_ptr, cut_ptr,
    temperature_ptr, top_k_ptr, top_p_ptr, log_min_p_ptr, seats_ptr, row_stride, vocab_size, width, num_blocks,
    BINS: tl.constexpr, CHUNK: tl.constexpr, LIST: tl.constexpr, MOST_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    line = tl.load(seats_ptr + tl.program_id(0) // width) * _LINE_32
    temperature = tl.load(temperature_ptr + line)
    top_k, top_p = tl.load(top_k_ptr + line), tl.load(top_p_ptr + line)
    log_min_p = tl.load(log_min_p_ptr + line)
    by_count, by_mass, by_log = (top_k > 0) & (top_k < vocab_size), top_p < 1.0, log_min_p > float("-inf")
    cut = tl.full((), _KEEP_ALL, tl.int64)
    if (by_count | by_mass | by_log) & (temperature != 0.0):
        largest = _row_largest(largest_ptr, row, num_blocks, MOST_BLOCKS)
        if tl.abs(largest) < float("inf"):
            row_ptr, own_list_ptr = logits_ptr + row * row_stride, list_ptr + row * LIST
            bins = bins_ptr + row * (2 * BINS) + tl.arange(0, BINS)
            if by_log:
                cut = _log_cut(largest, temperature, log_min_p)
            total = tl.full((), 0, tl.int64)
            if by_count:
                code, total = _last_kept(
                    row_ptr, own_list_ptr, bins, vocab_size, largest, temperature, top_k.to(tl.int64), by_mass,
                    False, BINS, CHUNK, LIST,
                )  # fmt: skip
                cut = tl.minimum(cut, code)
            elif by_mass:
                total = tl.sum(tl.load(bins + BINS))
            if by_mass:
                limit = tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
                code, _ = _last_kept(
                    row_ptr, own_list_ptr, bins, vocab_size, largest, temperature, limit, False,
                    True, BINS, CHUNK, LIST,
                )  # fmt: skip
                cut = tl.minimum(cut, code)
    tl.store(cut_ptr + row, cut)


@triton.jit
def _log_cut(largest, temperature, log_min_p):
    """The largest code of a value that min-p keeps, found without the row: what it keeps rises with the value."""
    low = order_codes(largest, 0) >> _ID_BITS
    high = tl.full((), 0xFFFFFFFF, tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        # Codes beyond -inf are those of NaN, which compare false.
        kept = _logs(_values(middle << _ID_BITS), largest, temperature) >= log_min_p
        low = tl.where(kept, middle, low)
        high = tl.where(kept, high, middle - 1)
    return (low << _ID_BITS) | _ID_MASK


@triton.jit
def _last_kept(
    row_ptr, list_ptr, bins, vocab_size, largest, temperature, limit, wants_mass,
    MASS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The code of the last token before which less than `limit` lies, in tokens or (MASS) units; and, where wanted, the
    units up to it."""
    held = tl.load(bins + (BINS if MASS else 0))
    before = tl.cumsum(held) - held
    index = tl.arange(0, BINS)
    chosen = tl.max(tl.where(before < limit, index, 0))
    limit -= tl.sum(tl.where(index == chosen, before, 0))
    num, low, high = _gather(row_ptr, list_ptr, vocab_size, largest, chosen, BINS, CHUNK, LIST)
    tl.debug_barrier()  # the list was written by other threads
    listed = tl.arange(0, LIST) < num
    codes = tl.load(list_ptr + tl.arange(0, LIST), mask=listed, other=_KEEP_ALL)
    units = tl.where(listed, _units(_values(codes), largest, temperature), 0)
    weights = units if MASS else listed.to(tl.int64)
    while low < high:
        middle = (low + high) >> 1
        if num <= LIST:
            reached = tl.sum(tl.where(codes <= middle, weights, 0))
        else:
            reached = _reached(row_ptr, vocab_size, largest, temperature, chosen, middle, MASS, BINS, CHUNK)
        low, high = tl.where(reached >= limit, low, middle + 1), tl.where(reached >= limit, middle, high)
    mass = tl.full((), 0, tl.int64)
    if wants_mass:
        if num <= LIST:
            mass = tl.sum(tl.where(codes <= low, units, 0))
        else:
            mass = _reached(row_ptr, vocab_size, largest, temperature, chosen, low, True, BINS, CHUNK)
        mass += tl.sum(tl.where(index < chosen, tl.load(bins + BINS), 0))
    tl.debug_barrier()  # the list is about to be used again
    return low, mass


@triton.jit
def _gather(
    row_ptr, list_ptr, vocab_size, largest, chosen,
    BINS: tl.constexpr, CHUNK: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Lists the codes of a bin's tokens, in order of id, as far as there is room: how many, the first and the last."""
    num = tl.full((), 0, tl.int32)
    low, high = tl.full((), _KEEP_ALL, tl.int64), tl.full((), 0, tl.int64)
    for start in range(0, vocab_size, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        values = load_values(row_ptr, ids, vocab_size)
        mine = (_bins(values, largest, BINS) == chosen) & (ids < vocab_size)
        found = tl.sum(mine.to(tl.int32))
        if found > 0:
            codes = order_codes(values, ids)
            place = num + tl.cumsum(mine.to(tl.int32)) - 1
            tl.store(list_ptr + place, codes, mask=mine & (place < LIST))
            low = tl.minimum(low, tl.min(tl.where(mine, codes, _KEEP_ALL)))
            high = tl.maximum(high, tl.max(tl.where(mine, codes, 0)))
            num += found
    return num, low, high


@triton.jit
def _reached(
    row_ptr, vocab_size, largest, temperature, chosen, code,
    MASS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """How much of a bin lies up to a code, in tokens or units."""
    reached = tl.zeros([CHUNK], tl.int64)
    for start in range(0, vocab_size, CHUNK):
        ids = start + tl.arange(0, CHUNK)
        values = load_values(row_ptr, ids, vocab_size)
        mine = (_bins(values, largest, BINS) == chosen) & (ids < vocab_size) & (order_codes(values, ids) <= code)
        weights = _units(values, largest, temperature) if MASS else tl.full([CHUNK], 1, tl.int64)
        reached += tl.where(mine, weights, 0)
    return tl.sum(reached)
