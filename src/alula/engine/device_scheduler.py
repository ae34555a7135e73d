"""Scheduling while a cycle is under way whose outcome the host does not know yet. Knows no tensors.

A seat is a request's place in the tables on the device. Its position is known only up to the rows that cycles under
way may commit, so pages are held for all of them, and a request that has surely come to its end is left out. A seat's
object stands for one stay: a preempted request gets another, and cycles launched before that do not count.
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

    def seat(self, request: Request) -> Seat:
        return self._seats[request.spec.request_id]

    def has_seat(self, request: Request) -> bool:
        return request.spec.request_id in self._seats

    def seat_new(self) -> Iterator[Request]:
        """Gives a seat to every running request that has none."""
        for request in self.running:
            if not self.has_seat(request):
                self._seats[request.spec.request_id] = Seat(self._free.pop())
                yield request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._stand_up(request)

    def start_over(self, request: Request) -> None:
        """Takes a request's pages and seat, as where pages run short; cycles under way no longer count for it."""
        self._preempt(request)

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
            rows = self._config.chunk_tokens if self._reads_prompt(request) else request.spec.steps + 1
            pages = -(-self._reached(request, request.num_kv + rows) // request.table.page_tokens)
            needed += max(0, pages - len(request.table.pages))
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
        return self._reached(request, super()._end(request, part))

    def _reached(self, request: Request, end: int) -> int:
        """Positions that `end` known ones may become while cycles are under way. Rows behind the last token that the
        answer or the context can have never count: they are written to the dummy page."""
        under_way = self.seat(request).under_way if self.has_seat(request) else 0
        longest = max(len(request.tokens), request.num_prompt + request.spec.sampling.max_tokens)
        return min(end + under_way, longest, self._context_tokens)

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self._stand_up(request)

    def _stand_up(self, request: Request) -> None:
        if (seat := self._seats.pop(request.spec.request_id, None)) is not None:
            self._free.append(seat.index)
