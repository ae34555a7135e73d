"""How many experts the rows of one forward touch: the union that a mixture-of-experts layer must read.

Assumes that rows choose independently and that every expert is equally likely. Real routers repeat themselves between
neighbouring tokens, so the true union tends to lie under this value: an expectation, not a measurement.
"""

from __future__ import annotations

from alula.core.errors import InvalidOption


def expected_union(num_experts: int, experts_per_row: int, rows: int) -> float:
    """Expected distinct experts of `rows` rows: E * (1 - (1 - k/E)^rows)."""
    if not 1 <= experts_per_row <= num_experts or rows < 0:
        raise InvalidOption(
            f"{experts_per_row} of {num_experts} experts for {rows} rows; expected 1 <= k <= E and rows from 0"
        )
    return float(num_experts * (1.0 - (1.0 - experts_per_row / num_experts) ** rows))


def largest_union(num_experts: int, experts_per_row: int, rows: int) -> int:
    """The most that `rows` rows can touch: no two rows share an expert."""
    return min(num_experts, experts_per_row * rows)
