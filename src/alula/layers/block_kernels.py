"""The kernels of a device-resident cycle as one set: products for few and for many rows, attention, seats, draws.

The definition is torch's (it runs anywhere, and tests the cycle on a CPU); on a GPU it is Triton's, or a reason why
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from alula.kernels.reference import chain_rows, device_sampling, fused, paged, seats, wide
from alula.kernels.reference.fused import Deferred, Norm, Rope, Stream
from alula.kernels.reference.paged import PagedRows

# Up to so many rows a forward of known tokens takes the kernels of decoding.
NARROW_ROWS = 64


class Products(Protocol):
    """Matrix products of a layer with what surrounds them (kernels/reference/fused.py)."""

    def linear(self, x: Deferred, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor: ...

    def gated_linear(self, x: Deferred, weight_2MI: Tensor, bias_2M: Tensor | None = None) -> Tensor: ...

    def adding_linear(
        self, x: Deferred, weight_OI: Tensor, bias_O: Tensor | None, onto_RO: Tensor, norm: Norm
    ) -> Stream: ...

    def qkv_linear(
        self,
        x: Deferred,
        weight_AI: Tensor,
        bias_A: Tensor | None,
        rope: Rope,
        k_SKD: Tensor,
        v_SKD: Tensor,
        slots_R: Tensor,
    ) -> Tensor: ...


Attend = Callable[[Tensor, Tensor, Tensor, PagedRows], Tensor]


@dataclass(frozen=True)
class BlockKernels:
    """narrow: for the rows of decoding. wide: for more than NARROW_ROWS rows of a prompt. `chain`, `seats` and `draws`
    are modules: kernels/reference/chain_rows.py, seats.py and device_sampling.py, or their twins."""

    name: str
    narrow: Products
    wide: Products
    stream: Any
    chain: Any
    attend: Attend
    attend_wide: Attend
    seats: Any
    draws: Any

    def products(self, num_rows: int, decoding: bool) -> Products:
        """Rows of decoding are always multiplied the same way, however many they are (DESIGN 4.5)."""
        return self.narrow if decoding or num_rows <= NARROW_ROWS else self.wide

    def attention(self, width: int) -> Attend:
        """Blocks up to 16 wide are split over positions, wider ones over their rows."""
        return self.attend if width <= 16 else self.attend_wide


def reference_block_kernels() -> BlockKernels:
    """Plain torch: the definition of correct."""
    return BlockKernels(
        "torch",
        fused,
        wide,
        fused,
        chain_rows,
        paged.block_attention,
        paged.prefill_attention,
        seats,
        device_sampling,
    )


def triton_block_kernels() -> BlockKernels:
    """The GPU's. Imports Triton."""
    from alula.kernels.gpu import chain_rows as gpu_chain
    from alula.kernels.gpu import device_sampling as gpu_draws
    from alula.kernels.gpu import linear as gpu_linear
    from alula.kernels.gpu import seats as gpu_seats
    from alula.kernels.gpu import stream as gpu_stream
    from alula.kernels.gpu.paged_attention import block_attention
    from alula.kernels.gpu.prefill_attention import prefill_attention

    return BlockKernels(
        "triton",
        gpu_linear,
        wide,
        gpu_stream,
        gpu_chain,
        block_attention,
        prefill_attention,
        gpu_seats,
        gpu_draws,
    )
