"""RMS normalisation (Zhang and Sennrich 2019). Rows are independent of each other.

R rows, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x_RH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, the mean in fp32. Same shape and dtype as `x_RH`."""
    return torch.nn.functional.rms_norm(x_RH, (x_RH.shape[-1],), weight_H, eps)
