"""The built-in head accepts what an independent implementation accepted (tests/data/twelve.json), within 1 %."""

from __future__ import annotations

import pytest
from twelve import compare, read_reference

from alula.engine.setup import Parts
from alula.spec.teacher_forced import tokens_per_cycle


def test_the_built_in_head_accepts_what_the_reference_accepted(smollm2: Parts) -> None:
    """Three drafts, three answers; `make acceptance` takes all of both."""
    (found,) = compare(smollm2, [3], num_answers=3)
    assert found.good, found
    assert found.same_cycles >= 0.97 * found.num_cycles


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7])
def test_the_files_own_figures_follow_from_its_counts(steps: int) -> None:
    """Our definition of tokens per cycle, applied to the reference's counts, is the reference's."""
    reference = read_reference()
    pairs = [
        tokens_per_cycle(answer["accepted_per_cycle"][str(steps)], len(answer["answer_ids"]), steps)
        for answer in reference["answers"]
    ]
    tokens, cycles = (sum(column) for column in zip(*pairs, strict=True))
    assert tokens / cycles == pytest.approx(reference["tokens_per_cycle"][str(steps)], abs=6e-5)
