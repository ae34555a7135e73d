"""Draws tokens for the rows of a cycle: the target's at every sampled row, the draft's at every step of a chain.

Both use one noise, keyed by seed, sample and absolute position (DESIGN 4.5), so that the draft agrees with the target
as often as it can and the emitted tokens do not depend on the draft. Knows parts and rows, not how logits were made.

S sampled rows, V target vocabulary, D draft vocabulary, B requests that draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from alula.engine.request import Request, TokenLogprob
from alula.engine.runner import TargetRows
from alula.engine.scheduler import Scheduled
from alula.kernels.reference.noise import gumbel, gumbel_at
from alula.kernels.reference.penalties import apply_penalties
from alula.kernels.reference.sampling import RowSampling, check_rows, first_argmax, logprobs, sample
from alula.spec.drafting import Chooser


@dataclass
class Drawn:
    """By index of the part: the target's draws, and log-probabilities where asked. broken: parts without a draw."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)


class TokenSampler:
    """Stateless but for the vocabulary's size and the device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    def draw(self, parts: Sequence[Scheduled], drafts: Sequence[Sequence[int]], rows: TargetRows) -> Drawn:
        """One token at every sampled row. A part whose logits are not numbers is `broken`, the others are not hurt."""
        drawn = Drawn()
        assert rows.logits_SV is not None
        sampling = [(i, first) for i, first in enumerate(rows.first_sampled) if first is not None]
        raw_SV = rows.logits_SV
        bad_S = check_rows(raw_SV).tolist()
        widths = [parts[i].num_drafts + 1 for i, _ in sampling]
        params = [parts[i].request.spec.sampling for i, _ in sampling]
        logits_SV = self._penalised(raw_SV, parts, drafts, sampling)
        if all(own.greedy for own in params):
            tokens_S = first_argmax(logits_SV)
        else:
            row_sampling = RowSampling.build(params, widths, self._device)
            tokens_S = sample(
                logits_SV, row_sampling, self._noise(row_sampling, [parts[i] for i, _ in sampling], widths)
            )
        tokens = tokens_S.tolist()
        for (i, first), width in zip(sampling, widths, strict=True):
            if any(bad_S[first : first + width]):
                drawn.broken.add(i)
                continue
            drawn.tokens[i] = tokens[first : first + width]
            wanted = parts[i].request.spec.sampling.logprobs
            if wanted is not None:
                rows_of_part = slice(first, first + width)
                drawn.logprobs[i] = _logprobs(raw_SV[rows_of_part], tokens_S[rows_of_part], wanted)
        return drawn

    def chooser(self, parts: Sequence[Scheduled], hot_D: Tensor) -> Chooser:
        """How the draft picks its token at each step: from its own processed distribution, with the target's noise."""

        def choose(step: int, active: list[int], logits_BD: Tensor) -> Tensor:
            params = [parts[i].request.spec.sampling for i in active]
            if all(own.greedy for own in params):
                return first_argmax(logits_BD)
            row_sampling = RowSampling.build(params, device=self._device)
            drafting = [parts[i] for i in active]
            return sample(logits_BD, row_sampling, self._draft_noise(row_sampling, drafting, step, hot_D))

        return choose

    def _noise(self, rows: RowSampling, parts: Sequence[Scheduled], widths: Sequence[int]) -> Tensor:
        """The noise of every sampled row: positions from the first unknown token on. Greedy rows ignore theirs."""
        if self._device.type == "cpu":
            return _joined([_window(p.request, 0, w, self._vocab_size) for p, w in zip(parts, widths, strict=True)])
        positions = [len(p.request.tokens) + j for p, w in zip(parts, widths, strict=True) for j in range(w)]
        positions_S = torch.tensor(positions, device=self._device)
        return gumbel(rows.seed_R, rows.sample_index_R, positions_S, self._vocab_size)

    def _draft_noise(self, rows: RowSampling, parts: Sequence[Scheduled], step: int, hot_D: Tensor) -> Tensor:
        """The same noise at the draft's tokens, for the position that a chain has reached."""
        if self._device.type == "cpu":
            noise_BV = _joined([_window(part.request, step, 1, self._vocab_size) for part in parts])
            return noise_BV.index_select(1, hot_D)
        positions_B = torch.tensor([len(part.request.tokens) + step for part in parts], device=self._device)
        return gumbel_at(rows.seed_R, rows.sample_index_R, positions_B, hot_D)

    def _penalised(
        self,
        logits_SV: Tensor,
        parts: Sequence[Scheduled],
        drafts: Sequence[Sequence[int]],
        sampling: Sequence[tuple[int, int]],
    ) -> Tensor:
        """A copy with the penalties of each row's own path, or the logits themselves where nobody asked for any."""
        penalised = [(i, first) for i, first in sampling if parts[i].request.counts is not None]
        if not penalised:
            return logits_SV
        copy_SV = logits_SV.float().clone() if logits_SV.dtype == torch.float32 else logits_SV.float()
        for i, first in penalised:
            request = parts[i].request
            assert request.counts is not None
            drafts_D = torch.tensor(drafts[i], dtype=torch.int64, device=self._device)
            rows_WV = copy_SV[first : first + len(drafts[i]) + 1]
            apply_penalties(rows_WV, request.counts, request.spec.sampling, drafts_D)
        return copy_SV


def _window(request: Request, offset: int, num_rows: int, vocab_size: int) -> Tensor:
    if request.noise is None:
        return torch.zeros(num_rows, vocab_size)
    return request.noise.rows(len(request.tokens) + offset, num_rows)


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _logprobs(logits_WV: Tensor, tokens_W: Tensor, num_top: int) -> list[TokenLogprob]:
    found = logprobs(logits_WV, tokens_W, num_top)
    columns = zip(
        tokens_W.tolist(), found.chosen_R.tolist(), found.top_ids_RN.tolist(), found.top_RN.tolist(), strict=True
    )
    return [
        TokenLogprob(token_id=token, logprob=chosen, top=tuple(zip(ids, values, strict=True)))
        for token, chosen, ids, values in columns
    ]
