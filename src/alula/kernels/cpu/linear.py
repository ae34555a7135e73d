"""A matrix product whose weights were re-ordered once for oneDNN's kernels. Knows nothing of tensor parallelism.

Two reasons to re-order: oneDNN otherwise does it in every call (on a Xeon with AMX that is 40 % of a decode step), and
with the weight fixed for one-row kernels the result of a row does not depend on how many rows come with it (measured
for 1 to 64 rows on AMX and on AVX-512; the engine's exactness probe measures it again where it runs).

R rows, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The row count that the weight layout is made for. In bf16 the one-row layout is the fastest from 1 to 16 rows and
# row-independent; in fp32 the one-row layout is slow for more rows, and a single row takes another kernel.
_HINT_ROWS = {torch.bfloat16: 1, torch.float16: 1, torch.float32: 8}


def refusal(dtype: torch.dtype) -> str | None:
    """Why this machine or this torch cannot pack weights of `dtype`; None where it can."""
    if dtype not in _HINT_ROWS:
        return f"no packed layout for {dtype}"
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    try:
        kernel = Linear(torch.ones(32, 32, dtype=dtype))
        product = kernel(torch.ones(2, 32, dtype=dtype))
    except (RuntimeError, AttributeError) as error:
        return f"oneDNN refuses {dtype}: {str(error).splitlines()[0]}"
    return None if bool((product == 32).all()) else f"oneDNN's {dtype} product is wrong on this machine"


class Linear:
    """y = x W^T + b with a packed weight. The given weight may be freed afterwards."""

    name = "onednn-packed"

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        dtype = weight_OI.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _HINT_ROWS[dtype])
        self._bias_O = bias_O
        self._pad_single_row = dtype == torch.float32

    def __call__(self, x_RI: Tensor) -> Tensor:
        # One fp32 row would take a matrix-vector kernel that sums in another order than the block kernels.
        if self._pad_single_row and x_RI.shape[0] == 1:
            return self._product(torch.cat((x_RI, x_RI)))[:1]
        return self._product(x_RI)

    def _product(self, x_RI: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, self._packed, self._bias_O, "none", [], "")
        return product
