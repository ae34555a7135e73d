"""Draws whose parameters live on the device: what a captured graph can replay. The definition, in torch.

Unlike `sampling.py`, nothing here asks the host anything: parameters stand in a table with one line a seat, and the
noise is made inside the draw. Both give the same tokens, but for rounding. The processed value of a token is

    logit / temperature + Gumbel(seed, sample, position of the drawn token, token)       (noise.py)

since an argmax needs no normalisation. Which tokens a row keeps is decided on whole numbers: tokens are ordered by
logit, equals by lower id, and each weighs floor(2^40 exp((logit - largest) / temperature)), so that sums have no order.
Of the ordered tokens the longest run is kept that top-k, top-p (of what top-k kept) and min-p allow. Penalties and
log-probabilities are not known here.

R = B*W rows request by request (seat of row r: seats_B[r // W]), V vocabulary, D draft vocabulary, S seats, X words
of a table's line.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.core.sampling import SamplingParams
from alula.kernels.reference.noise import gumbel, gumbel_at
from alula.kernels.reference.sampling import MIN_TEMPERATURE, UNITS, check_rows, first_argmax

ID_BITS = 24  # of an order code; the bits above are the logit's
TARGET_AHEAD = 1  # a target's row at position p draws the token at p + 1
DRAFT_AHEAD = 2  # a draft's row at position p holds the token of p + 1 already
_VALUES_ALIGNED = 64  # exponentials are computed in whole vectors: a scalar tail may have another one
_LINE = struct.Struct("=fiffqq")


@dataclass(frozen=True)
class SamplingTable:
    """How each seat draws. The named fields are views of `lines_SX`, which is one memory so that one copy sets a seat.

    temperature fp32, 0: greedy. top_k int32, 0: none. top_p fp32, 1: none. log_min_p fp32, -inf: none.
    """

    lines_SX: Tensor  # int64
    temperature_S: Tensor
    top_k_S: Tensor
    top_p_S: Tensor
    log_min_p_S: Tensor
    seed_S: Tensor  # int64
    sample_index_S: Tensor  # int64

    @staticmethod
    def make(num_seats: int, device: torch.device | str = "cpu") -> SamplingTable:
        """All seats greedy."""
        lines_SX = SamplingTable.row(SamplingParams()).repeat(num_seats, 1).to(device)
        floats, ints = lines_SX.view(torch.float32), lines_SX.view(torch.int32)
        return SamplingTable(
            lines_SX=lines_SX,
            temperature_S=floats[:, 0],
            top_k_S=ints[:, 1],
            top_p_S=floats[:, 2],
            log_min_p_S=floats[:, 3],
            seed_S=lines_SX[:, 2],
            sample_index_S=lines_SX[:, 3],
        )

    @staticmethod
    def row(params: SamplingParams) -> Tensor:
        """The line of a request, int64 [X] on the CPU."""
        temperature = 0.0 if params.greedy else max(params.temperature, MIN_TEMPERATURE)
        log_min_p = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        top_k = min(params.top_k, 2**31 - 1)
        line = _LINE.pack(temperature, top_k, params.top_p, log_min_p, params.seed, params.sample_index)
        return torch.tensor(struct.unpack("=4q", line))

    def set(self, seat: int, line_X: Tensor) -> None:
        """Writes a line in the order of the current stream, without waiting for it. `line_X` may be pinned memory."""
        self.lines_SX[seat].copy_(line_X, non_blocking=True)


def has_filters(params: SamplingParams) -> bool:
    """Whether a batch with this request needs `filtered`."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


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
    """(ids_R int64, bad_R bool): the target's draw at every row, and the rows that hold NaN or +inf or nothing finite.

    `positions_R` (int64) are the rows' own positions: row p draws token p + 1. `sampled` False promises that every seat
    is greedy, `filtered` False that none has top-k, top-p or min-p. A bad row's id means nothing, but is a token's.
    """
    bad_R = check_rows(logits_RV)
    if not sampled:
        return first_argmax(logits_RV), bad_R
    seats_R = seats_B.long().repeat_interleave(width)
    noise_RV = gumbel(
        table.seed_S[seats_R], table.sample_index_S[seats_R], positions_R + TARGET_AHEAD, logits_RV.shape[1]
    )
    kept_RV = None
    if filtered:
        kept_RV = order_codes(logits_RV) <= filter_cuts(logits_RV, table, seats_B, width)[:, None]
    return _drawn(logits_RV, table.temperature_S[seats_R], noise_RV, kept_RV), bad_R


def draw_draft_tokens(
    logits_BD: Tensor,
    hot_D: Tensor,
    table: SamplingTable,
    seats_B: Tensor,
    positions_B: Tensor,
    *,
    sampled: bool,
) -> Tensor:
    """ids_B, int64: what the draft proposes, as tokens of the target, drawn with the noise of the target's draw.

    `positions_B` (int64) are the positions of the draft's rows: row p proposes token p + 2. `hot_D` (int64) are the
    target's ids of the draft's tokens. Filters are left out: a draft may propose what the target then filters
    away, which costs agreement and changes no output; finding them costs more than it gains.
    """
    if not sampled:
        return hot_D[first_argmax(logits_BD)]
    seats_index_B = seats_B.long()
    noise_BD = gumbel_at(
        table.seed_S[seats_index_B], table.sample_index_S[seats_index_B], positions_B + DRAFT_AHEAD, hot_D
    )
    return hot_D[_drawn(logits_BD, table.temperature_S[seats_index_B], noise_BD, None)]


def order_codes(logits_RV: Tensor) -> Tensor:
    """int64 [R, V]: rises from the best token to the worst, equals by id. The lower ID_BITS are the id."""
    values_RV = logits_RV.to(torch.float32)
    bits_RV = torch.where(values_RV == 0.0, 0.0, values_RV).view(torch.int32)  # -0 equals 0
    keys_RV = bits_RV ^ ((bits_RV >> 31) & 0x7FFFFFFF)
    ids_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    return ((0x7FFFFFFF - keys_RV.to(torch.int64)) << ID_BITS) | ids_V


def filter_cuts(logits_RV: Tensor, table: SamplingTable, seats_B: Tensor, width: int) -> Tensor:
    """int64 [R]: a row keeps the tokens whose order code is at most this. Where a row has no filter, or is greedy or
    bad, the cut means nothing."""
    num_tokens = logits_RV.shape[1]
    seats_R1 = seats_B.long().repeat_interleave(width)[:, None]
    codes_RV = order_codes(logits_RV).sort(dim=1).values
    values_RV = logits_RV.to(torch.float32).gather(1, codes_RV & ((1 << ID_BITS) - 1))
    temperature_R1 = table.temperature_S[seats_R1]
    temperature_R1 = torch.where(temperature_R1 == 0.0, 1.0, temperature_R1)
    logs_RV = (values_RV - values_RV[:, :1]) / temperature_R1
    padded = torch.nn.functional.pad(logs_RV, (0, -num_tokens % _VALUES_ALIGNED), value=-math.inf)
    units_RV = (padded.exp() * UNITS).to(torch.int64)[:, :num_tokens]

    top_k_R1, top_p_R1 = table.top_k_S[seats_R1], table.top_p_S[seats_R1]
    within_RV = (torch.arange(num_tokens, device=codes_RV.device) < top_k_R1) | (top_k_R1 == 0)
    units_RV = units_RV.masked_fill(~within_RV, 0)
    total_R1 = units_RV.sum(1, keepdim=True)
    limit_R1 = (top_p_R1.to(torch.float64) * total_R1.to(torch.float64)).to(torch.int64).clamp(min=1)
    nucleus_RV = (units_RV.cumsum(1) - units_RV < limit_R1) | (top_p_R1 >= 1.0)
    kept_RV = within_RV & nucleus_RV & (logs_RV >= table.log_min_p_S[seats_R1])
    last_R1 = (kept_RV.sum(1, keepdim=True) - 1).clamp(min=0)
    return codes_RV.gather(1, last_R1)[:, 0]


def _drawn(logits_RV: Tensor, temperature_R: Tensor, noise_RV: Tensor, kept_RV: Tensor | None) -> Tensor:
    """Columns of the largest processed value; of the largest logit where the temperature is 0."""
    logits_RV = logits_RV.to(torch.float32)
    greedy_R1 = temperature_R[:, None] == 0.0
    values_RV = logits_RV / torch.where(greedy_R1, 1.0, temperature_R[:, None]) + noise_RV
    if kept_RV is not None:
        values_RV = values_RV.masked_fill(~kept_RV, -math.inf)
    return first_argmax(torch.where(greedy_R1, logits_RV, values_RV))
