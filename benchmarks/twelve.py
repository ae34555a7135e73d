"""The built-in head along the twelve reference answers (tests/data/twelve.json): accepted drafts of every cycle,
teacher-forced in fp32, against those of an independent implementation.

Used by a test with a few answers and one number of drafts, and by `make acceptance` with all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from alula.engine.setup import Parts
from alula.layers.slot_table import SlotTable
from alula.spec.drafting import Drafter
from alula.spec.teacher_forced import TeacherText, accepted_per_cycle, read_features, tokens_per_cycle

REFERENCE = Path(__file__).resolve().parent.parent / "tests" / "data" / "twelve.json"
MAX_DEVIATION = 0.01


@dataclass(frozen=True)
class Comparison:
    """One number of drafts. same_cycles: how many of all cycles begin where one of the reference's does, and accept as
    many drafts."""

    steps: int
    tokens_per_cycle: float
    reference: float
    same_cycles: int
    num_cycles: int

    @property
    def deviation(self) -> float:
        return abs(self.tokens_per_cycle / self.reference - 1)

    @property
    def good(self) -> bool:
        return self.deviation <= MAX_DEVIATION


def read_reference() -> dict[str, Any]:
    reference: dict[str, Any] = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return reference


def compare(parts: Parts, steps: Sequence[int], num_answers: int | None = None) -> list[Comparison]:
    """Runs the head of an fp32 engine along the answers, for each number of drafts.

    With all answers the reference is the file's own figure; with fewer, what its counts give for them.
    """
    answers = read_reference()["answers"][:num_answers]
    texts = [_text(parts, answer) for answer in answers]
    return [_compare(parts, k, answers, texts) for k in steps]


def _text(parts: Parts, answer: dict[str, Any]) -> TeacherText:
    assert parts.drafter is not None
    ids = [*answer["prompt_ids"], *answer["answer_ids"]]
    boundaries = parts.drafter.model.config.boundaries
    features_TF = read_features(parts.target, parts.geometry, _table(parts), ids, boundaries)
    return TeacherText(tuple(answer["prompt_ids"]), tuple(answer["answer_ids"]), features_TF)


def _compare(
    parts: Parts, steps: int, answers: Sequence[dict[str, Any]], texts: Sequence[TeacherText]
) -> Comparison:
    assert parts.drafter is not None
    drafter = Drafter(parts.drafter.model, parts.drafter.geometry)
    ours, theirs, same, total = [0, 0], [0, 0], 0, 0
    for answer, text in zip(answers, texts, strict=True):
        found = accepted_per_cycle(drafter, _table(parts), text, steps)
        wanted = answer["accepted_per_cycle"][str(steps)]
        _add(ours, tokens_per_cycle(found, len(text.answer_ids), steps))
        _add(theirs, tokens_per_cycle(wanted, len(text.answer_ids), steps))
        same += len(_by_root(found).items() & _by_root(wanted).items())
        total += len(found)
    reference = read_reference()["tokens_per_cycle"][str(steps)]
    if len(answers) < len(read_reference()["answers"]):
        reference = theirs[0] / theirs[1]
    return Comparison(steps, ours[0] / ours[1], reference, same, total)


def _by_root(accepted: Sequence[int]) -> dict[int, int]:
    """Drafts accepted by the cycle whose root is the answer's token of that number."""
    roots = accumulate((count + 1 for count in accepted), initial=0)
    return dict(zip(roots, accepted, strict=False))


def _add(sums: list[int], more: tuple[int, int]) -> None:
    sums[0] += more[0]
    sums[1] += more[1]


def _table(parts: Parts) -> SlotTable:
    return SlotTable(parts.config.page_tokens, list(range(1, parts.num_pages)))
