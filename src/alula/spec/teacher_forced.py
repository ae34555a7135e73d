"""Acceptance of a head along a given text: the cycles an engine would run if the target always said exactly this.

The target's features come from one pass over the text and the drafts are compared with it, so near ties of the target
do not matter. Used to check a head against its target and this engine's alignment against a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.slot_table import SlotTable
from alula.models.llama import LlamaModel
from alula.spec.drafting import ChainStart, Drafter, DraftState, Extension, greedy_chooser

_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class TeacherText:
    """A prompt and the target's answer to it, with the target's features of all its tokens [T, F]."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    features_TF: Tensor

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids, *self.answer_ids)


def read_features(
    target: LlamaModel, geometry: Geometry, table: SlotTable, ids: Sequence[int], boundaries: tuple[int, ...]
) -> Tensor:
    """Features of every token, [T, F]; the final hidden state where there are no boundaries. Writes the cache."""
    pieces = []
    for start in range(0, len(ids), _CHUNK_TOKENS):
        chunk = ids[start : start + _CHUNK_TOKENS]
        output = target(build_forward(geometry, [Segment(table, start, len(chunk))], chunk, "verify"), boundaries)
        kept = output.hidden_RH if output.features_RF is None else output.features_RF
        pieces.append(kept[: len(chunk)])
    return torch.cat(pieces)


def accepted_per_cycle(drafter: Drafter, table: SlotTable, text: TeacherText, steps: int) -> list[int]:
    """Drafts accepted in each cycle, greedy drafts, from the first answer token as the root to the text's end.

    The last cycles may reach past the end: there fewer drafts can be compared.
    """
    num_kv = len(text.prompt_ids)
    accepted = []
    state = _extend(drafter, table, text, 0, num_kv)
    while num_kv + 1 < len(text.ids):
        (drafts,) = drafter.chain([ChainStart(table, num_kv, steps, state)], greedy_chooser)
        ahead = text.ids[num_kv + 1 : num_kv + 1 + steps]
        agreed = _agreed(drafts, ahead)
        accepted.append(agreed)
        end = min(num_kv + agreed + 1, len(text.ids) - 1)
        state = _extend(drafter, table, text, num_kv, end)
        num_kv = end
    return accepted


def _agreed(drafts: Sequence[int], ahead: Sequence[int]) -> int:
    same = (draft == token for draft, token in zip(drafts, ahead, strict=False))
    return sum(1 for _ in takewhile(bool, same))


def tokens_per_cycle(accepted: Sequence[int], num_answer: int, steps: int) -> tuple[int, int]:
    """(tokens, cycles) over the cycles that cannot have been cut by the end of the answer."""
    tokens = cycles = 0
    root = 0
    for count in accepted:
        if root + steps + 1 < num_answer:
            tokens += count + 1
            cycles += 1
        root += count + 1
    return tokens, cycles


def _extend(drafter: Drafter, table: SlotTable, text: TeacherText, start: int, end: int) -> DraftState:
    extension = Extension(Segment(table, start, end - start), text.ids[start + 1 : end + 1], wants_state=True)
    (state,) = drafter.extend([extension], text.features_TF[start:end])
    assert state is not None  # it was asked for
    return state
