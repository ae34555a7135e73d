"""Which backend runs a call, and why each one before it was refused. Knows no backend by name.

A decision is pure and made once for each distinct call; afterwards a call costs one dictionary look-up and a count.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from alula.comm.backends.protocol import Backend
from alula.comm.call import CollectiveCall, describe_call, is_aligned
from alula.core.errors import InvalidOption
from alula.core.records import DispatchRecord, Refusal


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's place in the list that was given, and the refusals of those before it."""

    index: int
    refused: tuple[Refusal, ...] = ()


def choose(call: CollectiveCall, backends: Sequence[Backend]) -> Decision:
    """The first backend that takes the call. Pure. Raises InvalidOption with every reason where none does."""
    refused: list[Refusal] = []
    for index, backend in enumerate(backends):
        reason = backend.admits(call).reason
        if reason is None:
            return Decision(index=index, refused=tuple(refused))
        refused.append(Refusal(backend=backend.name, reason=reason))
    reasons = "; ".join(f"{refusal.backend}: {refusal.reason}" for refusal in refused)
    raise InvalidOption(
        f"no collective backend takes {call.op} of {call.num_bytes} bytes of {call.dtype} on {call.device} over "
        f"{call.num_ranks} ranks ({reasons}); choose another with --collectives"
    )


class _Route:
    """A decided call and how often it was made."""

    __slots__ = ("backend", "call", "num_calls", "refused")

    def __init__(self, call: CollectiveCall, backend: Backend, refused: tuple[Refusal, ...]) -> None:
        self.call = call
        self.backend = backend
        self.refused = refused
        self.num_calls = 0

    def record(self) -> DispatchRecord:
        return DispatchRecord(
            op=self.call.op,
            num_bytes=self.call.num_bytes,
            dtype=self.call.dtype,
            num_ranks=self.call.num_ranks,
            phase=self.call.phase,
            backend=self.backend.name,
            refused=self.refused,
            num_calls=self.num_calls,
        )


_Key = tuple[str, str, torch.dtype, int, bool, torch.device]


class Dispatcher:
    """Decides each distinct call once over a fixed list of backends, in order of preference."""

    def __init__(self, backends: Sequence[Backend], num_ranks: int) -> None:
        self._backends = tuple(backends)
        self._num_ranks = num_ranks
        self._routes: dict[_Key, _Route] = {}

    def backend_for(self, op: str, x: Tensor, phase: str) -> Backend:
        """The backend of this call, which is counted. Raises InvalidOption where no backend takes it."""
        key = (op, phase, x.dtype, x.numel(), is_aligned(x), x.device)
        route = self._routes.get(key)
        if route is None:
            call = describe_call(op, x, phase, self._num_ranks)
            decision = choose(call, self._backends)
            route = self._routes[key] = _Route(call, self._backends[decision.index], decision.refused)
        route.num_calls += 1
        return route.backend

    def records(self) -> tuple[DispatchRecord, ...]:
        """One record for each distinct call so far, in the order of first use."""
        return tuple(route.record() for route in self._routes.values())

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
