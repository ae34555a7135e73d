"""Whether the collectives of a group can be captured into a CUDA graph, asked before an engine chooses its cycle.

A backend says `capturable = True` where all its operations only enqueue work on the current stream of its device. One
such backend for each operation that layers use is enough: the dispatcher never gives a captured call to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from alula.comm.backends.protocol import Backend, admission
from alula.comm.call import ALIGNMENT_BYTES, CollectiveCall

# What a forward calls, with the dtype that every backend of floats takes. Small: some backends refuse large ones.
_OPS = ("all_reduce", "all_gather")


def is_capturable(backend: Backend) -> bool:
    """Whether the backend says that a graph may hold its operations."""
    return bool(getattr(backend, "capturable", False))


def capture_refusal(backends: Sequence[Backend], device: str, num_ranks: int) -> str | None:
    """Why a graph on `device` cannot hold the collectives of a forward; None where it can. A CPU has no graphs."""
    if device == "cpu" or num_ranks == 1:
        return None
    for op in _OPS:
        call = CollectiveCall(
            op=op,
            num_bytes=ALIGNMENT_BYTES * num_ranks,
            dtype="bfloat16",
            aligned=True,
            num_ranks=num_ranks,
            phase="verify",
            device=device,
        )
        reasons = [f"{backend.name}: {_why_not(backend, call)}" for backend in backends if _why_not(backend, call)]
        if len(reasons) == len(backends):
            return f"several_ranks_not_captured: no backend of {op} can be captured ({'; '.join(reasons)})"
    return None


def _why_not(backend: Backend, call: CollectiveCall) -> str | None:
    return admission(backend, call).reason or (None if is_capturable(backend) else "waits for the host")
