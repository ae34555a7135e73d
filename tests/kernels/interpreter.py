"""Import it before a module with Triton kernels: without a GPU, Triton then interprets them on the CPU."""

from __future__ import annotations

import os
from typing import Any

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


if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it where a kernel is defined, its own library's too
    pytest.importorskip("triton")
    _mend_interpreter()
