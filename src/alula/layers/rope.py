"""Rotary tables of one model, sized by the engine's context. R rows, D head dimension, P positions."""

from __future__ import annotations

import torch
from torch import Tensor

from alula.core.shape import RopeScaling
from alula.kernels.reference.fused import Rope
from alula.kernels.reference.rope import inverse_frequencies, rope_tables

# A cycle that was launched before its request's end was known runs past the context; its tokens are dropped.
_POSITIONS_BEYOND = 32
# An engine's probes go so far, however short its context is.
_LEAST_POSITIONS = 96


class RotaryPositions:
    """cos and sin rows by absolute position."""

    def __init__(
        self,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        frequencies = inverse_frequencies(head_dim, theta, scaling)
        cos_PD, sin_PD = rope_tables(max(num_positions, _LEAST_POSITIONS) + _POSITIONS_BEYOND, frequencies, dtype)
        self._cos_PD, self._sin_PD = cos_PD.to(device), sin_PD.to(device)

    def at(self, positions_R: Tensor) -> Rope:
        """The tables with the rows' positions, for kernels that look up for themselves."""
        return Rope(self._cos_PD, self._sin_PD, positions_R)

    def __call__(self, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos_PD.index_select(0, positions_R), self._sin_PD.index_select(0, positions_R)
