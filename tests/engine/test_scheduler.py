"""The scheduler over requests that are driven by a stand-in for the model: progress, budgets, pages, preemption."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.core.config import EngineConfig
from alula.core.sampling import SamplingParams
from alula.engine.request import ERROR, LENGTH, Request, RequestSpec
from alula.engine.scheduler import Scheduled, Scheduler
from alula.engine.text_stream import TextStream
from alula.layers.slot_table import SlotTable

PAGE_TOKENS = 4
CONTEXT = 64


def make_request(number: int, num_prompt: int, max_tokens: int, steps: int = 0) -> Request:
    spec = RequestSpec(
        request_id=f"request-{number}",
        prompt_ids=tuple(range(num_prompt)),
        sampling=SamplingParams(max_tokens=max_tokens),
        steps=steps,
    )
    stream = TextStream(lambda ids: "x" * len(ids))
    return Request(spec=spec, table=SlotTable(PAGE_TOKENS), stream=stream, counts=None, noise=None, arrival=number)


@dataclass
class Driver:
    """Plays the engine: advances caches, appends tokens (each is its own position), ends requests at their length."""

    num_pages: int
    chunk_tokens: int = 8
    max_batch: int = 4
    steps_to_accept: int = 1
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = EngineConfig(page_tokens=PAGE_TOKENS, chunk_tokens=self.chunk_tokens, max_batch=self.max_batch)
        self.scheduler = Scheduler(config, self.num_pages, min(CONTEXT, (self.num_pages - 1) * PAGE_TOKENS))

    def add(self, num_prompt: int, max_tokens: int, steps: int = 0) -> Request:
        request = make_request(len(self.requests), num_prompt, max_tokens, steps)
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def step(self) -> list[Scheduled]:
        parts = self.scheduler.schedule()
        self.check(parts)
        for part in parts:
            self.advance(part)
        for request in [r for r in self.scheduler.running if r.finished]:
            self.scheduler.remove(request)
        for request in self.scheduler.running:
            self.scheduler.trim(request)
            # Pages for the cache and the next token's row, and none for drafts that were rejected.
            assert len(request.table.pages) <= -(-(request.num_kv + 1) // PAGE_TOKENS)
        return parts

    def advance(self, part: Scheduled) -> None:
        request = part.request
        accepted = min(part.num_drafts, self.steps_to_accept)
        request.num_kv += part.num_known + accepted
        if request.spec.steps:
            request.draft = state()
        if not part.samples:
            return
        for _ in range(accepted + 1):
            request.tokens.append(len(request.tokens))
            if request.remaining <= 0:
                request.finish(LENGTH)
                return

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "some request never ended"
        assert self.scheduler.pages.num_free == self.num_pages - 1

    def check(self, parts: list[Scheduled]) -> None:
        """What must hold of every cycle's parts."""
        assert len({part.request.spec.request_id for part in parts}) == len(parts) <= self.max_batch
        assert len(self.scheduler.running) <= self.max_batch
        held = [page for request in self.scheduler.running for page in request.table.pages]
        assert len(held) == len(set(held)) and 0 not in held
        assert len(held) + self.scheduler.pages.num_free == self.num_pages - 1
        prefill_rows = sum(part.num_known for part in parts if part.is_prefill)
        assert prefill_rows <= self.chunk_tokens
        for part in parts:
            request = part.request
            assert not request.finished
            assert part.num_known >= 1
            assert request.num_kv + part.num_known <= len(request.tokens)
            assert request.num_kv + part.num_known + part.num_drafts <= request.table.capacity
            assert part.samples == (part.num_known == request.num_pending)
            assert not part.num_drafts or (part.samples and part.num_drafts <= request.spec.steps)
            # A draft beyond the answer's or the context's end would be computed for nothing.
            assert part.num_drafts <= max(0, request.remaining - 1)
        if self.scheduler.running:
            eldest = min(self.scheduler.running, key=lambda request: request.arrival)
            assert eldest.finished or eldest in [part.request for part in parts], "the eldest always goes on"


def state() -> Any:
    return object()


@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 4)), min_size=1, max_size=8),
    num_pages=st.integers(13, 40),
    chunk_tokens=st.sampled_from([1, 3, 8, 64]),
    max_batch=st.sampled_from([1, 2, 5]),
    arrivals=st.integers(0, 3),
)
@settings(max_examples=150)
def test_every_request_ends_with_its_tokens(
    sizes: list[tuple[int, int, int]], num_pages: int, chunk_tokens: int, max_batch: int, arrivals: int
) -> None:
    """Whatever the order of arrival, the budget and the number of pages; a token is its position, so none is lost."""
    driver = Driver(num_pages, chunk_tokens, max_batch)
    for num_prompt, max_tokens, steps in sizes:
        driver.add(num_prompt, max_tokens, steps)
        for _ in range(arrivals):
            driver.step()
    driver.run()
    for request, (num_prompt, max_tokens, _) in zip(driver.requests, sizes, strict=True):
        assert request.finish_reason == LENGTH, request.error
        assert request.tokens == list(range(num_prompt + max_tokens))


def test_requests_are_served_in_order_of_arrival() -> None:
    driver = Driver(num_pages=30, chunk_tokens=8, max_batch=2)
    requests = [driver.add(12, 2) for _ in range(4)]
    ended: list[Request] = []
    while driver.scheduler.has_work:
        driver.step()
        ended += [r for r in requests if r.finished and r not in ended]
    assert ended == requests


def test_a_prompt_does_not_hold_back_answers() -> None:
    driver = Driver(num_pages=60, chunk_tokens=8, max_batch=4)
    first = driver.add(4, 30)
    driver.step()
    driver.add(40, 2)
    for _ in range(4):
        parts = {part.request: part for part in driver.step()}
        assert parts[first].num_known == 1
        assert sum(part.num_known for part in parts.values() if part.is_prefill) <= 8


def test_drafts_stop_where_the_answer_or_the_context_does() -> None:
    driver = Driver(num_pages=17, chunk_tokens=64, steps_to_accept=0)  # a context of 64
    request = driver.add(59, 100, steps=4)
    drafts = [driver.step()[0].num_drafts for _ in range(5)]
    assert drafts == [0, 4, 3, 2, 1]
    short = make_request(9, 4, 3, steps=4)
    driver.scheduler.remove(request)
    driver.scheduler.add(short)
    assert [driver.step()[0].num_drafts for _ in range(3)] == [0, 1, 0]


def test_the_last_to_arrive_gives_its_pages_back_and_resumes() -> None:
    driver = Driver(num_pages=9, chunk_tokens=64)
    first, second = driver.add(10, 12), driver.add(10, 12)
    driver.run()
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert second.tokens == list(range(22))


def test_waiting_is_not_counted_as_a_preemption() -> None:
    """A request that gets no page at all has nothing to give back, however long it waits."""
    driver = Driver(num_pages=6, chunk_tokens=64)
    eldest, *others = [driver.add(12, 6) for _ in range(3)]
    driver.run()
    assert [request.num_preemptions for request in (eldest, *others)] == [0, 0, 0]


@pytest.mark.parametrize("others", [0, 2])
def test_a_request_that_cannot_fit_fails_and_the_others_go_on(others: int) -> None:
    driver = Driver(num_pages=6)
    driver.scheduler._context_tokens = CONTEXT  # the engine itself never promises more context than pages
    before = [driver.add(3, 2) for _ in range(others)]
    large = driver.add(30, 2)
    after = [driver.add(3, 2) for _ in range(others)]
    driver.run()
    assert large.finish_reason == ERROR
    assert large.error is not None and "do not fit the KV cache, which holds 20" in large.error
    assert "--kv-memory" in large.error
    assert all(request.finish_reason == LENGTH for request in before + after)


@given(data=st.data())
@settings(max_examples=60)
def test_requests_removed_at_any_moment_leave_no_page(data: st.DataObject) -> None:
    driver = Driver(num_pages=data.draw(st.integers(9, 20)))
    for _ in range(data.draw(st.integers(1, 6))):
        driver.add(data.draw(st.integers(1, 20)), data.draw(st.integers(1, 10)), data.draw(st.integers(0, 3)))
        for _ in range(data.draw(st.integers(0, 4))):
            driver.step()
        live = [*driver.scheduler.running, *driver.scheduler.waiting]
        if live and data.draw(st.booleans()):
            driver.scheduler.remove(data.draw(st.sampled_from(live)))
    driver.run()


def test_decoding_requests_do_not_keep_a_prompt_from_being_read() -> None:
    driver = Driver(num_pages=200, chunk_tokens=4, max_batch=8)
    for number in range(6):
        driver.add(number + 1, 60, steps=4)
    for _ in range(12):
        driver.step()
    late = driver.add(30, 4, steps=0)
    for _ in range(10):
        driver.step()
    assert late.num_output > 0, "six decoding requests have more rows than the budget, and the prompt is read"
