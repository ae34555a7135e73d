"""Collectives over memory that every GPU of a host can read: torch's symmetric memory, without multicast.

Three ways to sum, all over one workspace. *One-shot*: every rank reads every peer's values and adds them; least time
for small messages. *Two-shot*: every rank adds a share and all read the shares; less traffic for larger ones. *Gather*:
copies, meets, and adds with torch in fp32; more kernels, but any number of ranks and a sum that is rounded once.

torch's kernels are written out for 2, 4 and 8 ranks and add in rank order there; for other numbers each rank begins
with itself, so that ranks hold different bits. Facts: specs/collectives.md, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.backends.reduction import sum_in_rank_order
from alula.comm.call import ALIGNMENT_BYTES, CollectiveCall
from alula.comm.process_groups import ProcessGroups

ONE_SHOT, TWO_SHOT, GATHER = "symmetric_one_shot", "symmetric_two_shot", "symmetric_gather"
WORKSPACE_BYTES = 8 << 20
ORDERED_RANKS = (2, 4, 8)
_KERNEL_DTYPES = ("bfloat16", "float32")


class PeerWorkspace:
    """A block of this GPU's memory that every rank maps, and the meetings of the ranks around it.

    Protocol of a call: write own block, meet, read the peers' blocks, meet. The second meeting is what lets the next
    call write; one workspace serves one stream.
    """

    def __init__(self, groups: ProcessGroups, num_bytes: int = WORKSPACE_BYTES) -> None:
        self._groups = groups
        self.num_bytes = num_bytes
        self._memory: Any = None
        self._handle: Any = None
        self.group_name = ""

    def start(self) -> None:
        """Allocates and exchanges the blocks: a collective, and no part of a capture."""
        if self._handle is not None:
            return
        import torch.distributed._symmetric_memory as symmetric

        self.group_name = self._groups.world().group_name
        self._memory = symmetric.empty(self.num_bytes, dtype=torch.uint8, device=torch.device("cuda"))
        self._handle = self._groups.run(
            "the exchange of symmetric memory", lambda: symmetric.rendezvous(self._memory, self._groups.world())
        )
        torch.cuda.synchronize()

    def block(self, like: Tensor) -> Tensor:
        """The beginning of this rank's block in the form of `like`."""
        return self._memory[: like.nbytes].view(like.dtype).view(like.shape)

    def peer_blocks(self, like: Tensor) -> Sequence[Tensor]:
        """Every rank's block in the form of `like`, in rank order."""
        return [
            self._handle.get_buffer(rank, list(like.shape), like.dtype) for rank in range(self._groups.num_ranks)
        ]

    def meet(self, channel: int) -> None:
        """Enqueues a wait for every rank's stream to come here."""
        self._handle.barrier(channel)

    def close(self) -> None:
        self._handle = self._memory = None


class SymmetricMemoryBackend:
    """Gather and broadcast; the sum is the subclass's."""

    name = ""
    capturable = True

    def __init__(self, workspace: PeerWorkspace, num_ranks: int) -> None:
        self._workspace = workspace
        self._num_ranks = num_ranks

    def admits(self, call: CollectiveCall) -> Verdict:
        if call.device != "cuda":
            return no(f"the tensor is on {call.device}; peers read CUDA memory only")
        if call.num_bytes > self._workspace.num_bytes:
            return no(f"{call.num_bytes} bytes; the workspace holds {self._workspace.num_bytes}")
        if call.num_bytes == 0:
            return no("nothing to send")
        return self._admits_sum(call) if call.op == "all_reduce" else YES

    def start(self) -> None:
        self._workspace.start()

    def all_reduce(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        dense = x.contiguous()
        self._workspace.block(dense).copy_(dense)
        self._workspace.meet(0)
        joined = torch.cat(list(self._workspace.peer_blocks(dense)), dim)
        self._workspace.meet(1)
        return joined

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        dense = x.contiguous()
        self._workspace.block(dense).copy_(dense)
        self._workspace.meet(0)
        x.copy_(self._workspace.peer_blocks(dense)[root])
        self._workspace.meet(1)
        return x

    def close(self) -> None:
        self._workspace.close()

    def _admits_sum(self, call: CollectiveCall) -> Verdict:
        if call.dtype not in _KERNEL_DTYPES:
            return no(f"torch's kernels add {' and '.join(_KERNEL_DTYPES)}, not {call.dtype}")
        if not call.aligned or call.num_bytes % (ALIGNMENT_BYTES * self._num_ranks):
            return no(f"needs a multiple of {ALIGNMENT_BYTES} bytes a rank, aligned to {ALIGNMENT_BYTES}")
        return YES


class SymmetricOneShot(SymmetricMemoryBackend):
    """Every rank adds everything: one kernel, which copies in and meets by itself."""

    name = ONE_SHOT

    def __init__(self, workspace: PeerWorkspace, num_ranks: int) -> None:
        super().__init__(workspace, num_ranks)
        self.fixed_order = num_ranks in ORDERED_RANKS

    def all_reduce(self, x: Tensor) -> Tensor:
        dense, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        block = self._workspace.block(dense)
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(block, dense, "sum", self._workspace.group_name, out)
        return out


class SymmetricTwoShot(SymmetricMemoryBackend):
    """Every rank adds a share, then all collect the shares."""

    name = TWO_SHOT

    def __init__(self, workspace: PeerWorkspace, num_ranks: int) -> None:
        super().__init__(workspace, num_ranks)
        self.fixed_order = num_ranks in ORDERED_RANKS

    def all_reduce(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = self._workspace.block(out)
        block.copy_(x)
        torch.ops.symm_mem.two_shot_all_reduce_out(block, "sum", self._workspace.group_name, out)
        return out


class SymmetricGather(SymmetricMemoryBackend):
    """Meets around a sum of torch's own: fp32, in rank order, rounded once, at any number of ranks."""

    name = GATHER
    fixed_order = True

    def all_reduce(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self._workspace.block(out).copy_(x)
        self._workspace.meet(0)
        sum_in_rank_order(self._workspace.peer_blocks(out), out)
        self._workspace.meet(1)
        return out

    def _admits_sum(self, call: CollectiveCall) -> Verdict:
        if call.dtype == "bool":
            return no("a sum of bool is not defined")
        return YES


def symmetric_backends(groups: ProcessGroups) -> tuple[SymmetricMemoryBackend, ...]:
    """All three, over one workspace."""
    workspace = PeerWorkspace(groups)
    kinds = (SymmetricOneShot, SymmetricTwoShot, SymmetricGather)
    return tuple(kind(workspace, groups.num_ranks) for kind in kinds)
