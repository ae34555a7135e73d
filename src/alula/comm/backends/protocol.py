"""What every collective backend offers: a name, an admission test with a reason, three operations.

A backend may also say `fixed_order = True`: an element of its sums depends on nothing but that element of every rank,
added in the order of the ranks and rounded once, whatever the size of the tensor. Without the word it is taken for one
whose order may change with the size, which is refused from three ranks on (comm/dispatch.py).

Knows nothing of speed or preference: the order of backends is the dispatcher's business.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


@runtime_checkable
class CountsWaits(Protocol):
    """A backend that knows how long its calls waited for other ranks: (calls, seconds)."""

    @property
    def waits(self) -> tuple[int, float]: ...


def has_fixed_order(backend: Backend) -> bool:
    """Whether the backend says that its sums are added in the order of the ranks, at every size."""
    return bool(getattr(backend, "fixed_order", False))


class Unavailable:
    """Stands for a backend that cannot be used at all, so that records and `alula check` can say why."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def admits(self, call: CollectiveCall) -> Verdict:
        return no(self._reason)

    def all_reduce(self, x: Tensor) -> Tensor:
        raise AssertionError(self._reason)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        raise AssertionError(self._reason)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        raise AssertionError(self._reason)

    def close(self) -> None:
        """Holds nothing."""
