"""Strict reading of named tensors: the right shape, each used once, none missing, none left over.

Knows nothing of file formats: it asks a `TensorSource` (models/checkpoint.py and the heads' loader provide them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from alula.core.errors import CheckpointError


class TensorSource(Protocol):
    """What a checkpoint offers: names, shapes and tensors in their stored dtype, on the CPU."""

    @property
    def description(self) -> str: ...

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...


@runtime_checkable
class MakesTensors(Protocol):
    """A source without stored tensors, which makes each where, and in the dtype in which, it is wanted."""

    def make(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor: ...


class WeightReader:
    """Takes tensors out of a source, cast to the engine's dtype and device.

    `take` raises CheckpointError for a missing or wrongly shaped tensor, `finish` for those nobody took.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._source = source
        self._names = source.names()
        self._taken: set[str] = set()
        self._progress = progress

    def has(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, shape: tuple[int, ...], part: tuple[int, int, int] | None = None) -> Tensor:
        """The tensor, or the `part` (dim, start, stop) of it that this rank holds; rows beyond its end are zeros."""
        if name not in self._names:
            raise CheckpointError(
                f"{self._source.description}: tensor {name} is missing; expected shape {list(shape)}"
            )
        found = self._source.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{self._source.description}: tensor {name} has shape {list(found)}; "
                f"the config asks for {list(shape)}"
            )
        self._taken.add(name)
        if isinstance(self._source, MakesTensors):
            tensor = self._source.make(name, self.dtype, self.device)
        else:
            tensor = self._source.read(name)
        if part is not None:
            tensor = _cut(tensor, *part)
        if self._progress:
            self._progress(len(self._taken), len(self._names))
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Raises CheckpointError if a tensor of the source was not taken and its name ends in none of `ignored`."""
        endings = tuple(ignored)
        left = sorted(n for n in self._names - self._taken if not n.endswith(endings))
        if left:
            shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            raise CheckpointError(
                f"{self._source.description}: {len(left)} tensors that this architecture does not have: {shown}"
            )


def _cut(tensor: Tensor, dim: int, start: int, stop: int) -> Tensor:
    size = tensor.shape[dim]
    piece = tensor.narrow(dim, min(start, size), max(0, min(stop, size) - min(start, size)))
    missing = (stop - start) - piece.shape[dim]
    if missing == 0:
        return piece if piece.shape[dim] == size else piece.clone()  # a view would keep the whole alive
    shape = list(piece.shape)
    shape[dim] = missing
    return torch.cat((piece, piece.new_zeros(shape)), dim)
