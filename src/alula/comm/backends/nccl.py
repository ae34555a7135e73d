"""NCCL through torch.distributed, as two communicators: one made for small messages, one as NCCL would have it.

NCCL reads NCCL_PROTO and NCCL_ALGO again when each communicator is made (specs/collectives.md, section 0), so one
process can hold a communicator of the low-latency protocol for decode and one that chooses by size for prefill: one
global setting is wrong for either. Where the plan sets NCCL_PROTO itself, both would be alike: the first is refused.

An element's sum depends on the size from three ranks on (rings and trees split by it), so no fixed order is promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from alula.comm.backends.joining import join_ranks
from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.call import CollectiveCall
from alula.comm.communicator_guard import note_created
from alula.comm.process_groups import ProcessGroups
from alula.core.environment import changed

LOW_LATENCY, DEFAULT = "nccl_low_latency", "nccl"
LOW_LATENCY_VARIABLES = {"NCCL_PROTO": "LL"}
# Beyond it the low-latency protocol halves the bandwidth for nothing: flags travel with every four bytes.
LOW_LATENCY_BYTES = 1 << 20


class NcclBackend:
    """One communicator. `variables` are in the environment while it is made, and taken back afterwards."""

    capturable = True
    fixed_order = False

    def __init__(
        self,
        name: str,
        groups: ProcessGroups,
        variables: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
        refusal: str | None = None,
    ) -> None:
        self.name = name
        self._groups = groups
        self._variables = dict(variables or {})
        self._max_bytes = max_bytes
        self._refusal = refusal or _missing()
        self._group: Any = None

    def admits(self, call: CollectiveCall) -> Verdict:
        if self._refusal is not None:
            return no(self._refusal)
        if call.device != "cuda":
            return no(f"the tensor is on {call.device}; NCCL reads CUDA memory only")
        if call.op == "all_reduce" and call.dtype == "bool":
            return no("a sum of bool is not defined")
        if self._max_bytes is not None and call.num_bytes > self._max_bytes:
            return no(f"made for messages of up to {self._max_bytes} bytes, this has {call.num_bytes}")
        return YES

    def start(self) -> None:
        """Makes the communicator: a collective. Not at a first call, which a graph might be capturing."""
        if self._group is not None or self._refusal is not None:
            return
        group = self._groups.new_group("nccl", self.name)
        note_created(self.name, self._variables)
        with changed(self._variables):
            first = torch.ones(1, device="cuda")
            self._groups.run(f"the first call of {self.name}", lambda: distributed.all_reduce(first, group=group))
            self._groups.settle(f"the first call of {self.name}")
        self._group = group

    def all_reduce(self, x: Tensor) -> Tensor:
        dense = x.contiguous()
        self._groups.run(f"all_reduce of {self.name}", lambda: distributed.all_reduce(dense, group=self._group))
        return dense

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return join_ranks(self._groups.gather(x, self._group, f"all_gather of {self.name}"), dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        dense = x.contiguous()
        self._groups.broadcast(dense, root, self._group, f"broadcast of {self.name}")
        return x if dense is x else x.copy_(dense)

    def close(self) -> None:
        """The groups are closed by the one who made them."""
        self._group = None


def nccl_backends(groups: ProcessGroups, planned: Mapping[str, str]) -> tuple[NcclBackend, NcclBackend]:
    """Both communicators. `planned`: the variables of the plan, of which NCCL_PROTO leaves nothing to choose."""
    own = planned.get("NCCL_PROTO")
    refusal = None if own is None else f"NCCL_PROTO={own} is planned for every communicator"
    return (
        NcclBackend(LOW_LATENCY, groups, LOW_LATENCY_VARIABLES, LOW_LATENCY_BYTES, refusal),
        NcclBackend(DEFAULT, groups),
    )


def _missing() -> str | None:
    if not distributed.is_available() or not distributed.is_nccl_available():
        return "this build of torch has no NCCL"
    return None
