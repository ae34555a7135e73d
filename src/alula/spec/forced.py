"""Acceptance that is decided beforehand: how many drafts count in which cycle, whatever the target says of them.

For measuring what cycles cost where no good head exists. Everything is computed as always; only the number of drafts
that count comes from a table, so the text is meaningless.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from alula.core.config import check_forced

TABLE_SIZE = 1024
# Shuffled in small blocks, so that the mean over any stretch of cycles is near the mean of all.
_BLOCK = 8
# Requests that run together begin at different places of the table. Odd: every place is somebody's first.
_STRIDE = 397


def forced_acceptance(tokens_per_cycle: float, steps: int, seed: int) -> tuple[int, ...]:
    """TABLE_SIZE accepted counts, a mix of the whole numbers around tokens_per_cycle - 1 with that mean.

    The mean is exact to half an entry of the table. Raises InvalidOption outside 1 to steps + 1.
    """
    check_forced(tokens_per_cycle, steps)
    # Whole entries, so that 1024 roundings of a sum do not move the mean.
    total = round((tokens_per_cycle - 1.0) * TABLE_SIZE)
    sums = [total * i // TABLE_SIZE for i in range(TABLE_SIZE + 1)]
    counts = [after - before for before, after in itertools.pairwise(sums)]
    shuffled: list[int] = []
    generator = random.Random(seed)
    for start in range(0, TABLE_SIZE, _BLOCK):
        block = counts[start : start + _BLOCK]
        generator.shuffle(block)
        shuffled += block
    return tuple(shuffled)


def forced_place(arrival: int, cycle: int) -> int:
    """Where in the table the `cycle`-th decode cycle of the `arrival`-th request looks."""
    return (arrival * _STRIDE + cycle) % TABLE_SIZE


def forced_count(table: Sequence[int], arrival: int, cycle: int, num_drafts: int) -> int:
    """Drafts that count in that cycle: what the table says, but no more than there are."""
    return min(table[forced_place(arrival, cycle)], num_drafts)
