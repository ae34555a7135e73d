"""Communicators as another package would bring them: entry points of `alula.communicators`, right and wrong ones.

`install` writes the metadata of a package with chosen entry points; ranks find it on the path they inherit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as distributed
from torch import Tensor

from alula.comm.backends.protocol import YES, Backend, Verdict
from alula.comm.call import CollectiveCall
from alula.comm.plugins import GROUP, CommunicatorContext


class Toy:
    """Right sums, over gloo."""

    fixed_order = True

    def __init__(self, name: str, context: CommunicatorContext) -> None:
        self.name = name
        self.context = context

    def admits(self, call: CollectiveCall) -> Verdict:
        return YES

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = self._gather(x)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        return x.copy_(total)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        import torch

        return torch.cat(self._gather(x), dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return x.copy_(self._gather(x)[root])

    def close(self) -> None:
        pass

    def _gather(self, x: Tensor) -> list[Tensor]:
        import torch

        world = self.context.groups.world()
        parts = [torch.empty_like(x.contiguous()) for _ in range(self.context.num_ranks)]
        distributed.all_gather(parts, x.contiguous(), group=world)
        return parts


class Wrong(Toy):
    """Forgets the last rank, as a kernel does that launches nothing for a number of ranks it was not made for."""

    def all_reduce(self, x: Tensor) -> Tensor:
        before = x.clone()
        parts = self._gather(x)
        return super().all_reduce(before).sub_(parts[-1])


class Uneven(Toy):
    """Sums that are right within rounding and yet differ from rank to rank."""

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = self._gather(x)
        total = super().all_reduce(x)
        if self.context.rank:
            cancelled = sum(part.abs() for part in parts) - 4 * total.abs()
            place = int(cancelled.argmax())  # two large numbers that nearly cancel: their rounding hides the step
            flat = total.view(-1)
            flat[place] = flat[place].nextafter(flat[place] + 1)
        return total


class Hanging(Toy):
    """One rank never comes."""

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.context.rank == 1:
            time.sleep(3600)
        return super().all_reduce(x)


def toy_right(context: CommunicatorContext) -> Backend:
    return Toy("toy_right", context)


def toy_wrong(context: CommunicatorContext) -> Backend:
    return Wrong("toy_wrong", context)


def toy_uneven(context: CommunicatorContext) -> Backend:
    return Uneven("toy_uneven", context)


def toy_hanging(context: CommunicatorContext) -> Backend:
    return Hanging("toy_hanging", context)


def toy_raising(context: CommunicatorContext) -> Backend:
    raise OSError("no such device")


def toy_misnamed(context: CommunicatorContext) -> Backend:
    return Toy("another", context)


def install(folder: Path, names: Iterable[str]) -> Path:
    """A folder for the path, in which a package announces these functions."""
    info = folder / "toy_communicators-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-communicators\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {__name__}:{name}" for name in names)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
    return folder
