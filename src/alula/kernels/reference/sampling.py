"""From logits to token ids: filters, draws, greedy choice, logprobs. Knows nothing of requests, drafts or noise.

The processed distribution of a row, all in fp32, after penalties (penalties.py): temperature, top-k, top-p (of what
top-k kept, renormalised), min-p (relative to the largest), renormalised. A row's result does not depend, bit for bit,
on which rows come with it: probabilities are summed as whole numbers of 2^-40, whose sum has no order.

R rows, V vocabulary, F filtered rows, K candidates of a row (most probable first), N reported alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.core.sampling import SamplingParams

UNITS = 2.0**40  # how many units of probability make 1
# Below it a temperature could overflow finite logits; such a row is all but greedy anyway.
MIN_TEMPERATURE = 1e-20
# Candidates are computed in whole vectors: a scalar tail may have another exponential.
_CANDIDATES_ALIGNED = 64
_BLOCK = 64  # tokens


@dataclass(frozen=True)
class Filters:
    """The filtered rows of a batch. `row_index_F` None: every row, in order. `max_top_k` 0: some row has no top-k, and
    the number of candidates must be counted."""

    row_index_F: Tensor | None
    top_k_F: Tensor
    top_p_F: Tensor
    log_tail_F: Tensor  # log(1 - top_p)
    log_min_p_F: Tensor
    max_top_k: int


@dataclass(frozen=True)
class RowSampling:
    """How each row of a batch is drawn; rows may differ. The tensors are the parameters; the other fields are what the
    host knows about them, so that no decision waits for a device. Build it with `build`."""

    temperature_R: Tensor  # fp32; 1 where greedy
    top_k_R: Tensor  # int64; 0: no limit
    top_p_R: Tensor  # fp32
    min_p_R: Tensor  # fp32
    seed_R: Tensor  # int64
    sample_index_R: Tensor  # int64
    greedy_R: Tensor  # bool
    greedy_index: Tensor | None  # the greedy rows of a mixed batch
    all_greedy: bool
    filters: Filters | None

    @staticmethod
    def build(
        params: Sequence[SamplingParams],
        widths: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> RowSampling:
        """One row for each entry, or `widths[i]` consecutive rows for entry i."""
        rows = [p for p, width in zip(params, widths or [1] * len(params), strict=True) for _ in range(width)]
        greedy = [p.greedy for p in rows]
        all_greedy = all(greedy)
        mixed = any(greedy) and not all_greedy
        greedy_rows = [row for row, is_greedy in enumerate(greedy) if is_greedy]
        temperatures = [1.0 if p.greedy else max(p.temperature, MIN_TEMPERATURE) for p in rows]
        return RowSampling(
            temperature_R=torch.tensor(temperatures, device=device, dtype=torch.float32),
            top_k_R=torch.tensor([p.top_k for p in rows], device=device, dtype=torch.int64),
            top_p_R=torch.tensor([p.top_p for p in rows], device=device, dtype=torch.float32),
            min_p_R=torch.tensor([p.min_p for p in rows], device=device, dtype=torch.float32),
            seed_R=torch.tensor([p.seed for p in rows], device=device, dtype=torch.int64),
            sample_index_R=torch.tensor([p.sample_index for p in rows], device=device, dtype=torch.int64),
            greedy_R=torch.tensor(greedy, device=device, dtype=torch.bool),
            greedy_index=torch.tensor(greedy_rows, device=device) if mixed else None,
            all_greedy=all_greedy,
            filters=_filters(rows, device),
        )


def sample(logits_RV: Tensor, rows: RowSampling, noise_RV: Tensor | None = None) -> Tensor:
    """ids_R, int64: what every row emits. `noise_RV` may be left out only where all rows are greedy; then the logits
    are read once, in their own dtype. Mutates nothing."""
    if rows.all_greedy:
        return first_argmax(logits_RV)
    assert noise_RV is not None, "sampled rows need noise"
    return draw(process_logits(logits_RV, rows), noise_RV)


def process_logits(logits_RV: Tensor, rows: RowSampling) -> Tensor:
    """log p of the processed distribution, fp32 [R, V]; -inf where filtered. A greedy row is the point mass on its
    first largest logit. Equal candidates at the border of a filter are kept by lower id first.

    Sorts only where a row has top-k, top-p or min-p; synchronises only where such a row has no top-k.
    """
    if rows.all_greedy:
        return _point_mass(logits_RV)
    log_probs_RV = torch.log_softmax(logits_RV.to(torch.float32) / rows.temperature_R[:, None], dim=-1)
    filters = rows.filters
    if filters is not None and filters.row_index_F is None:
        log_probs_RV = _filtered(log_probs_RV, filters)
    elif filters is not None:
        log_probs_RV[filters.row_index_F] = _filtered(log_probs_RV[filters.row_index_F], filters)
    if rows.greedy_index is not None:
        log_probs_RV[rows.greedy_index] = _point_mass(logits_RV[rows.greedy_index])
    return log_probs_RV


def draw(log_probs_RV: Tensor, noise_RV: Tensor) -> Tensor:
    """ids_R: argmax(log p + noise), a draw from p where the noise is Gumbel; a point mass gives its token whatever the
    (finite) noise. Mutates nothing."""
    return first_argmax(log_probs_RV + noise_RV)


def first_argmax(values_RV: Tensor) -> Tensor:
    """ids_R of the largest value of each row, the lowest id among equals."""
    return values_RV.max(dim=-1).indices  # torch documents the first index for `max` along a dimension


def check_rows(logits_RV: Tensor) -> Tensor:
    """bad_R: rows that cannot be sampled, since they hold NaN or +inf, or nothing finite. One pass."""
    return ~torch.isfinite(logits_RV.amax(dim=-1))  # the maximum passes NaN on


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities under the raw target distribution (temperature 1, no penalty, no filter)."""

    chosen_R: Tensor
    top_ids_RN: Tensor  # most probable first, equals by lower id
    top_RN: Tensor


def logprobs(logits_RV: Tensor, chosen_R: Tensor, num_top: int) -> Logprobs:
    """The chosen token's and the `num_top` best tokens' log-probabilities, fp32."""
    log_probs_RV = torch.log_softmax(logits_RV.to(torch.float32), dim=-1)
    top_ids_RN = _best(log_probs_RV, min(num_top, logits_RV.shape[-1]))
    return Logprobs(
        chosen_R=log_probs_RV.gather(1, chosen_R[:, None])[:, 0],
        top_ids_RN=top_ids_RN,
        top_RN=log_probs_RV.gather(1, top_ids_RN),
    )


def _filters(rows: Sequence[SamplingParams], device: torch.device | str) -> Filters | None:
    index = [row for row, p in enumerate(rows) if not p.greedy and (p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0)]
    if not index:
        return None
    filtered = [rows[row] for row in index]
    top_ks = [p.top_k for p in filtered]
    log_tails = [math.log1p(-p.top_p) if p.top_p < 1.0 else -math.inf for p in filtered]
    log_min_ps = [math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in filtered]
    return Filters(
        row_index_F=torch.tensor(index, device=device) if len(index) < len(rows) else None,
        top_k_F=torch.tensor(top_ks, device=device),
        top_p_F=torch.tensor([p.top_p for p in filtered], device=device, dtype=torch.float32),
        log_tail_F=torch.tensor(log_tails, device=device, dtype=torch.float32),
        log_min_p_F=torch.tensor(log_min_ps, device=device, dtype=torch.float32),
        max_top_k=max(top_ks) if all(top_ks) else 0,
    )


def _filtered(log_probs_FV: Tensor, filters: Filters) -> Tensor:
    """Keeps, of each row's candidates in order, the longest run that every filter allows; a new tensor."""
    num_candidates_F, widest = _num_candidates(log_probs_FV, filters)
    ids_FK = _best(log_probs_FV, widest)
    values_FK = log_probs_FV.gather(1, ids_FK)
    units_FK = _units(values_FK)
    within_FK = torch.arange(widest, device=ids_FK.device) < num_candidates_F[:, None]
    units_FK = units_FK.masked_fill_(~within_FK, 0)
    before_FK = units_FK.cumsum(-1) - units_FK
    keep_FK = within_FK & (before_FK < _top_p_units(units_FK, filters)[:, None])
    keep_FK &= values_FK >= values_FK[:, :1] + filters.log_min_p_F[:, None]
    kept_units_F = units_FK.masked_fill_(~keep_FK, 0).sum(-1)
    log_kept_F = torch.log(kept_units_F.to(torch.float64) / UNITS).to(torch.float32)
    values_FK = (values_FK - log_kept_F[:, None]).masked_fill_(~keep_FK, -math.inf)
    return torch.full_like(log_probs_FV, -math.inf).scatter_(1, ids_FK, values_FK)


def _num_candidates(log_probs_FV: Tensor, filters: Filters) -> tuple[Tensor, int]:
    """How many of a row's most probable tokens can survive its filters, at most, and the largest such number.

    With top-k: k. Without: tokens whose probability is below (1 - top_p) / V hold less than 1 - top_p together, so
    top-p is satisfied before it comes to them; and min-p states its limit itself.
    """
    vocab_size = log_probs_FV.shape[-1]
    if filters.max_top_k:
        return filters.top_k_F.clamp(max=vocab_size), min(filters.max_top_k, vocab_size)
    min_p_floor_F = log_probs_FV.amax(-1) + filters.log_min_p_F
    floor_F = torch.maximum(filters.log_tail_F - math.log(vocab_size), min_p_floor_F)
    counted_F = (log_probs_FV >= floor_F[:, None]).sum(-1)
    num_candidates_F = torch.where(filters.top_k_F > 0, filters.top_k_F.clamp(max=vocab_size), counted_F)
    return num_candidates_F, int(num_candidates_F.max())


def _top_p_units(units_FK: Tensor, filters: Filters) -> Tensor:
    """A candidate stays while the candidates before it hold fewer units than this."""
    total_F = torch.where(filters.top_k_F > 0, units_FK.sum(-1), int(UNITS))
    limit_F = (filters.top_p_F.to(torch.float64) * total_F.to(torch.float64)).to(torch.int64).clamp_(min=1)
    return torch.where(filters.top_p_F < 1.0, limit_F, 2 * int(UNITS))


def _units(log_probs_FK: Tensor) -> Tensor:
    """exp in whole units of 2^-40."""
    num_candidates = log_probs_FK.shape[-1]
    padded = torch.nn.functional.pad(log_probs_FK, (0, -num_candidates % _CANDIDATES_ALIGNED), value=-math.inf)
    return padded.exp().mul_(UNITS).to(torch.int64)[:, :num_candidates]


def _best(log_probs_FV: Tensor, count: int) -> Tensor:
    """ids [F, count] of the most probable tokens, in order, equals by lower id."""
    num_blocks, rest = divmod(log_probs_FV.shape[-1], _BLOCK)
    if rest or 4 * count > num_blocks:
        return _ordered(log_probs_FV, torch.arange(log_probs_FV.shape[-1], device=log_probs_FV.device), count)
    # The best `count` tokens lie in the best `count` blocks, ordered alike: a token of another block has as many
    # better ones before it. So most of the vocabulary is only looked at for the largest of each block.
    best_FB = log_probs_FV.reshape(-1, num_blocks, _BLOCK).amax(-1)
    blocks_FK = _ordered(best_FB, torch.arange(num_blocks, device=best_FB.device), count)
    ids_FKB = blocks_FK[..., None] * _BLOCK + torch.arange(_BLOCK, device=best_FB.device)
    ids = ids_FKB.flatten(1)
    return _ordered(log_probs_FV.gather(1, ids), ids, count)


def _ordered(log_probs: Tensor, ids: Tensor, count: int) -> Tensor:
    """The `count` ids with the largest log-probabilities, in order, equals by lower id.

    One whole number orders both: a log-probability is never positive, so the bits of its magnitude rise as it falls.
    """
    keys = log_probs.abs().view(torch.int32).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(ids)
    return torch.topk(keys, count, dim=-1, largest=False).values.bitwise_and_(0xFFFFFFFF)


def _point_mass(logits_RV: Tensor) -> Tensor:
    nothing_RV = torch.full_like(logits_RV, -math.inf, dtype=torch.float32)
    return nothing_RV.scatter_(1, first_argmax(logits_RV)[:, None], 0.0)
