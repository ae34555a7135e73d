"""Collectives through torch.distributed, the last resort: gloo for host memory, the library of a device for others.

Which library a device has is torch's to say, so that out-of-tree devices (HCCL on NPUs) work without a word here. CUDA
tensors go through the host: NCCL has backends of its own (comm/backends/nccl.py), and this one is what remains without
it.

Results are bit-identical on all ranks. Gloo's own sum adds bf16 in bf16, in an order that depends on an element's
place and on the size, so a row's bits would depend on the rows beside it; hence gathered and summed in rank order.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as distributed
from torch import Tensor

from alula.comm.backends.joining import join_ranks
from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.backends.reduction import sum_in_rank_order
from alula.comm.call import CollectiveCall
from alula.comm.process_groups import ProcessGroups

STAGED_DEVICES = ("cuda",)


class TorchDistributedBackend:
    """Gathers, then sums here: a fixed order whatever the library does."""

    name = "torch_distributed"
    fixed_order = True

    def __init__(self, groups: ProcessGroups, device: str) -> None:
        self._groups = groups
        self._device = device
        self._library = library_of(device)
        self._group: Any = None

    def admits(self, call: CollectiveCall) -> Verdict:
        if not distributed.is_available():
            return no("this build of torch has no torch.distributed")
        if call.device not in (self._device, "cpu"):
            return no(f"the tensor is on {call.device} and the group on {self._device}")
        if not distributed.is_gloo_available():
            return no("this build of torch has no gloo")
        if call.op == "all_reduce" and call.dtype == "bool":
            return no("a sum of bool is not defined")
        return YES

    def start(self) -> None:
        """Connects the ranks: a collective."""
        if self._group is None:
            world = self._groups.world()
            own = self._library != "gloo"
            self._group = self._groups.new_group(self._library, self.name) if own else world

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = self._gather(x).unbind(0)
        sum_in_rank_order(parts, x)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return join_ranks(self._gather(x), dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        self.start()
        dense = self._sent(x)
        self._groups.broadcast(dense, root, self._group_of(x), "broadcast")
        return x if dense is x else x.copy_(dense)

    def close(self) -> None:
        """The groups are closed by the one who made them."""
        self._group = None

    def _gather(self, x: Tensor) -> Tensor:
        """Every rank's tensor, [ranks, *shape] on the device of x."""
        self.start()
        sent = self._sent(x)
        return self._groups.gather(sent, self._group_of(sent), "all_gather").to(x.device)

    def _sent(self, x: Tensor) -> Tensor:
        return x.contiguous().cpu() if x.device.type in STAGED_DEVICES else x.contiguous()

    def _group_of(self, x: Tensor) -> Any:
        """Host memory goes over gloo, whatever library the device has."""
        return self._groups.world() if x.device.type in ("cpu", *STAGED_DEVICES) else self._group


def library_of(device: str) -> str:
    """What torch.distributed takes for tensors of a device; gloo for those that go through the host."""
    if device in ("cpu", *STAGED_DEVICES) or not distributed.is_available():
        return "gloo"
    return distributed.get_default_backend_for_device(device)
