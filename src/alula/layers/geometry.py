"""From "these requests have these rows" to the tensors of one forward: positions, slots, masks, groups.

Two ways to choose how far a row looks. Usually requests of one width are attended together, as far as the longest
needs. With `kv_multiple` (DESIGN 4.5, exact) the length that a row's attention is computed over depends on that row's
own position alone, so that its result cannot depend on the rows beside it.

R rows, B requests of a group, W rows of each, G query heads a kv head, T tokens seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.kernels.reference.attention import AttentionGroup
from alula.layers.forward_input import ForwardInput
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable, as_tensor

_SMALLEST_BUCKET = 64


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one request: `width` positions from `first_position` on."""

    table: SlotTable
    first_position: int
    width: int


@dataclass(frozen=True)
class Geometry:
    """What is the same in every forward of one cache.

    query_group: query heads a kv head. kv_multiple: 0, or the multiple that each row's length is rounded up to.
    row_multiple: total rows are padded to a multiple of this (1: no padding). query_multiple: so are the rows of
    queries that are multiplied with one kv head's keys.
    """

    cache: KVCache
    query_group: int
    device: torch.device
    kv_multiple: int = 0
    row_multiple: int = 1
    query_multiple: int = 1

    @property
    def dtype(self) -> torch.dtype:
        return self.cache.k_LSKD.dtype


def build_forward(
    geometry: Geometry, segments: Sequence[Segment], ids: Sequence[int] | Tensor, phase: str
) -> ForwardInput:
    """Rows are the segments' in order; `ids` has one token id for each of them."""
    ids_R = ids if isinstance(ids, Tensor) else torch.tensor(ids, dtype=torch.int64)
    positions_R = _positions(segments)
    slots: slice | Tensor = _write_slots(segments)
    padding = -len(positions_R) % geometry.row_multiple
    if padding:
        # Padding rows write into the dummy page and attend to nothing: `paged_attention` leaves them zero.
        pad = torch.nn.functional.pad
        ids_R, positions_R = pad(ids_R, (0, padding)), pad(positions_R, (0, padding))
        slots = pad(as_tensor(slots), (0, padding))
    device = geometry.device
    return ForwardInput(
        ids_R=ids_R.to(device),
        positions_R=positions_R.to(device),
        write_slots=slots if isinstance(slots, slice) else slots.to(device),
        groups=_groups(geometry, segments),
        cache=geometry.cache,
        phase=phase,
    )


def _positions(segments: Sequence[Segment]) -> Tensor:
    ranges = [torch.arange(s.first_position, s.first_position + s.width) for s in segments]
    return ranges[0] if len(ranges) == 1 else torch.cat(ranges)


def _write_slots(segments: Sequence[Segment]) -> slice | Tensor:
    pieces = [s.table.slots(s.first_position, s.first_position + s.width) for s in segments]
    return pieces[0] if len(pieces) == 1 else torch.cat([as_tensor(piece) for piece in pieces])


@dataclass(frozen=True)
class _Piece:
    """A segment, or a part of one, with its first row in the forward and the length its rows look over."""

    segment: Segment
    first_row: int
    length: int


def _groups(geometry: Geometry, segments: Sequence[Segment]) -> tuple[AttentionGroup, ...]:
    buckets: dict[tuple[int, int], list[_Piece]] = defaultdict(list)
    first_row = 0
    for segment in segments:
        for piece in _pieces(segment, first_row, geometry.kv_multiple):
            buckets[piece.segment.width, _bucket(piece.length, geometry.kv_multiple)].append(piece)
        first_row += segment.width
    return tuple(_group(geometry, pieces) for pieces in buckets.values())


def _pieces(segment: Segment, first_row: int, multiple: int) -> list[_Piece]:
    end = segment.first_position + segment.width
    if not multiple:
        return [_Piece(segment, first_row, end)]
    pieces, position = [], segment.first_position
    while position < end:
        length = (position // multiple + 1) * multiple
        width = min(end, length) - position
        part = Segment(segment.table, position, width)
        pieces.append(_Piece(part, first_row + position - segment.first_position, length))
        position += width
    return pieces


def _bucket(length: int, multiple: int) -> int:
    """Requests whose lengths share a bucket are attended together: at most twice the reading is wasted."""
    return length if multiple else max(_SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def _group(geometry: Geometry, pieces: list[_Piece]) -> AttentionGroup:
    width = pieces[0].segment.width
    length = max(piece.length for piece in pieces)
    exact_fit = len(pieces) == 1 and not geometry.kv_multiple
    slots = _slots(geometry, pieces, length)
    return AttentionGroup(
        rows=_rows(pieces, width, geometry.device),
        num_requests=len(pieces),
        width=width,
        slots=slots,
        mask=None if exact_fit and width == 1 else _mask(geometry, pieces, width, length),
        views=geometry.cache.seen(slots) if isinstance(slots, slice) else None,
    )


def _rows(pieces: list[_Piece], width: int, device: torch.device) -> slice | Tensor:
    starts = [piece.first_row for piece in pieces]
    if starts == list(range(starts[0], starts[0] + width * len(starts), width)):
        return slice(starts[0], starts[0] + width * len(starts))
    return torch.cat([torch.arange(start, start + width) for start in starts]).to(device)


def _slots(geometry: Geometry, pieces: list[_Piece], length: int) -> slice | Tensor:
    found = [piece.segment.table.padded(length, geometry.cache.num_slots) for piece in pieces]
    if len(found) == 1 and isinstance(found[0], slice):
        return found[0]
    return torch.stack([as_tensor(slots) for slots in found]).to(geometry.device)


def _mask(geometry: Geometry, pieces: list[_Piece], width: int, length: int) -> Tensor:
    first_B = torch.tensor([piece.segment.first_position for piece in pieces])
    last_seen_BW = first_B[:, None] + torch.arange(width)
    last_seen_BX = last_seen_BW.repeat_interleave(geometry.query_group, dim=1)
    padding = -last_seen_BX.shape[1] % geometry.query_multiple
    last_seen_BX = torch.nn.functional.pad(last_seen_BX, (0, padding))
    hidden_BXT = torch.arange(length) > last_seen_BX[:, :, None]
    mask_BXT = torch.zeros(hidden_BXT.shape, dtype=geometry.dtype).masked_fill_(hidden_BXT, float("-inf"))
    return mask_BXT[:, None].to(geometry.device)
