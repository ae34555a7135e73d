"""Which drafts the target agrees with. Pure: token ids in, token ids out.

The target draws one token at every node of the chain; the emitted tokens are its draws, whatever was drafted, so the
output follows the target's law exactly (specs/eagle3.md 4.1 greedy, 4.2 sampled with one noise).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Acceptance(msgspec.Struct, frozen=True):
    """accepted: drafts that agree. emitted: those and the target's own next token, accepted + 1 of them."""

    accepted: int
    emitted: tuple[int, ...]


def accept_chain(drafts: Sequence[int], draws: Sequence[int]) -> Acceptance:
    """drafts d_1..d_k, draws y_0..y_k (y_j is drawn after the root and j drafts): the longest prefix d_j = y_{j-1}."""
    if len(draws) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} draws, found {len(draws)}")
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == draws[accepted]:
        accepted += 1
    return Acceptance(accepted, tuple(draws[: accepted + 1]))
