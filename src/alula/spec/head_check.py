"""Does a head fit its target? Scores it along the target's own text under each reading of its config.

Wrong auxiliary layers or a wrong feedback never break the output, they only wreck acceptance, and the published formats
count layers in three ways (specs/eagle3.md 1.1 and 1.4). So the neighbours of the configured boundaries and both
feedbacks are tried, and a better one is reported with the option that selects it.

T tokens of a text, D draft vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import msgspec
import torch

from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.slot_table import SlotTable
from alula.models.llama import LlamaModel
from alula.spec.draft_model import DraftModel
from alula.spec.drafting import Drafter
from alula.spec.teacher_forced import TeacherText, accepted_per_cycle, read_features, tokens_per_cycle

OFFSETS = (-1, 0, 1)
# A reading must win by this much before it is called better.
MARGIN_POINTS = 3.0
MARGIN_TOKENS = 0.03
# Below this a head of any quality is broken rather than weak: a random one agrees about never.
FLOOR_PERCENT = 10.0
CHECK_STEPS = 3


class HeadReport(msgspec.Struct, frozen=True, kw_only=True):
    """agreement_percent: by offset of the boundaries, how often the first draft is the target's token (None where the
    offset leaves the target). tokens_per_cycle: by feedback, at `CHECK_STEPS` drafts. warnings: what to change."""

    boundaries: tuple[int, ...]
    feedback: str
    num_tokens: int
    agreement_percent: dict[str, float | None]
    tokens_per_cycle: dict[str, float]
    warnings: tuple[str, ...]


class HeadChecker:
    """One target and one head over caches of their own."""

    def __init__(self, target: LlamaModel, geometry: Geometry, drafter: Drafter, table: SlotTable) -> None:
        self._target = target
        self._geometry = geometry
        self._drafter = drafter
        self._table = table

    def check(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> HeadReport:
        """texts: prompts and the target's answers, about 512 answer tokens in all."""
        config = self._drafter.model.config
        shifted = {offset: tuple(b + offset for b in config.boundaries) for offset in OFFSETS}
        if not config.boundaries:
            shifted = {0: ()}
        agreement = {f"{o:+d}": self._agreement(texts, boundaries) for o, boundaries in shifted.items()}
        cycles = {feedback: self._tokens_per_cycle(texts, feedback) for feedback in ("pre", "post")}
        return HeadReport(
            boundaries=config.boundaries,
            feedback=config.feedback,
            num_tokens=sum(len(answer) for _, answer in texts),
            agreement_percent=agreement,
            tokens_per_cycle=cycles,
            warnings=_warnings(config.boundaries, config.feedback, agreement, cycles),
        )

    def first_drafts_right(
        self, prompt: Sequence[int], answer: Sequence[int], boundaries: tuple[int, ...]
    ) -> list[bool]:
        """For each answer token after the first, whether the draft proposes it when the head reads `boundaries`."""
        return self._first_drafts_right(TeacherText(tuple(prompt), tuple(answer), torch.empty(0)), boundaries)

    def _agreement(
        self, texts: Sequence[tuple[Sequence[int], Sequence[int]]], boundaries: tuple[int, ...]
    ) -> float | None:
        if any(not 0 <= b <= self._target.shape.num_layers for b in boundaries):
            return None
        agreed = total = 0
        for prompt, answer in texts:
            right = self.first_drafts_right(prompt, answer, boundaries)
            agreed += sum(right)
            total += len(right)
        return 100.0 * agreed / max(1, total)

    def _first_drafts_right(self, text: TeacherText, boundaries: tuple[int, ...]) -> list[bool]:
        """For each answer token after the first: did the draft, given everything before it, propose it?"""
        ids, model = text.ids, self._drafter.model
        features_TF = read_features(self._target, self._geometry, self._table, ids, boundaries)
        rows = len(ids) - 1
        segment = Segment(self._table, 0, rows)
        forward = build_forward(self._drafter.geometry, [segment], ids[1:], "extend")
        output = model(forward, model.fuse(features_TF[:rows]))
        # Row i has read tokens 0..i+1 and predicts i+2; the first answer token is the root of the first cycle.
        first = len(text.prompt_ids) - 1
        logits = model.logits(output.normed_RH[first : rows - 1], "extend")
        drafted = model.hot_D[logits.argmax(-1)].tolist()
        return [draft == token for draft, token in zip(drafted, ids[first + 2 :], strict=True)]

    def _tokens_per_cycle(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]], feedback: str) -> float:
        model = with_feedback(self._drafter.model, feedback)
        drafter = Drafter(model, self._drafter.geometry)
        tokens = cycles = 0
        for prompt, answer in texts:
            ids = (*prompt, *answer)
            boundaries = model.config.boundaries
            features_TF = read_features(self._target, self._geometry, self._table, ids, boundaries)
            text = TeacherText(tuple(prompt), tuple(answer), features_TF)
            accepted = accepted_per_cycle(drafter, self._table, text, CHECK_STEPS)
            found = tokens_per_cycle(accepted, len(answer), CHECK_STEPS)
            tokens, cycles = tokens + found[0], cycles + found[1]
        return tokens / max(1, cycles)


def with_feedback(model: DraftModel, feedback: str) -> DraftModel:
    """The same weights, handing on the hidden state before ("pre") or after ("post") the final norm."""
    other = copy.copy(model)
    other.config = msgspec.structs.replace(model.config, feedback=feedback)
    return other


def _warnings(
    boundaries: tuple[int, ...],
    feedback: str,
    agreement: dict[str, float | None],
    cycles: dict[str, float],
) -> tuple[str, ...]:
    warnings = []
    own = agreement["+0"] or 0.0
    best = max(agreement, key=lambda offset: agreement[offset] or 0.0)
    best_percent = agreement[best] or 0.0
    if best_percent > own + MARGIN_POINTS:
        better = ",".join(str(b + int(best)) for b in boundaries)
        warnings.append(
            f"boundaries {list(boundaries)} agree in {own:.1f} % of tokens, those at offset {best} in "
            f"{best_percent:.1f} %: the config counts layers another way; use --aux-boundaries {better}"
        )
    other = "post" if feedback == "pre" else "pre"
    if cycles[other] > cycles[feedback] + MARGIN_TOKENS:
        warnings.append(
            f"feedback {feedback!r} gives {cycles[feedback]:.3f} tokens per cycle at {CHECK_STEPS} drafts, {other!r} "
            f"{cycles[other]:.3f}: the head was trained with the other; use --feedback {other}"
        )
    if max(own, best_percent) < FLOOR_PERCENT:
        warnings.append(
            f"the first draft agrees in only {own:.1f} % of tokens: this head was not trained for this target, or its "
            "vocabulary map or weights are wrong"
        )
    return tuple(warnings)
