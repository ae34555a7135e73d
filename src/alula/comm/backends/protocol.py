"""What every collective backend offers: a name, an admission test with a reason, three operations.

A backend may say `ops` where it has not all three operations, and `capturable = True` where its operations only enqueue
work on the current stream. It may have a `start()`: a collective that connects it, outside of any capture.

It may also say `fixed_order = True`: an element of its sums depends on nothing but that element of every rank,
added in the order of the ranks and rounded once, whatever the size of the tensor. Without the word it is taken for one
whose order may change with the size, which is refused from three ranks on (comm/dispatch.py).

Knows nothing of speed or preference: the order of backends is the dispatcher's business.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec
from torch import Tensor

from alula.comm.call import CollectiveCall

OPS = ("all_reduce", "all_gather", "broadcast")
# A sum over ranks, added to the residual stream and made ready for the next norm: of backends that have a `sum_onto`.
SUM_ONTO = "sum_onto"


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


def operations(backend: Backend) -> tuple[str, ...]:
    """The operations that a backend has at all."""
    found: tuple[str, ...] = getattr(backend, "ops", OPS)
    return found


def admission(backend: Backend, call: CollectiveCall) -> Verdict:
    """What the backend says of a call; of an operation that it does not have at all it is not even asked."""
    if call.op not in operations(backend):
        return no(f"has no {call.op}")
    return backend.admits(call)


class Narrowed:
    """A backend that may be used for some operations, or on some devices, only: the user asked for another."""

    def __init__(self, backend: Backend, ops: tuple[str, ...], devices: tuple[str, ...], because: str) -> None:
        self.name = backend.name
        self.ops = operations(backend)
        self.capturable = bool(getattr(backend, "capturable", False))
        self.fixed_order = has_fixed_order(backend)
        self._backend = backend
        self._ops = ops
        self._devices = devices
        self._because = because

    def admits(self, call: CollectiveCall) -> Verdict:
        if call.op not in self._ops and call.device not in self._devices:
            return no(f"not asked for: {self._because}")
        return admission(self._backend, call)

    def start(self) -> None:
        start = getattr(self._backend, "start", None)
        if start is not None and self._ops:
            start()

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._backend.all_reduce(x)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return self._backend.all_gather(x, dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return self._backend.broadcast(x, root)

    def sum_onto(self, *arguments: Any) -> Any:
        return self._backend.sum_onto(*arguments)  # type: ignore[attr-defined]  # admitted only where it has one

    def add(self, *arguments: Any) -> Any:
        return self._backend.add(*arguments)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._backend.close()


class Partial:
    """Base of backends that lack operations, by their `ops`: those are never admitted, so nobody calls them."""

    def all_reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("not admitted")

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        raise AssertionError("not admitted")

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        raise AssertionError("not admitted")


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
