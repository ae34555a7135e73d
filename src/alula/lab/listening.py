"""Listens to a group's collectives while cycles are served: how long each call took in this rank.

What a call takes is transfer and waiting; only ranks together can tell them apart (experiments/collectives.py). Calls
inside of a captured graph are not heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from torch import Tensor

from alula.comm.group import Group

_HEARD = ("all_reduce", "all_gather")


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """One call. cycle: how many cycles had ended before it."""

    cycle: int
    op: str
    phase: str
    num_bytes: int
    ms: float


class Listener:
    """Stands in front of a group's calls within the block. cycles: the list that grows by one with each cycle."""

    def __init__(self, group: Group, cycles: Sequence[object]) -> None:
        self.heard: list[Heard] = []
        self._group = group
        self._cycles = cycles
        self._before: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for name in _HEARD:
            self._before[name] = vars(self._group).get(name)
            setattr(self._group, name, self._timed(name, getattr(self._group, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Puts back what was there. May be called again."""
        while self._before:
            name, before = self._before.popitem()
            if before is None:
                delattr(self._group, name)
            else:
                setattr(self._group, name, before)

    def _timed(self, op: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def timed(x: Tensor, phase: str, *arguments: Any, **named: Any) -> Tensor:
            begin = time.perf_counter()
            result = call(x, phase, *arguments, **named)
            ms = (time.perf_counter() - begin) * 1e3
            self.heard.append(Heard(len(self._cycles), op, phase, x.nbytes, ms))
            return result

        return timed


class Silence:
    """Within it a group's collectives return at once: of each rank its own part. The results are void."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        import torch

        def all_reduce(x: Tensor, phase: str) -> Tensor:
            return x

        def all_gather(x: Tensor, phase: str, dim: int = -1) -> Tensor:
            return torch.cat([x] * self._group.size, dim)

        for name, stand_in in (("all_reduce", all_reduce), ("all_gather", all_gather)):
            self._before[name] = vars(self._group).get(name)
            setattr(self._group, name, stand_in)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, before in self._before.items():
            if before is None:
                delattr(self._group, name)
            else:
                setattr(self._group, name, before)
