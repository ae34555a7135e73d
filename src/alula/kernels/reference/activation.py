"""SwiGLU (Shazeer 2020). Knows nothing of the products before and after it.

R rows, M MLP width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def silu_and_multiply(gate_up_R2M: Tensor) -> Tensor:
    """silu(gate) * up, where the gate is the first half of the columns -> [R, M]."""
    gate_RM, up_RM = gate_up_R2M.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate_RM).mul_(up_RM)
