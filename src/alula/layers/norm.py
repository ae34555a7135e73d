"""RMS normalisation with its weight. R rows, H hidden."""

from __future__ import annotations

from torch import Tensor

from alula.kernels.reference.norm import rms_norm
from alula.layers.weights import WeightReader


class RMSNorm:
    def __init__(self, reader: WeightReader, name: str, size: int, eps: float) -> None:
        self._weight_H = reader.take(f"{name}.weight", (size,))
        self._eps = eps

    def __call__(self, x_RH: Tensor) -> Tensor:
        return rms_norm(x_RH, self._weight_H, self._eps)
