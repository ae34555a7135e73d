"""The group of ranks that every layer is given: collectives, their dispatch records, and a check of equal bits.

Knows its rank and size and a dispatcher; which backend runs a call is decided there. A group of one has neither
dispatcher nor cost.
"""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from alula.comm.backends.apart import NAME as APART
from alula.comm.backends.apart import Enter
from alula.comm.backends.protocol import SUM_ONTO, Backend, operations
from alula.comm.dispatch import Dispatcher, Recording, unrecorded
from alula.comm.patience import Peers
from alula.comm.rules import Rules
from alula.core.records import DispatchRecord
from alula.kernels.reference.fused import Norm, Stream


class Group:
    """Collectives over `size` ranks, of which this process is number `rank`.

    Every rank must make the same calls in the same order. `phase` says which part of a cycle a call belongs to and
    ends up in its record.

    capture_refusal: why a CUDA graph cannot hold the calls. order_refusal: why a row's sums may depend on the rows
    beside it. Both None where there is no reason.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        dispatcher: Dispatcher,
        capture_refusal: str | None = None,
        order_refusal: str | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.peers = peers  # None where there are none to wait for
        self.capture_refusal = capture_refusal
        self.order_refusal = order_refusal
        self._dispatcher = dispatcher
        self._fuses = any(SUM_ONTO in operations(backend) for backend in dispatcher.backends)

    @property
    def rules(self) -> Rules:
        """What this group's choices follow: the measured table and what was refused."""
        return self._dispatcher.rules

    @property
    def backends(self) -> tuple[Backend, ...]:
        """In order of preference where nothing was measured."""
        return self._dispatcher.backends

    def all_reduce(self, x: Tensor, phase: str) -> Tensor:
        """The sum over ranks, the same bits on each. May write into `x`; the result may be `x`."""
        if self.size == 1:
            return x
        return self._dispatcher.backend_for("all_reduce", x, phase).all_reduce(x)

    def sum_onto(self, y_RH: Tensor, onto_RH: Tensor, norm: Norm, phase: str, enter: Enter) -> Stream:
        """onto + the sum of y over ranks, ready for `norm`: by one kernel where a backend has one and it pays, else the
        sum first and `enter` behind it."""
        if not self._fuses:
            return enter(onto_RH + self.all_reduce(y_RH, phase), norm)
        backend: Any = self._dispatcher.backend_for(SUM_ONTO, y_RH, phase)
        if backend.name == APART:
            stream: Stream = backend.add(self.all_reduce(y_RH, phase), onto_RH, norm)
        else:
            stream = backend.sum_onto(y_RH, onto_RH, norm)
        return stream

    def all_gather(self, x: Tensor, phase: str, dim: int = -1) -> Tensor:
        """The ranks' tensors, all of one shape, joined along `dim` in rank order."""
        if self.size == 1:
            return x
        return self._dispatcher.backend_for("all_gather", x, phase).all_gather(x, dim)

    def broadcast(self, x: Tensor, root: int, phase: str) -> Tensor:
        """Writes the values of rank `root` into `x` on every rank and returns it."""
        if self.size == 1:
            return x
        return self._dispatcher.backend_for("broadcast", x, phase).broadcast(x, root)

    def bits_agree(self, x: Tensor) -> bool:
        """Whether every rank holds the same dtype, shape and bits. A collective; copies `x` to the host."""
        return len(set(self.digests(x))) == 1

    def digests(self, x: Tensor) -> list[int]:
        """Of every rank's `x`, by rank: equal where dtype, shape and bits are. A collective; copies `x` to the host."""
        digest = torch.tensor([_digest(x)], dtype=torch.int64)  # on the host: no device has to be waited for
        found: list[int] = self.all_gather(digest, "other").tolist()
        return found

    def work_on(self, work: str) -> None:
        """Says what the calls from now on are for: "prefill", "decode", "verify", or "" outside of cycles."""
        self._dispatcher.work = work

    def recording(self, phase: str, name: str) -> AbstractContextManager[Recording]:
        """Around the capture of one graph of this name: its calls belong to it, and it tells of its replays."""
        return unrecorded(phase, name) if self.size == 1 else self._dispatcher.recording(phase, name)

    def waits(self) -> tuple[int, float]:
        """(calls, seconds) in which this rank waited for others in collectives of the host."""
        return self._dispatcher.waits()

    def dispatch_records(self) -> tuple[DispatchRecord, ...]:
        """One record for each distinct call so far, with its count."""
        return self._dispatcher.records()

    def close(self) -> None:
        """Lets go of the backends; no collective may follow."""
        self._dispatcher.close()


def single_group() -> Group:
    """A group of one: every call returns its tensor, nothing is recorded."""
    return Group(0, 1, Dispatcher((), 1))


def _digest(x: Tensor) -> int:
    """A signed 64-bit hash. Reads the memory directly: bf16 has no numpy form."""
    dense = x.detach().cpu().contiguous()
    found = hashlib.blake2b(f"{x.dtype} {tuple(x.shape)}".encode(), digest_size=8)
    found.update(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    return int.from_bytes(found.digest(), "little", signed=True)
