"""What a gather leaves behind, one tensor a rank, as one tensor. Knows nothing of where the parts came from."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def join_ranks(gathered: Tensor, dim: int) -> Tensor:
    """[ranks, *shape] as the ranks' tensors side by side along `dim` of shape. No copy where one row has nothing to be
    interleaved with: the logits of a single token."""
    num_ranks, *shape = gathered.shape
    if not shape:
        raise ValueError("tensors without a dimension cannot be joined along one")
    dim %= len(shape)
    if math.prod(shape[:dim]) == 1:
        return gathered.view(*shape[:dim], num_ranks * shape[dim], *shape[dim + 1 :])
    return torch.cat(gathered.unbind(0), dim)
