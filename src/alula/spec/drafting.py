"""Drafting a chain, and keeping the draft's keys and values true. Batched over requests.

Two passes (specs/eagle3.md section 2). *Extend* feeds committed positions with the target's own features: it writes the
draft's keys and values for them, over what drafting left there, and its last row gives the first draft. *Chain* feeds
the draft its own output, one row a request and step: k drafts cost k-1 forwards. Knows nothing of acceptance.

R rows, B requests, H draft hidden, F target features, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.slot_table import SlotTable
from alula.spec.draft_model import DraftModel


@dataclass(frozen=True)
class DraftState:
    """Where a request's next chain begins: the last committed pair's output. Belongs to one committed length."""

    feedback_1H: Tensor
    logits_1D: Tensor


@dataclass(frozen=True)
class ChainStart:
    """A request that drafts: `num_kv` committed positions, `steps` drafts wanted (at least 1)."""

    table: SlotTable
    num_kv: int
    steps: int
    state: DraftState


@dataclass(frozen=True)
class Extension:
    """Committed positions of one request whose features are new.

    successors: the token after each position. wants_state: whether the last row's draft distribution is needed.
    """

    segment: Segment
    successors: Sequence[int]
    wants_state: bool


# (step, indices of the requests that still draft, their logits) -> the draft id of each, int64.
Chooser = Callable[[int, list[int], Tensor], Tensor]


class Drafter:
    """The draft model over its own cache, whose slots are the target's."""

    def __init__(self, model: DraftModel, geometry: Geometry) -> None:
        self.model = model
        self.geometry = geometry

    def extend(self, extensions: Sequence[Extension], features_RF: Tensor) -> list[DraftState | None]:
        """One draft forward over all rows of all extensions; rows of `features_RF` in the same order."""
        successors = [token for extension in extensions for token in extension.successors]
        segments = [extension.segment for extension in extensions]
        forward = build_forward(self.geometry, segments, successors, "extend")
        output = self.model(forward, self.model.fuse(features_RF))
        reads, last = [], -1
        for extension in extensions:
            last += extension.segment.width
            if extension.wants_state:
                reads.append(last)
        states = iter(self._states(output.feedback_RH, output.normed_RH, reads))
        return [next(states) if extension.wants_state else None for extension in extensions]

    def _states(self, feedback_RH: Tensor, normed_RH: Tensor, reads: list[int]) -> list[DraftState]:
        if not reads:
            return []
        logits_BD = self.model.logits(_rows(normed_RH, reads), "extend")
        feedback_BH = _rows(feedback_RH, reads)
        return [DraftState(feedback_BH[i : i + 1], logits_BD[i : i + 1]) for i in range(len(reads))]

    def chain(self, starts: Sequence[ChainStart], choose: Chooser) -> list[list[int]]:
        """Drafts of each request, as target token ids, `steps` of them."""
        drafts: list[list[int]] = [[] for _ in starts]
        active = list(range(len(starts)))
        feedback_BH = torch.cat([start.state.feedback_1H for start in starts])
        logits_BD = torch.cat([start.state.logits_1D for start in starts])
        for step in range(max(start.steps for start in starts)):
            tokens_B = self.model.hot_D.index_select(0, choose(step, active, logits_BD))
            for i, token in zip(active, tokens_B.tolist(), strict=True):
                drafts[i].append(token)
            still = [row for row, i in enumerate(active) if starts[i].steps > step + 1]
            if not still:
                break
            active = [active[row] for row in still]
            # The first forward is at the first position that is not committed, the next one after it.
            segments = [Segment(starts[i].table, starts[i].num_kv + step, 1) for i in active]
            forward = build_forward(self.geometry, segments, _rows(tokens_B, still), "draft")
            output = self.model(forward, _rows(feedback_BH, still))
            feedback_BH, logits_BD = output.feedback_RH, self.model.logits(output.normed_RH, "draft")
        return drafts


def greedy_chooser(step: int, active: list[int], logits_BD: Tensor) -> Tensor:
    """The likeliest draft id of each row."""
    return logits_BD.argmax(dim=-1)


def _rows(tensor: Tensor, rows: list[int]) -> Tensor:
    if len(rows) == tensor.shape[0]:
        return tensor
    return tensor[rows]
