"""Matrix products sharded over the ranks of a group: by columns (outputs) or by rows (inputs).

Megatron's pairing (Shoeybi et al. 2019): a column-parallel product needs no communication, the row-parallel one that
follows needs one all-reduce. R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from alula.comm.group import Group
from alula.kernels.reference.fused import Deferred, Norm, Stream
from alula.layers.block_input import BlockInput
from alula.layers.kernels import Kernels, build_linear, constants
from alula.layers.weights import WeightReader


def shard(size: int, group: Group) -> tuple[int, int]:
    """This rank's range of `size` items, in equal shares; the last ones may reach past the end (and are padded)."""
    share = -(-size // group.size)
    return group.rank * share, (group.rank + 1) * share


class Part(msgspec.Struct, frozen=True):
    """One of the products that a fused layer holds: its tensor's name (without ".weight") and number of outputs."""

    name: str
    num_outputs: int


class ColumnParallelLinear:
    """Several products of one input fused into one, each sharded by its outputs. No communication."""

    def __init__(
        self,
        reader: WeightReader,
        parts: Sequence[Part],
        num_inputs: int,
        group: Group,
        kernels: Kernels,
        bias: bool = False,
    ) -> None:
        cuts = [shard(part.num_outputs, group) for part in parts]
        pairs = list(zip(parts, cuts, strict=True))
        weight = torch.cat(
            [reader.take(f"{p.name}.weight", (p.num_outputs, num_inputs), (0, *cut)) for p, cut in pairs]
        )
        bias_O = None
        if bias:
            bias_O = torch.cat([reader.take(f"{p.name}.bias", (p.num_outputs,), (0, *cut)) for p, cut in pairs])
        self._product = build_linear(weight, bias_O, kernels.linear)

    def __call__(self, x_RI: Tensor) -> Tensor:
        return self._product(x_RI)

    @property
    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight [O, I] and bias [O], as they lie in memory."""
        return constants(self._product)


class RowParallelLinear:
    """A product sharded by its inputs; the partial sums are added over the ranks."""

    def __init__(
        self,
        reader: WeightReader,
        part: Part,
        num_inputs: int,
        group: Group,
        kernels: Kernels,
        bias: bool = False,
    ) -> None:
        weight = reader.take(f"{part.name}.weight", (part.num_outputs, num_inputs), (1, *shard(num_inputs, group)))
        self._product = build_linear(weight, None, kernels.linear)
        # Added once, after the sum over ranks.
        self._bias_O = reader.take(f"{part.name}.bias", (part.num_outputs,)) if bias else None
        self._group = group

    def __call__(self, x_RI: Tensor, phase: str) -> Tensor:
        y_RO = self._group.all_reduce(self._product(x_RI), phase)
        return y_RO if self._bias_O is None else y_RO + self._bias_O

    def block(self, x: Deferred, onto_RO: Tensor, next_norm: Norm, forward: BlockInput) -> Stream:
        """`onto` plus this product of x as a stream, ready for `next_norm`: the device-resident form of a call.

        On one rank the product's own kernel adds. On several the sums over ranks come between the two."""
        weight_OI, products = constants(self._product)[0], forward.products
        if self._group.size == 1:
            return products.adding_linear(x, weight_OI, self._bias_O, onto_RO, next_norm)
        y_RO = products.linear(x, weight_OI)
        if self._bias_O is None:
            return self._group.sum_onto(y_RO, onto_RO, next_norm, forward.phase, forward.kernels.stream.enter)
        y_RO = self._group.all_reduce(y_RO, forward.phase) + self._bias_O
        entered: Stream = forward.kernels.stream.enter(onto_RO + y_RO, next_norm)
        return entered
