"""What one forward of a device-resident cycle needs besides the weights: tensors on the device, nothing of the host.

R rows (requests of one width, request by request).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from alula.kernels.reference.paged import PagedRows
from alula.layers.block_kernels import BlockKernels, Products
from alula.layers.kv_cache import KVCache


@dataclass(frozen=True)
class BlockInput:
    """Rows of one forward.

    ids_R: token ids. positions_R: absolute positions. slots_R: where each row's key and value go, all int64.
    rows: who attends to what. decoding: False for rows of a prompt. phase: what collectives are recorded under.
    """

    ids_R: Tensor
    positions_R: Tensor
    slots_R: Tensor
    rows: PagedRows
    cache: KVCache
    kernels: BlockKernels
    decoding: bool
    phase: str

    @property
    def products(self) -> Products:
        return self.kernels.products(self.ids_R.shape[0], self.decoding)
