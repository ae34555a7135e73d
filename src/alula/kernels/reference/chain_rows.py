"""Row movements between the phases of a device-resident cycle, in torch: rows begin, features are kept, chains begin.

R rows (B requests of W rows each), H hidden, F target features (several H side by side), S seats, T kept positions, V
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.kernels.reference.fused import Deferred, Norm, Stream, embed, finish
from alula.kernels.reference.seats import Seats, prepare_rows

Prepared = tuple[Tensor, Tensor, Tensor, Tensor]  # ids_R, positions_R, slots_R, first_B


def embed_rows(
    seats: Seats, seats_B: Tensor, width: int, prepared: Prepared, table_VH: Tensor, norm: Norm
) -> Stream:
    """`seats.prepare_rows` into `prepared`, and the embedding of its ids."""
    prepare_rows(seats, seats_B, width, *prepared)
    return embed(prepared[0], table_VH, norm)


def store_features(parts: tuple[Tensor, ...], features_RF: Tensor) -> None:
    """Hidden states [R, H] side by side."""
    torch.cat(parts, dim=-1, out=features_RF)


def keep_features(parts: tuple[Tensor, ...], kept_STF: Tensor, seats_B: Tensor, positions_R: Tensor) -> None:
    """As `store_features`, into each seat's ring: position p lies at p modulo T."""
    width = positions_R.shape[0] // seats_B.shape[0]
    seats_R = seats_B.long().repeat_interleave(width)
    kept_STF[seats_R, positions_R % kept_STF.shape[1]] = torch.cat(parts, dim=-1)


def begin_chains(stream: Stream, rows_B: Tensor, seats_B: Tensor, feedback_SH: Tensor, post: bool) -> Deferred:
    """Rows `rows_B` of a draft's stream, ready for its norm; each seat's feedback is set to that row, behind the norm
    where `post`."""
    feedback_RH = finish(stream) if post else stream.x_RH
    feedback_SH[seats_B.long()] = feedback_RH.index_select(0, rows_B)
    return picked(stream, rows_B)


def picked(stream: Stream, rows: Tensor) -> Deferred:
    """Some rows of a stream, ready for its norm."""
    normed = stream.normed
    squares_RC = None if normed.squares_RC is None else normed.squares_RC.index_select(0, rows)
    return Deferred(normed.value_RI.index_select(0, rows), squares_RC, normed.eps)
