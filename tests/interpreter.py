"""The device that kernels are tested on. Without a GPU, Triton interprets them on the CPU (conftest.py), and is mended
here for that; import this where kernels are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _mend_interpreter() -> None:
    """Triton 3.6 makes a loop's bound a number by a conversion that numpy 2.4 refuses."""
    from triton.runtime import interpreter

    patch_as_before = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_as_before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch
    interpreter.InterpreterBuilder.create_dot = _dot_by_rows


def _dot_by_rows(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """A row of a product has the same bits whatever other rows there are, as a GPU's has: numpy's own library takes
    other kernels for other numbers of rows, which ones depending on the processor."""
    from triton.runtime.interpreter import TensorHandle

    rows = [np.matmul(a.data[..., i : i + 1, :], b.data, dtype=d.data.dtype) for i in range(a.data.shape[-2])]
    return TensorHandle(np.concatenate(rows, axis=-2) + d.data, d.dtype.scalar)


if DEVICE.type == "cpu":
    pytest.importorskip("triton")
    _mend_interpreter()
