"""The page allocator under random sequences of callers: each page has one owner or none, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alula.core.errors import OutOfPages
from alula.engine.pages import PageAllocator

NUM_PAGES = 14


class Callers(RuleBasedStateMachine):
    """Callers that take pages, grow and leave, beside the set of pages that ought to be free."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(NUM_PAGES)
        self.free = set(range(1, NUM_PAGES))
        self.held: list[list[int]] = []

    def take(self, count: int, after: int | None) -> list[int] | None:
        pages = self.allocator.allocate(count, after)
        if count > len(self.free):
            assert pages is None
            return None
        assert pages is not None and len(pages) == len(set(pages)) == count
        assert set(pages) <= self.free
        self.free -= set(pages)
        return pages

    @rule(count=st.integers(0, NUM_PAGES))
    def arrive(self, count: int) -> None:
        pages = self.take(count, None)
        if pages is not None:
            self.held.append(pages)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow(self, data: st.DataObject, count: int) -> None:
        """Pages that follow the caller's last one are given wherever they are free."""
        pages = data.draw(st.sampled_from([pages for pages in self.held if pages]))
        last, free = pages[-1], set(self.free)
        taken = self.take(count, last)
        if taken is None:
            return
        following = [page for page in range(last + 1, last + 1 + count) if page in free]
        if len(following) == count:
            assert taken == following
        elif last + 1 in free:
            assert taken[0] == last + 1
        pages += taken

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.allocator.release(pages)
        self.free |= set(pages)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def give_back_the_end(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from([pages for pages in self.held if pages]))
        kept = data.draw(st.integers(0, len(pages)))
        self.allocator.release(pages[kept:])
        self.free |= set(pages[kept:])
        del pages[kept:]

    @precondition(lambda self: bool(self.free))
    @rule(data=st.data())
    def release_what_is_free(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="released twice or was never handed out"):
            self.allocator.release([data.draw(st.sampled_from(sorted(self.free)))])

    @invariant()
    def every_page_has_one_owner_or_none(self) -> None:
        held = [page for pages in self.held for page in pages]
        assert len(held) == len(set(held))
        assert set(held) | self.free == set(range(1, NUM_PAGES))
        assert not set(held) & self.free
        assert self.allocator.num_free == len(self.free)

    def teardown(self) -> None:
        for pages in self.held:
            self.allocator.release(pages)
        assert self.allocator.num_free == NUM_PAGES - 1


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("page", [0, -1, 1])
def test_the_dummy_and_free_pages_cannot_be_released(page: int) -> None:
    with pytest.raises(ValueError, match=f"page {page} is released twice"):
        PageAllocator(4).release([page])


@pytest.mark.parametrize("num_pages", [0, 1])
def test_a_cache_without_room_is_refused(num_pages: int) -> None:
    with pytest.raises(OutOfPages, match="at least 2"):
        PageAllocator(num_pages)


@given(num_pages=st.integers(2, 40))
def test_a_lone_request_grows_in_place(num_pages: int) -> None:
    """Page by page, from the first to the last: attention can then read its keys without a copy."""
    allocator = PageAllocator(num_pages)
    pages: list[int] = []
    while (taken := allocator.allocate(1, pages[-1] if pages else None)) is not None:
        pages += taken
    assert pages == list(range(1, num_pages))


def test_two_requests_do_not_block_each_other_at_once() -> None:
    allocator = PageAllocator(17)
    first, second = allocator.allocate(2), allocator.allocate(2)
    assert first is not None and second is not None
    for pages in (first, second):
        for _ in range(3):
            pages.extend(allocator.allocate(1, pages[-1]) or [])
        assert pages == list(range(pages[0], pages[0] + 5))
