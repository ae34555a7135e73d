"""A matrix product with constant weights, in plain torch. Does not know tensor parallelism or where weights come from.

R rows, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Linear:
    """y = x W^T + b. Holds the weight; each call is one `torch.nn.functional.linear`."""

    name = "torch"

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self.weight_OI = weight_OI.contiguous()
        self.bias_O = bias_O

    def __call__(self, x_RI: Tensor) -> Tensor:
        return torch.nn.functional.linear(x_RI, self.weight_OI, self.bias_O)
