"""What every collective backend offers: a name, an admission test with a reason, three operations.

Knows nothing of speed or preference: the order of backends is the dispatcher's business.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from torch import Tensor

from alula.comm.call import CollectiveCall


class Verdict(msgspec.Struct, frozen=True):
    """Whether a backend takes a call; `reason` is None exactly where it does."""

    reason: str | None = None

    @property
    def admitted(self) -> bool:
        return self.reason is None


YES = Verdict()


def no(reason: str) -> Verdict:
    return Verdict(reason)


class Backend(Protocol):
    """One way to run collectives.

    `admits` is pure and depends on nothing but the call and on state that never changes and is equal on all ranks:
    a rank that decides differently from the others would hang them or give a wrong sum.
    """

    @property
    def name(self) -> str: ...

    def admits(self, call: CollectiveCall) -> Verdict: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks, in place where possible; bit-identical on all ranks."""

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """A new tensor: the ranks' tensors, of one shape, joined along `dim` in rank order."""

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        """Writes the root's values into `x` on every rank and returns it."""

    def close(self) -> None:
        """Lets go of what the backend holds. Not a collective."""
