"""The SwiGLU block, sharded over the ranks. R rows, H hidden."""

from __future__ import annotations

from torch import Tensor

from alula.comm.group import Group
from alula.kernels.reference.activation import silu_and_multiply
from alula.layers.linear import ColumnParallelLinear, LinearChoice, Part, RowParallelLinear
from alula.layers.weights import WeightReader


class GatedMLP:
    """down(silu(gate x) * up x)."""

    def __init__(
        self,
        reader: WeightReader,
        prefix: str,
        hidden_size: int,
        intermediate_size: int,
        group: Group,
        choice: LinearChoice,
        bias: bool = False,
    ) -> None:
        parts = (Part(f"{prefix}.gate_proj", intermediate_size), Part(f"{prefix}.up_proj", intermediate_size))
        self._gate_up = ColumnParallelLinear(reader, parts, hidden_size, group, choice, bias)
        down = Part(f"{prefix}.down_proj", hidden_size)
        self._down = RowParallelLinear(reader, down, intermediate_size, group, choice, bias)

    def __call__(self, x_RH: Tensor, phase: str) -> Tensor:
        return self._down(silu_and_multiply(self._gate_up(x_RH)), phase)
