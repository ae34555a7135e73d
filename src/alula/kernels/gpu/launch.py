"""Facts about a device that decide how kernels are launched there, and memory that outlives a launch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

_LEAST_COUNTERS = 1 << 14
# Every tensor ever made stays: a captured graph holds its address.
_counters: dict[torch.device, list[Tensor]] = {}


_LEAST_CAPABILITY = (8, 0)


def refusal(device: torch.device) -> str | None:
    """Why this device cannot run the Triton kernels, and what to change; None where it can."""
    if device.type != "cuda":
        return "no CUDA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}; the kernels need 8.0 (Ampere) or later"
    try:
        import triton

        triton.runtime.driver.active.get_current_target()  # what every launch asks for; builds its helper
    except ImportError as error:
        return f"Triton cannot be imported ({error}); pip install 'alula[gpu]'"
    except Exception as error:  # noqa: BLE001  # whatever keeps it from launching: no C compiler, no libcuda
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"Triton cannot launch kernels ({said}); it needs a C compiler (CC) and the driver's libcuda"
    return None


@functools.cache
def launches_early(device: torch.device) -> bool:
    """Whether a kernel may start before the one before it has ended (Hopper and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def early_launch(device: torch.device) -> dict[str, Any]:
    """Keyword arguments of a launch: where the device can, a kernel starts while the one before it ends, and waits by
    itself for what that one wrote (early_start.py)."""
    return {"EARLY": True, "launch_pdl": True} if launches_early(device) else {"EARLY": False}


def arrivals(device: torch.device, count: int) -> Tensor:
    """int32 zeros for counting the programs of a tile that are done; whoever counts to the end sets zero again.

    Shared by all kernels of a device: one stream at a time. Raises RuntimeError where it would have to grow inside a
    capture (an eager run before it makes it large enough).
    """
    kept = _counters.setdefault(device, [])
    if not kept or kept[-1].numel() < count:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{count} arrival counters are needed inside a capture; run the same call eagerly first"
            )
        kept.append(torch.zeros(max(count, _LEAST_COUNTERS), dtype=torch.int32, device=device))
    return kept[-1]
