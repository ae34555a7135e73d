"""Our own kernel over peer memory: sums of few rows, alone or together with the residual and the next norm.

Made because a sum, an addition and a norm's beginning are three kernels of some microseconds each, twice a layer, and
because torch's one-shot kernel gives ranks different bits at other numbers than 2, 4 and 8. kernels/gpu/peer_sum.py has
the protocol.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alula.comm.backends.protocol import SUM_ONTO, YES, Partial, Verdict, no
from alula.comm.call import CollectiveCall, rows_of
from alula.comm.process_groups import ProcessGroups
from alula.kernels.gpu.launch import refusal as kernel_refusal
from alula.kernels.reference.fused import Norm, Stream

NAME = "peer_push"
_DTYPES = ("bfloat16", "float16", "float32")


class PeerPushBackend(Partial):
    """Any number of ranks, fp32, rank order."""

    name = NAME
    ops = ("all_reduce", SUM_ONTO)
    capturable = True
    fixed_order = True

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._refusal = kernel_refusal(torch.device("cuda"))
        self._memory: Any = None
        self._boxes: Any = None

    def admits(self, call: CollectiveCall) -> Verdict:
        if self._refusal is not None:
            return no(self._refusal)
        if call.device != "cuda":
            return no(f"the tensor is on {call.device}; peers write CUDA memory only")
        if call.dtype not in _DTYPES:
            return no(f"dtype {call.dtype} is not one of {', '.join(_DTYPES)}")
        return self._fits(call)

    def start(self) -> None:
        """Allocates and exchanges the memory for peers: a collective, and no part of a capture."""
        if self._boxes is not None:
            return
        import torch.distributed._symmetric_memory as symmetric

        from alula.kernels.gpu.peer_sum import MAX_ROWS, MAX_TILES, Mailboxes, mailbox_bytes

        groups, device = self._groups, torch.device("cuda")
        memory = symmetric.empty(mailbox_bytes(groups.num_ranks), dtype=torch.uint8, device=device)
        handle = groups.run("the exchange of mailboxes", lambda: symmetric.rendezvous(memory, groups.world()))
        memory.zero_()
        torch.cuda.synchronize()
        groups.barrier()  # nobody sends before every box is empty
        self._memory = (memory, handle)
        self._boxes = Mailboxes(
            rank=groups.rank,
            num_ranks=groups.num_ranks,
            addresses=torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=device),
            calls_RC=torch.zeros(MAX_ROWS, MAX_TILES, dtype=torch.int32, device=device),
        )

    def all_reduce(self, x: Tensor) -> Tensor:
        from alula.kernels.gpu.peer_sum import peer_sum

        rows = x.contiguous().view(rows_of(x), -1)
        return peer_sum(rows, self._boxes).view(x.shape)

    def sum_onto(self, y_RH: Tensor, onto_RH: Tensor, norm: Norm) -> Stream:
        """onto + the sum of y over ranks, ready for `norm`."""
        from alula.kernels.gpu.peer_sum import peer_sum_onto

        return peer_sum_onto(y_RH.contiguous(), onto_RH.contiguous(), norm, self._boxes)

    def close(self) -> None:
        self._boxes = self._memory = None

    def _fits(self, call: CollectiveCall) -> Verdict:
        from alula.kernels.gpu.peer_sum import MAX_ROWS, MAX_TILES, TILE

        if not 0 < call.num_rows <= MAX_ROWS:
            return no(f"{call.num_rows} rows; takes 1 to {MAX_ROWS}")
        num_columns = call.num_bytes // getattr(torch, call.dtype).itemsize // call.num_rows
        if not 0 < num_columns <= MAX_TILES * TILE:
            return no(f"rows of {num_columns} elements; takes 1 to {MAX_TILES * TILE}")
        return YES
