"""A collective call as admission sees it: operation, size, kind. Knows no backend and never looks at values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from alula.core.records import PHASES

if TYPE_CHECKING:  # a rank reads its first message, which holds calls, before it loads torch
    from torch import Tensor

ALIGNMENT_BYTES = 16


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision may depend on, so that every rank decides alike.

    num_bytes: of one rank's tensor. device: its kind ("cpu", "cuda"), never an index, which differs by rank.
    captured: whether the call is being recorded into a graph rather than run. num_rows: of equal size, whole in memory.
    """

    op: str  # all_reduce | all_gather | broadcast | sum_onto: a sum, a residual and the next norm in one
    num_bytes: int
    dtype: str
    num_rows: int = 1
    aligned: bool
    num_ranks: int
    phase: str
    device: str
    captured: bool = False


def is_aligned(x: Tensor) -> bool:
    """Whether `x` begins at a multiple of 16 bytes in its storage.

    From the offset and not from the address: allocators align storages at least that far, while addresses are the
    one property of a tensor that may differ between ranks.
    """
    return x.storage_offset() * x.element_size() % ALIGNMENT_BYTES == 0


def rows_of(x: Tensor) -> int:
    """Of a matrix its rows; anything else is one."""
    return x.shape[0] if x.dim() == 2 else 1


def describe_call(op: str, x: Tensor, phase: str, num_ranks: int, captured: bool = False) -> CollectiveCall:
    """The call on `x`. Raises ValueError where `phase` is not one of the records' phases."""
    if phase not in PHASES:
        raise ValueError(f"a collective was called in phase {phase!r}; expected one of {', '.join(PHASES)}")
    return CollectiveCall(
        op=op,
        num_bytes=x.nbytes,
        dtype=str(x.dtype).removeprefix("torch."),
        num_rows=rows_of(x),
        aligned=is_aligned(x),
        num_ranks=num_ranks,
        phase=phase,
        device=x.device.type,
        captured=captured,
    )
