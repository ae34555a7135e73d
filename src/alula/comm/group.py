"""The group of ranks that every layer is given: collectives, their dispatch records, and a check of equal bits.

Knows its rank and size and a dispatcher; which backend runs a call is decided there. A group of one has neither
dispatcher nor cost.
"""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import AbstractContextManager

import msgspec
import torch
from torch import Tensor

from alula.comm.backends.protocol import Backend
from alula.comm.backends.shared_memory import SharedMemoryBackend
from alula.comm.backends.torch_distributed import TorchDistributedBackend
from alula.comm.capture import capture_refusal
from alula.comm.dispatch import Dispatcher, Recording, unrecorded
from alula.comm.patience import Peers, longest_wait_s
from alula.comm.segment import Segment
from alula.core.errors import InvalidOption
from alula.core.records import DispatchRecord

COLLECTIVES = ("auto", "shared_memory", "torch_distributed")


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank needs to join its group. timeout_s: the deadline of a wait for other ranks (comm/patience.py).
    segment_fd: the descriptor of the block its ranks share.
    """

    rank: int
    size: int
    device: str
    collectives: str
    timeout_s: float
    segment_fd: int


class Group:
    """Collectives over `size` ranks, of which this process is number `rank`.

    Every rank must make the same calls in the same order. `phase` says which part of a cycle a call belongs to and
    ends up in its record.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        dispatcher: Dispatcher,
        capture_refusal: str | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.peers = peers  # None where there are none to wait for
        self.capture_refusal = capture_refusal  # why a CUDA graph cannot hold the calls; None where it can
        self._dispatcher = dispatcher

    def all_reduce(self, x: Tensor, phase: str) -> Tensor:
        """The sum over ranks, the same bits on each. May write into `x`; the result may be `x`."""
        if self.size == 1:
            return x
        return self._dispatcher.backend_for("all_reduce", x, phase).all_reduce(x)

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


def join_group(member: GroupMember) -> Group:
    """This rank's group; sets the current CUDA device where the group is on CUDA, and connects it there.

    Raises InvalidOption for an unknown backend name or more ranks than GPUs.
    """
    if member.collectives not in COLLECTIVES:
        raise InvalidOption(f"--collectives is {member.collectives!r}; expected one of {', '.join(COLLECTIVES)}")
    if member.device == "cuda":
        _take_gpu(member)
    if member.size == 1:
        return single_group()
    segment = Segment(member.segment_fd)
    shared = SharedMemoryBackend(segment, member.rank, member.timeout_s)
    torch_distributed = TorchDistributedBackend(
        segment, member.rank, member.device, longest_wait_s(member.timeout_s)
    )
    if member.device == "cuda":
        torch_distributed.start()  # now, and not at a first call that a graph might be capturing
    backends: tuple[Backend, ...] = (shared, torch_distributed)
    if member.collectives != "auto":
        backends = tuple(backend for backend in backends if backend.name == member.collectives)
    refusal = capture_refusal(backends, member.device, member.size)
    peers = Peers(segment, member.rank, member.timeout_s)
    dispatcher = Dispatcher(backends, member.size, watch=peers.own)
    return Group(member.rank, member.size, dispatcher, refusal, peers)


def _take_gpu(member: GroupMember) -> None:
    if member.size > torch.cuda.device_count():
        raise InvalidOption(
            f"--tp is {member.size} and this machine shows {torch.cuda.device_count()} GPUs; each rank needs its own"
        )
    torch.cuda.set_device(member.rank)


def _digest(x: Tensor) -> int:
    """A signed 64-bit hash. Reads the memory directly: bf16 has no numpy form."""
    dense = x.detach().cpu().contiguous()
    found = hashlib.blake2b(f"{x.dtype} {tuple(x.shape)}".encode(), digest_size=8)
    found.update(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    return int.from_bytes(found.digest(), "little", signed=True)
