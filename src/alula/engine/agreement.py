"""What all ranks must hold alike, asked of them now and then: bits, numbers, whether a capture worked.

Everything here is a collective: every rank calls it at the same place. On one rank nothing is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from alula.comm.device_deadline import settle
from alula.comm.faults import BITS, explained, name_ranks
from alula.comm.group import Group
from alula.core.errors import RankFailure

# Ranks compare a hash of their logits every so many cycles.
PERIOD = 64


def agreed_minimum(group: Group, count: int) -> int:
    """The smallest count of any rank. The number lies on the host, so no stream of a device waits for it."""
    if group.size == 1:
        return count
    counts = group.all_gather(torch.tensor([count], dtype=torch.int64), "other", dim=0)
    return int(counts.min())


def check_bits(group: Group, cycle: int, logits_RV: Tensor, hidden_RH: Tensor | None = None) -> None:
    """Every PERIOD cycles: raises RankFailure where the ranks hold different logits or hidden states. Waits for the
    device then.

    hidden_RH: what sums over the ranks gave, where it is at hand. Logits alone do not show a wrong sum: each rank
    computes a part of the vocabulary, and all are given the same parts.
    """
    if group.size == 1 or cycle % PERIOD:
        return
    settle(group, logits_RV.device, "verify")
    for what, values in (("logits", logits_RV), ("hidden states", hidden_RH)):
        if values is not None and len(set(digests := group.digests(values))) > 1:
            raise _disagreement(group, cycle, what, digests)


def odd_ranks(digests: Sequence[int]) -> tuple[int, ...]:
    """The ranks that differ from what more than half of them hold; none where there is no such majority."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests):
        return ()
    return tuple(rank for rank, own in enumerate(digests) if own != digest)


def _disagreement(group: Group, cycle: int, what: str, digests: Sequence[int]) -> RankFailure:
    odd = odd_ranks(digests)
    who = f"{name_ranks(odd)} against the others" if odd else "no majority says which one is wrong"
    why = "" if group.peers is None else f" {explained(group.peers.watch, BITS, odd or range(group.size))}"
    return RankFailure(
        f"cycle {cycle}: the ranks hold different {what} in phase verify ({who}); a collective gave them different "
        f"sums.{why}",
        rank=odd[0] if odd else None,
    )
