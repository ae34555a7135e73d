"""Which kernels an engine's layers use on this device, chosen once, with the reason where a faster one was refused.

Knows the kernels' admission tests, not the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from alula.kernels.cpu import linear as packed
from alula.kernels.cpu.native import BuildRefused
from alula.kernels.cpu.rows import Rows as NativeRows
from alula.kernels.reference.linear import Linear as TorchLinear
from alula.kernels.reference.rows import Rows as TorchRows


class LinearKernel(Protocol):
    """A product with a constant weight, [R, I] -> [R, O]."""

    name: str

    def __call__(self, x_RI: Tensor) -> Tensor: ...


class LinearChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which kernel multiplies, and why the faster one was refused (None where it was not)."""

    kernel: str
    refusal: str | None = None


@dataclass(frozen=True)
class Kernels:
    """linear: how weights multiply. rows: norms, activation, rotary positions and KV write."""

    linear: LinearChoice
    rows: TorchRows | NativeRows
    rows_refusal: str | None = None

    def facts(self) -> dict[str, Any]:
        """For records: names and refusals."""
        rows = {"kernel": self.rows.name, "refusal": self.rows_refusal}
        return {"linear": msgspec.to_builtins(self.linear), "rows": rows}


def reference_kernels() -> Kernels:
    """Plain torch throughout: the definition of correct."""
    return Kernels(LinearChoice(kernel="torch"), TorchRows())


def choose_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The fastest kernels that this device admits for `dtype`."""
    if device.type != "cpu":
        return reference_kernels()
    linear = choose_linear(device, dtype)
    try:
        return Kernels(linear, NativeRows(dtype))
    except BuildRefused as refusal:
        return Kernels(linear, TorchRows(), str(refusal))


def choose_linear(device: torch.device, dtype: torch.dtype) -> LinearChoice:
    """The packed oneDNN kernel on a CPU that admits it, else torch's own, with the reason."""
    if device.type != "cpu":
        return LinearChoice(kernel="torch")
    reason = packed.refusal(dtype)
    return LinearChoice(kernel="torch" if reason else "onednn-packed", refusal=reason)


def constants(kernel: LinearKernel) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a product that keeps them as they were given; packed ones do not."""
    assert isinstance(kernel, TorchLinear), f"the weights of {kernel.name} products are packed"
    return kernel.weight_OI, kernel.bias_O


def build_linear(weight_OI: Tensor, bias_O: Tensor | None, choice: LinearChoice) -> LinearKernel:
    if choice.kernel == "onednn-packed":
        return packed.Linear(weight_OI, bias_O)
    return TorchLinear(weight_OI, bias_O)
