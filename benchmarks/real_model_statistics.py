"""Does speculation change the law of a real model's tokens? A two-sample test on one prompt (specs/eagle3.md 4.5, 5).

Both sides sample the same prompt many times, under different seeds so that the one noise cannot make them equal token
for token. Pearson's statistic on the counts of tokens 1, 2 and 5, rare tokens pooled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from toy_statistics import chi_square_p

from alula import LLM, SamplingParams
from alula.core.config import EngineConfig, SpeculationConfig

PROMPT = "Once upon a time"  # short, since it is read again for every answer
POSITIONS = (1, 2, 5)
BATCH = 64
MIN_EXPECTED = 5.0
MIN_P = 1e-4


def compare_laws(model: str, num_runs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Draws `num_runs` answers on each side and tests each position."""
    speculation = SpeculationConfig(steps=3, speculate="always")
    config = EngineConfig(dtype="bfloat16", max_batch=BATCH, speculation=speculation)
    with LLM(model, config=config) as llm:
        sides = [_draw(llm, steps, num_runs, first_seed, say) for steps, first_seed in ((0, 1), (3, 10**9))]
    rows = []
    for position in POSITIONS:
        plain, drafted = (
            Counter(answer[position - 1] for answer in side if len(answer) >= position) for side in sides
        )
        statistic, degrees = two_sample(plain, drafted)
        rows.append({"token": position, "cells": degrees + 1, "p_value": chi_square_p(statistic, degrees)})
        say(f"token {position}: p = {rows[-1]['p_value']:.3g} over {degrees + 1} cells")
    return {"runs": num_runs, "rows": rows, "passed": all(row["p_value"] > MIN_P for row in rows)}


def two_sample(left: Counter[int], right: Counter[int]) -> tuple[float, int]:
    """Pearson's statistic for "one law" and its degrees of freedom; cells that both sides hardly saw are pooled."""
    num_left, num_right = left.total(), right.total()
    share = num_left / (num_left + num_right)
    cells: list[tuple[int, int]] = []
    rest = [0, 0]
    for token in left | right:
        both = left[token] + right[token]
        if both * min(share, 1 - share) >= MIN_EXPECTED:
            cells.append((left[token], right[token]))
        else:
            rest[0] += left[token]
            rest[1] += right[token]
    if sum(rest):
        cells.append((rest[0], rest[1]))
    statistic = 0.0
    for a, b in cells:
        for seen, part in ((a, share), (b, 1 - share)):
            expected = (a + b) * part
            statistic += (seen - expected) ** 2 / expected
    return statistic, max(1, len(cells) - 1)


def _draw(
    llm: LLM, steps: int, num_runs: int, first_seed: int, say: Callable[[str], None]
) -> list[tuple[int, ...]]:
    answers: list[tuple[int, ...]] = []
    while len(answers) < num_runs:
        count = min(16 * BATCH, num_runs - len(answers))
        seeds = range(first_seed + len(answers), first_seed + len(answers) + count)
        sampling = [SamplingParams(temperature=1.0, seed=seed, max_tokens=max(POSITIONS)) for seed in seeds]
        done = llm.generate([PROMPT] * count, sampling, steps=steps)
        answers += [completion.token_ids for completion in done]
        say(f"{'speculative' if steps else 'plain'}: {len(answers)} of {num_runs} answers")
    return answers
