"""The device that kernels are tested on. Without a GPU, Triton interprets them on the CPU (conftest.py), and is mended
here for that; import this where kernels are called."""

from __future__ import annotations

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
    pytest.importorskip("triton")
    _mend_interpreter()
