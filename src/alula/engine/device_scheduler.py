"""Scheduling while a cycle is under way whose outcome the host does not know yet. Knows no tensors.

A seat is a request's place in the tables on the device. Its position is known only up to the rows that cycles under way
may commit, so pages are held for all of them, and a request that has surely come to its end is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from alula.core.config import EngineConfig
from alula.engine.request import Request
from alula.engine.scheduler import Scheduled, Scheduler


@dataclass
class Seat:
    """index: line of the tables. num_pages: pages that the device knows. prefilled: whether its answer has begun.
    under_way: rows that launched cycles may commit at most; surely: tokens that they bring at least.
    chain_ready: whether the draft has read every committed position. kept_from: the first position that it has not,
    whose features are kept; known once the cycle that kept it is resolved."""

    index: int
    num_pages: int = 0
    prefilled: bool = False
    under_way: int = 0
    surely: int = 0
    chain_ready: bool = False
    kept_from: int | None = None


class DeviceScheduler(Scheduler):
    """Requests that run have a seat; seat 0 is the dummy."""

    def __init__(self, config: EngineConfig, num_pages: int, context_tokens: int) -> None:
        super().__init__(config, num_pages, context_tokens)
        self._free = list(range(config.max_batch, 0, -1))
        self._seats: dict[str, Seat] = {}
        self._steps = config.speculation.steps

    def seat(self, request: Request) -> Seat:
        return self._seats[request.spec.request_id]

    def has_seat(self, request: Request) -> bool:
        return request.spec.request_id in self._seats

    def seat_new(self) -> Iterator[Request]:
        """Gives a seat to every running request that has none, and takes it from those that run no longer."""
        running = {request.spec.request_id for request in self.running}
        for request_id in [i for i in self._seats if i not in running]:
            self._free.append(self._seats.pop(request_id).index)
        for request in self.running:
            if not self.has_seat(request):
                self._seats[request.spec.request_id] = Seat(self._free.pop())
                yield request

    def remove(self, request: Request) -> None:
        super().remove(request)
        if (seat := self._seats.pop(request.spec.request_id, None)) is not None:
            self._free.append(seat.index)

    def continues(self, request: Request) -> bool:
        """Whether it may need another cycle behind those under way."""
        if not self.has_seat(request) or not self.seat(request).prefilled:
            return True
        surely = self.seat(request).surely
        return request.remaining > surely and len(request.tokens) + surely < self._context_tokens

    def may_run_short(self) -> bool:
        """Whether the next cycle might need more pages than are free, and preempt somebody."""
        needed = 0
        for request in self.running:
            rows = self._config.chunk_tokens if self._reads_prompt(request) else self._steps + 1
            needed += max(0, self._pages(request, request.num_kv + rows) - len(request.table.pages))
        return needed > self.pages.num_free

    def _reads_prompt(self, request: Request) -> bool:
        return not (self.has_seat(request) and self.seat(request).prefilled)

    def _part(self, request: Request, budget: int, speculate: bool) -> Scheduled | None:
        if self._reads_prompt(request):
            return super()._part(request, budget, speculate)
        if not self.continues(request):
            return None
        return Scheduled(request, 1, request.spec.steps if speculate else 0, samples=True, is_prefill=False)

    def _end(self, request: Request, part: Scheduled) -> int:
        under_way = self.seat(request).under_way if self.has_seat(request) else 0
        return super()._end(request, part) + under_way

    def _pages(self, request: Request, num_tokens: int) -> int:
        under_way = self.seat(request).under_way if self.has_seat(request) else 0
        return -(-(num_tokens + under_way) // request.table.page_tokens)
