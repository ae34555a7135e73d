"""Draws on the host, for requests whose distribution is not in the device's tables: penalties, reported logprobs.

Waits for the device. R rows, W rows of a request, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from alula.engine.request import TokenLogprob
from alula.engine.runner import TargetRows
from alula.engine.sampler import TokenSampler
from alula.engine.scheduler import Scheduled
from alula.engine.setup import Parts


@dataclass(frozen=True)
class HostDrawn:
    """One entry a row. logprobs: by request id, where asked."""

    tokens: list[int]
    bad: list[bool]
    logprobs: dict[str, list[TokenLogprob]]


class HostDraws:
    """The engine's own sampler over the logits of a batch in which every request has the same width."""

    def __init__(self, parts: Parts) -> None:
        self._sampler = TokenSampler(parts.shape.vocab_size, parts.device)

    def draw(
        self, parts: Sequence[Scheduled], drafts: Sequence[Sequence[int]], logits_RV: Tensor, width: int
    ) -> HostDrawn:
        """`drafts` are the first width - 1 drafts of each part, whether they may count or not."""
        equal = [Scheduled(part.request, 1, width - 1, samples=True, is_prefill=False) for part in parts]
        firsts = tuple(i * width for i in range(len(parts)))
        drawn = self._sampler.draw(equal, drafts, TargetRows(None, logits_RV, firsts, frozenset()))
        tokens = [token for i in range(len(parts)) for token in drawn.tokens.get(i, [0] * width)]
        bad = [i in drawn.broken for i in range(len(parts)) for _ in range(width)]
        by_id = {parts[i].request.spec.request_id: found for i, found in drawn.logprobs.items()}
        return HostDrawn(tokens, bad, by_id)
