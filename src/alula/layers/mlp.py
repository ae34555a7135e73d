"""The SwiGLU block, sharded over the ranks. R rows, H hidden."""

from __future__ import annotations

from torch import Tensor

from alula.comm.group import Group
from alula.kernels.reference.fused import Deferred, Norm, Stream
from alula.layers.block_input import BlockInput
from alula.layers.kernels import Kernels
from alula.layers.linear import ColumnParallelLinear, Part, RowParallelLinear
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
        kernels: Kernels,
        bias: bool = False,
    ) -> None:
        parts = (Part(f"{prefix}.gate_proj", intermediate_size), Part(f"{prefix}.up_proj", intermediate_size))
        self._gate_up = ColumnParallelLinear(reader, parts, hidden_size, group, kernels, bias)
        self._rows = kernels.rows
        down = Part(f"{prefix}.down_proj", hidden_size)
        self._down = RowParallelLinear(reader, down, intermediate_size, group, kernels, bias)

    def block(self, stream: Stream, next_norm: Norm, forward: BlockInput) -> Stream:
        """The stream behind this block, ready for `next_norm`."""
        hidden_RM = forward.products.gated_linear(stream.normed, *self._gate_up.parameters)
        return self._down.block(Deferred(hidden_RM), stream.x_RH, next_norm, forward)

    def __call__(self, x_RH: Tensor, phase: str) -> Tensor:
        return self._down(self._rows.silu_and_multiply(self._gate_up(x_RH)), phase)
