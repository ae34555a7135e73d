"""Repetition, presence and frequency penalties. Knows nothing of sampling or of who drafts.

W rows of one request in a forward (its root, then its drafts), V vocabulary, D drafts, S distinct tokens of a context.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from alula.core.sampling import SamplingParams


class TokenCounts:
    """Which tokens a request's context holds: prompt and output as seen, output also counted.

    Only a request with a penalty needs one. It grows by `append`; drafts never enter it, they are given to
    `apply_penalties`, so nothing has to be taken back when one is rejected.
    """

    def __init__(self, vocab_size: int, prompt_ids: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.output_counts_V = torch.zeros(vocab_size, dtype=torch.int32, device=device)
        self.seen_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.ids_S = torch.empty(0, dtype=torch.int64, device=device)  # the seen tokens, each once
        self._seen: set[int] = set()
        self._see(prompt_ids)

    def append(self, output_ids: Sequence[int]) -> None:
        """Adds emitted tokens to the context."""
        ids = torch.tensor(output_ids, dtype=torch.int64, device=self.seen_V.device)
        self.output_counts_V.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        self._see(output_ids)

    def _see(self, ids: Sequence[int]) -> None:
        new = [token_id for token_id in dict.fromkeys(ids) if token_id not in self._seen]
        if new:
            new_ids = torch.tensor(new, dtype=torch.int64, device=self.seen_V.device)
            self._seen.update(new)
            self.seen_V[new_ids] = True
            self.ids_S = torch.cat((self.ids_S, new_ids))


def apply_penalties(
    logits_WV: Tensor, context: TokenCounts, params: SamplingParams, drafts_D: Tensor | None = None
) -> None:
    """Penalises, in place, the fp32 logits of one request's rows: row i as if drafts 1..i had been emitted already.

    Repetition (Keskar et al. 2019, CTRL): the logit of a token in prompt or output is divided by the penalty where
    positive, else multiplied. Then frequency, for each time a token was output, and presence, once if it was at all.
    `drafts_D` is int64 with W - 1 entries or more (the rest is ignored); None serves one row. Touches only the columns
    of the context and the drafts.
    """
    ids_S = context.ids_S
    num_rows = logits_WV.shape[0]
    drafts_D = ids_S[:0] if drafts_D is None else drafts_D[: num_rows - 1]
    raw_WD = logits_WV[:, drafts_D]
    logits_WV[:, ids_S] = _penalised(logits_WV[:, ids_S], context.output_counts_V[ids_S], params)
    # Drafted tokens once more, from their raw logits, with what each row's own path adds. A token that is not on a
    # row's path gets there what the context alone gives it, and one that was drafted twice gets the same value twice.
    repeats_DD = (drafts_D[:, None] == drafts_D).to(torch.int32)
    on_path_WD = torch.nn.functional.pad(repeats_DD.cumsum(0), (0, 0, 1, 0))
    counts_WD = context.output_counts_V[drafts_D] + on_path_WD
    seen_WD = context.seen_V[drafts_D] | (on_path_WD > 0)
    logits_WV[:, drafts_D] = torch.where(seen_WD, _penalised(raw_WD, counts_WD, params), raw_WD)


def _penalised(logits: Tensor, counts: Tensor, params: SamplingParams) -> Tensor:
    """What becomes of the logits of tokens in the context, `counts` of each in the output."""
    repetition = params.repetition_penalty
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    return repeated - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
