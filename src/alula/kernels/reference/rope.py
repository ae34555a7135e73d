"""Rotary positions in the half-split form (Su et al. 2021, as Llama's Hugging Face checkpoints are stored).

R rows, N heads, D head dimension, P positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from alula.core.shape import RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """One fp32 frequency for each pair of dimensions, [D/2].

    Llama 3.1's scaling: wavelengths above original/low are divided by `factor`, those below original/high kept, and
    the band between is blended (Llama 3.1 model card; `rope_type` "llama3" of Hugging Face configs).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (theta**exponent)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    wavelength = 2 * math.pi / plain
    low = scaling.original_max_position / scaling.low_frequency_factor
    high = scaling.original_max_position / scaling.high_frequency_factor
    blend = (scaling.original_max_position / wavelength - scaling.low_frequency_factor) / (
        scaling.high_frequency_factor - scaling.low_frequency_factor
    )
    middle = (1 - blend) * plain / scaling.factor + blend * plain
    scaled = torch.where(wavelength > low, plain / scaling.factor, plain)
    return torch.where((wavelength <= low) & (wavelength >= high), middle, scaled)


def rope_tables(num_positions: int, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0..P-1, each [P, D] in `dtype`. The first half of each sin row carries a minus sign,
    so that `apply_rope` needs one flip and no negation."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :].float()
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def apply_rope(x_RND: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
    """Rotates pairs (i, i + D/2) of every head by its row's angle. Returns a new tensor."""
    half = x_RND.shape[-1] // 2
    swapped_RND = x_RND.unflatten(-1, (2, half)).flip(-2).flatten(-2)
    return torch.addcmul(x_RND * cos_RD[:, None], swapped_RND, sin_RD[:, None])
