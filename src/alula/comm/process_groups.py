"""The one torch.distributed world of a rank's process: gloo over the loopback interface, and groups made from it.

Ranks find each other through a store in rank 0, on a port of the loopback interface that the kernel picks and that the
shared segment tells. Importing and connecting it costs time, so it starts when first needed. Knows nothing of several
hosts yet. The world is gloo on every device: it makes no CUDA call, and groups of a device's library are made from it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from alula.comm.device_deadline import wait_for
from alula.comm.patience import Peers
from alula.comm.segment import Segment
from alula.core.errors import RankFailure

T = TypeVar("T")
# torch 2.13 renamed it and warns of the old name.
_gather_into = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
LOOPBACK = "127.0.0.1"
POLL_S = 0.005


class ProcessGroups:
    """Connects this process once, and counts collectives where the driver looks for signs of life."""

    def __init__(self, segment: Segment, rank: int, timeout_s: float, peers: Peers | None = None) -> None:
        self.rank = rank
        self.num_ranks = segment.num_ranks
        self._segment = segment
        self._timeout_s = timeout_s
        self._peers = peers
        self._store: Any = None  # torch's stubs do not name its stores

    def world(self) -> Any:
        """The group of all ranks over gloo; connects them at the first call, which is a collective.

        Raises RankFailure where they do not find each other in time."""
        if self._store is None:
            self.run("start", self._connect)
        return distributed.group.WORLD

    def new_group(self, library: str, name: str) -> Any:
        """All ranks over another library of torch.distributed. A collective; its communicator starts at first use."""
        self.world()
        return self.run(
            f"start of {name}",
            lambda: distributed.new_group(
                list(range(self.num_ranks)),
                timeout=timedelta(seconds=self._timeout_s),
                backend=library,
                group_desc=name,
            ),
        )

    def gather(self, x: Tensor, group: Any, what: str) -> Tensor:
        """Every rank's tensor, [ranks, *shape], over one of the groups. Sent as bytes: no library minds the dtype."""
        joined = torch.empty((self.num_ranks, *x.shape), dtype=x.dtype, device=x.device)
        sent, received = _as_bytes(x.contiguous()), _as_bytes(joined)
        self.run(what, lambda: _gather_into(received, sent, group=group))
        return joined

    def broadcast(self, x: Tensor, root: int, group: Any, what: str) -> None:
        """Writes the root's values into `x`, which is contiguous, over one of the groups."""
        self.run(what, lambda: distributed.broadcast(_as_bytes(x), root, group=group))

    def settle(self, what: str) -> None:
        """Until the device has done what was launched. Raises RankFailure where other ranks keep it from that."""
        event = torch.cuda.Event()
        event.record()
        wait_for(event, self._peers, what)

    def barrier(self) -> None:
        """Waits for every rank's host, over gloo."""
        world = self.world()
        self.run("barrier", lambda: distributed.barrier(group=world))

    def run(self, what: str, operation: Callable[[], T]) -> T:
        """Runs a collective. torch.distributed's own errors name no rank: raises RankFailure, which does."""
        self._segment.count_call(self.rank)
        try:
            return operation()
        except RuntimeError as error:
            raise RankFailure(f"torch.distributed failed in rank {self.rank} at {what}: {error}") from error

    def close(self) -> None:
        """Ends every group of this process. Idempotent."""
        if self._store is not None:
            distributed.destroy_process_group()
            self._store = None

    def _connect(self) -> None:
        self._store = self._open_store() if self.rank == 0 else self._find_store()
        distributed.init_process_group(
            "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.num_ranks,
            timeout=timedelta(seconds=self._timeout_s),
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
                    f"rank {self.rank} waited {self._timeout_s:g} s for rank 0 to open the store of "
                    "torch.distributed; rank 0 did not",
                    rank=0,
                )
            time.sleep(POLL_S)
        return self._make_store(self._segment.store_port)

    def _make_store(self, port: int, **options: Any) -> Any:
        return distributed.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK,
            port,
            self.num_ranks,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
            **options,
        )


def _as_bytes(x: Tensor) -> Tensor:
    """The same memory as a flat tensor of bytes. `x` is contiguous."""
    return x.view(-1).view(torch.uint8)
