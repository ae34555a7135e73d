"""FlashInfer's all-reduce over PCIe (peers write into each other's memory), where FlashInfer is installed.

Its kernels spin without a limit and check nothing between ranks, so what it takes is decided here from the call alone.
It tunes itself once for each machine and keeps that in its own cache; one workspace serves one stream (captures are
exempt). Read in FlashInfer 0.7.2: comm/pcie_ipc_ar.py, comm/pcie_ipc_policy.py. Never run here: it needs a PCIe box.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from alula.comm.backends.protocol import YES, Partial, Verdict, no
from alula.comm.call import ALIGNMENT_BYTES, CollectiveCall
from alula.comm.process_groups import ProcessGroups

NAME = "flashinfer_pcie"
RANKS = (2, 4, 8)
DTYPES = ("bfloat16", "float16")
# Its two buffers lie ranks x capacity apart, and distance costs time for small messages: no more than is sent.
MAX_BYTES = 1 << 20


class FlashInferPcieBackend(Partial):
    """Sums only: `ops` tells the dispatcher that the other operations are nobody's fault."""

    name = NAME
    ops = ("all_reduce",)
    capturable = True
    fixed_order = False

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._refusal = _missing()
        self._workspace: Any = None

    def admits(self, call: CollectiveCall) -> Verdict:
        if self._refusal is not None:
            return no(self._refusal)
        if call.device != "cuda":
            return no(f"the tensor is on {call.device}; peers write CUDA memory only")
        if call.num_ranks not in RANKS:
            return no(f"{call.num_ranks} ranks; it is made for {', '.join(map(str, RANKS))}")
        if call.dtype not in DTYPES:
            return no(f"dtype {call.dtype} is not one of {', '.join(DTYPES)}")
        if not call.aligned or call.num_bytes % ALIGNMENT_BYTES:
            return no(f"needs a multiple of {ALIGNMENT_BYTES} bytes, aligned to {ALIGNMENT_BYTES}")
        if not ALIGNMENT_BYTES * call.num_ranks <= call.num_bytes <= MAX_BYTES:
            return no(f"{call.num_bytes} bytes; takes {ALIGNMENT_BYTES * call.num_ranks} to {MAX_BYTES}")
        return YES

    def start(self) -> None:
        """Builds the workspace: a collective, which may compile for minutes at its first time on a machine."""
        if self._workspace is None and self._refusal is None:
            comm = importlib.import_module("flashinfer.comm")
            self._workspace = self._groups.run(
                "the workspace of FlashInfer",
                lambda: comm.PcieIpcAllReduceWorkspace(
                    group=self._groups.world(), max_numel=MAX_BYTES // 2, dtype=torch.bfloat16
                ),
            )

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._workspace.all_reduce(x.contiguous())

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.destroy()
            self._workspace = None


def _missing() -> str | None:
    """Asked without an import, which would take seconds. FlashInfer before 0.7 has no such module."""
    if importlib.util.find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install flashinfer-python)"
    if importlib.util.find_spec("flashinfer.comm.pcie_ipc_ar") is None:
        return "this FlashInfer has no PCIe all-reduce; it came with 0.7"
    return None
