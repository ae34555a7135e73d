"""RMS normalisation with its weight, alone or together with the addition before it. R rows, H hidden."""

from __future__ import annotations

from torch import Tensor

from alula.kernels.reference.fused import Norm
from alula.layers.kernels import Kernels
from alula.layers.weights import WeightReader


class RMSNorm:
    def __init__(self, reader: WeightReader, name: str, size: int, eps: float, kernels: Kernels) -> None:
        self._weight_H = reader.take(f"{name}.weight", (size,))
        self._eps = eps
        self._rows = kernels.rows

    @property
    def norm(self) -> Norm:
        """For products that take the norm along."""
        return Norm(self._weight_H, self._eps)

    def __call__(self, x_RH: Tensor) -> Tensor:
        return self._rows.rms_norm(x_RH, self._weight_H, self._eps)

    def after_adding(self, x_RH: Tensor, delta_RH: Tensor) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm)."""
        return self._rows.add_rms_norm(x_RH, delta_RH, self._weight_H, self._eps)
