"""The sum over ranks for backends that hold every rank's values: in rank order, so that all ranks get the same bits.

Knows nothing of where the values came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)


def sum_in_rank_order(parts: Sequence[Tensor], out: Tensor) -> None:
    """Writes the sum of two or more parts into `out` (which may be one of them, where it lies first or second).

    bf16 and fp16 are summed in fp32 and rounded once. An element's sum depends on nothing but that element of each
    part: not on its place, nor on how many there are, which keeps rows independent of each other.
    """
    if len(parts) == 2:
        torch.add(parts[0], parts[1], out=out)  # of two halves, torch's own addition is one in fp32, rounded once
    elif out.dtype in HALF_DTYPES:
        total = parts[0].to(torch.float32)
        for part in parts[1:]:
            total.add_(part)
        out.copy_(total)
    else:
        torch.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            out.add_(part)
