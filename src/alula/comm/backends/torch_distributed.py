"""Collectives through torch.distributed: gloo for CPU tensors, NCCL for CUDA ones. The last resort.

Importing and connecting it costs time, so it starts at the first call that comes here (`start` does it at a chosen
moment: NCCL must not start while a graph is captured). All ranks decide alike, so all of them start together. Uses
the process's default group, of which a rank process has no other; ranks find each other through a store in rank 0
on a port of the loopback interface that the kernel picks. Knows nothing of several hosts yet.

Results are bit-identical on all ranks. Gloo's own sum adds bf16 in bf16, in an order that depends on an element's
place and on the size, so a row's bits would depend on the rows beside it; hence gathered and summed in rank order.
NCCL's sum is used as it is: at three or more ranks its order depends on the size, and records say so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.backends.reduction import sum_in_rank_order
from alula.comm.call import CollectiveCall
from alula.comm.segment import Segment
from alula.core.errors import RankFailure

# torch 2.13 renamed it and warns of the old name.
_gather_into = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor

LOOPBACK = "127.0.0.1"
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}
POLL_S = 0.005


class TorchDistributedBackend:
    """One default process group, started when first needed."""

    name = "torch_distributed"

    def __init__(self, segment: Segment, rank: int, device: str, timeout_s: float) -> None:
        self._segment = segment
        self._rank = rank
        self._device = device
        self._timeout_s = timeout_s
        self.fixed_order = device == "cpu"  # gathered and summed here; NCCL adds as its size rules say
        self._store: Any = None  # torch's stubs do not name its stores

    def admits(self, call: CollectiveCall) -> Verdict:
        if not distributed.is_available():
            return no("this build of torch has no torch.distributed")
        if call.device != self._device:
            return no(f"the tensor is on {call.device} and the group on {self._device}")
        available = distributed.is_nccl_available() if call.device == "cuda" else distributed.is_gloo_available()
        if not available:
            return no(f"this build of torch has no {LIBRARIES[call.device]}")
        if call.op == "all_reduce" and call.dtype == "bool":
            return no("a sum of bool is not defined")
        return YES

    def start(self) -> None:
        """Connects the ranks: a collective. Raises RankFailure where they do not find each other in time."""
        if self._store is None:
            self._run("start", self._connect)

    def all_reduce(self, x: Tensor) -> Tensor:
        self.start()
        if self._device == "cuda":
            dense = x.contiguous()
            self._run("all_reduce", lambda: distributed.all_reduce(dense))
            return x if dense is x else x.copy_(dense)
        sum_in_rank_order(self._gather(x), x)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        self.start()
        return torch.cat(self._gather(x), dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        self.start()
        dense = x.contiguous()
        self._run("broadcast", lambda: distributed.broadcast(_as_bytes(dense), root))
        return x if dense is x else x.copy_(dense)

    def close(self) -> None:
        if self._store is not None:
            distributed.destroy_process_group()
            self._store = None

    def _gather(self, x: Tensor) -> tuple[Tensor, ...]:
        """Every rank's tensor, in rank order. Sent as bytes: no library then minds the dtype."""
        joined = torch.empty((self._segment.num_ranks, *x.shape), dtype=x.dtype, device=x.device)
        sent, received = _as_bytes(x.contiguous()), _as_bytes(joined)
        self._run("all_gather", lambda: _gather_into(received, sent))
        return joined.unbind(0)

    def _run(self, what: str, operation: Callable[[], object]) -> None:
        self._segment.count_call(self._rank)
        try:
            operation()
        except RuntimeError as error:  # torch.distributed's own errors are of this kind, and name no rank
            raise RankFailure(f"torch.distributed failed in rank {self._rank} at {what}: {error}") from error

    def _connect(self) -> None:
        self._store = self._open_store() if self._rank == 0 else self._find_store()
        distributed.init_process_group(
            LIBRARIES[self._device],
            store=self._store,
            rank=self._rank,
            world_size=self._segment.num_ranks,
            timeout=timedelta(seconds=self._timeout_s),
            device_id=torch.device("cuda", torch.cuda.current_device()) if self._device == "cuda" else None,
        )

    def _open_store(self) -> Any:
        """The store's server. Bound here, because torch would bind it to every interface."""
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        store = self._make_store(port, is_master=True, master_listen_fd=listener.detach())
        self._segment.publish_store_port(port)
        return store

    def _find_store(self) -> Any:
        deadline = time.monotonic() + self._timeout_s
        while not self._segment.store_port:
            if time.monotonic() > deadline:
                raise RankFailure(
                    f"rank {self._rank} waited {self._timeout_s:g} s for rank 0 to open the store of "
                    "torch.distributed; rank 0 did not",
                    rank=0,
                )
            time.sleep(POLL_S)
        return self._make_store(self._segment.store_port)

    def _make_store(self, port: int, **options: Any) -> Any:
        return distributed.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK,
            port,
            self._segment.num_ranks,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
            **options,
        )


def _as_bytes(x: Tensor) -> Tensor:
    """The same memory as a flat tensor of bytes. `x` is contiguous."""
    return x.view(-1).view(torch.uint8)
