"""What all ranks must hold alike, asked of them now and then: bits, numbers, whether a capture worked.

Everything here is a collective: every rank calls it at the same place. On one rank nothing is asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def check_bits(group: Group, cycle: int, logits_RV: Tensor) -> None:
    """Every PERIOD cycles: raises RankFailure where the ranks hold different logits. Waits for the device then."""
    if group.size > 1 and cycle % PERIOD == 0 and not group.bits_agree(logits_RV):
        raise RankFailure(f"cycle {cycle}: the ranks hold different logits; a collective gave them different sums")
