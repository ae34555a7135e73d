"""What a device-resident cycle keeps between its phases: state of every seat, and buffers of every batch shape.

Everything is allocated once and never moves, so that graphs may hold it. Copies from the host go through the stream and
wait for nothing.

S seats, B requests of a batch, W rows of each, R = B*W, H draft hidden, F target features, T kept positions, X = 2 + W.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.core.sampling import SamplingParams
from alula.engine.memory import KEPT_POSITIONS
from alula.engine.setup import Parts
from alula.kernels.reference.device_sampling import SamplingTable
from alula.kernels.reference.seats import Forced, Seats
from alula.spec.forced import forced_acceptance

# Positions that a cycle launched before its request's end was known may reach beyond the context.
_ROWS_BEYOND = 32


@dataclass(frozen=True)
class BatchBuffers:
    """Tensors of one batch size and width. seats_B says who is in the batch; the rest is written by the phases."""

    seats_B: Tensor
    ids_R: Tensor
    positions_R: Tensor
    slots_R: Tensor
    first_B: Tensor
    accepted_B: Tensor
    last_row_B: Tensor
    results_BX: Tensor
    features_RF: Tensor

    @staticmethod
    def make(seats_B: Tensor, width: int, num_features: int, dtype: torch.dtype) -> BatchBuffers:
        batch, device = seats_B.shape[0], seats_B.device
        rows = batch * width

        def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return BatchBuffers(
            seats_B=seats_B,
            ids_R=numbers(rows),
            positions_R=numbers(rows),
            slots_R=numbers(rows),
            first_B=numbers(batch, dtype=torch.int32),
            accepted_B=numbers(batch, dtype=torch.int32),
            last_row_B=numbers(batch),
            results_BX=numbers(batch, 2 + width),
            features_RF=numbers(rows, num_features, dtype=dtype),
        )


class DeviceState:
    """Seat 0 is the dummy that pads a batch."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        config, device = parts.config, parts.device
        num_seats = config.max_batch + 1
        pages = -(-(parts.context_tokens + _ROWS_BEYOND) // config.page_tokens)
        self.seats = Seats.make(num_seats, pages, config.page_tokens, device)
        self.sampling = SamplingTable.make(num_seats, device)
        dtype = parts.geometry.dtype
        head = None if parts.drafter is None else parts.drafter.model.config
        self.num_features = 0 if head is None else head.num_features
        self.feedback_SH = torch.zeros(num_seats, head.hidden_size if head else 0, dtype=dtype, device=device)
        self.kept_STF = torch.zeros(num_seats, KEPT_POSITIONS, self.num_features, dtype=dtype, device=device)
        self.forced = _forced(parts)
        # Prompts are read one at a time: their own batch of one.
        self.prompt = BatchBuffers.make(torch.zeros(1, dtype=torch.int32, device=device), 1, 0, dtype)
        self._buffers: dict[tuple[int, int], BatchBuffers] = {}
        self._seats: dict[int, Tensor] = {}
        self._seated: dict[int, tuple[int, ...]] = {}

    def buffers(self, batch: int, width: int) -> BatchBuffers:
        key = (batch, width)
        if key not in self._buffers:
            seats_B = self._seats.setdefault(
                batch, torch.zeros(batch, dtype=torch.int32, device=self._parts.device)
            )
            dtype = self._parts.geometry.dtype
            self._buffers[key] = BatchBuffers.make(seats_B, width, self.num_features, dtype)
        return self._buffers[key]

    def seat_batch(self, batch: int, seats: tuple[int, ...]) -> None:
        """Says which seats the next phases of that batch size work on; copies only what changed."""
        if self._seated.get(batch) != seats:
            padded = torch.tensor([*seats, *[0] * (batch - len(seats))], dtype=torch.int32)
            self.buffers(batch, 1).seats_B.copy_(padded, non_blocking=True)
            self._seated[batch] = seats

    @contextmanager
    def dummies(self, batch: int) -> Iterator[None]:
        """Within it a batch holds dummies only, so that a capture's first run leaves no trace."""
        seats = self._seated.pop(batch, ())
        self.buffers(batch, 1).seats_B.zero_()
        cursor_1 = None if self.forced is None else self.forced.cursor_1.clone()
        try:
            yield
        finally:
            if self.forced is not None and cursor_1 is not None:
                self.forced.cursor_1.copy_(cursor_1)
            self.seat_batch(batch, seats)

    def take_seat(self, seat: int, sampling: SamplingParams, limit: int) -> None:
        """A request sits down: how it draws, and how many drafts may count."""
        self.sampling.set(seat, SamplingTable.row(sampling))
        self.seats.limit_S[seat : seat + 1].fill_(limit)
        self.seats.tables_SP[seat].zero_()

    def set_pages(self, seat: int, first: int, pages: list[int]) -> None:
        """Pages `first`, `first + 1`, ... of a seat."""
        table = torch.tensor(pages, dtype=torch.int32)
        self.seats.tables_SP[seat, first : first + len(pages)].copy_(table, non_blocking=True)

    def set_num_kv(self, seat: int, num_kv: int) -> None:
        self.seats.num_kv_S[seat : seat + 1].fill_(num_kv)


def _forced(parts: Parts) -> Forced | None:
    speculation = parts.config.speculation
    if speculation.forced_tokens_per_cycle is None or parts.drafter is None:
        return None
    table = forced_acceptance(speculation.forced_tokens_per_cycle, speculation.steps, parts.config.seed)
    return Forced(
        torch.tensor(table, dtype=torch.int32, device=parts.device),
        torch.zeros(1, dtype=torch.int64, device=parts.device),
    )
