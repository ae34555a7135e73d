"""Positions to slots, against the definition: page by page, whatever the pages are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from alula.layers.slot_table import DUMMY_SLOT, SlotTable, as_tensor

PAGE_TOKENS = st.sampled_from([1, 3, 16])
PAGES = st.one_of(
    st.lists(st.integers(1, 30), unique=True, max_size=8),
    st.builds(lambda start, count: list(range(start, start + count)), st.integers(1, 20), st.integers(0, 8)),
)


def slots_of(pages: list[int], page_tokens: int) -> list[int]:
    return [page * page_tokens + offset for page in pages for offset in range(page_tokens)]


def is_run(pages: list[int]) -> bool:
    return pages == list(range(pages[0], pages[0] + len(pages))) if pages else True


@given(pages=PAGES, page_tokens=PAGE_TOKENS, data=st.data())
def test_slots_of_any_range(pages: list[int], page_tokens: int, data: st.DataObject) -> None:
    table = SlotTable(page_tokens, pages)
    assert table.capacity == len(pages) * page_tokens
    start = data.draw(st.integers(0, table.capacity))
    stop = data.draw(st.integers(start, table.capacity))
    found = table.slots(start, stop)
    assert as_tensor(found).tolist() == slots_of(pages, page_tokens)[start:stop]
    assert isinstance(found, slice) == is_run(pages)


@given(pages=PAGES, more=PAGES, page_tokens=PAGE_TOKENS, data=st.data())
def test_growing_and_trimming_at_random(
    pages: list[int], more: list[int], page_tokens: int, data: st.DataObject
) -> None:
    table, expected = SlotTable(page_tokens), []
    for piece in (pages, more, pages):
        new = [page for page in piece if page not in expected]
        table.extend(new)
        expected += new
        kept = data.draw(st.integers(0, len(expected)))
        assert table.trim(kept) == expected[kept:]
        del expected[kept:]
        assert table.pages == expected
        found = table.slots(0, table.capacity)
        assert as_tensor(found).tolist() == slots_of(expected, page_tokens)
        assert isinstance(found, slice) == is_run(expected)


@given(pages=PAGES, page_tokens=PAGE_TOKENS, count=st.integers(1, 200))
def test_padded_slots_stay_inside_the_cache(pages: list[int], page_tokens: int, count: int) -> None:
    table = SlotTable(page_tokens, pages)
    num_slots = 31 * page_tokens
    padded = as_tensor(table.padded(count, num_slots))
    known = slots_of(pages, page_tokens)[:count]
    assert padded.tolist()[: len(known)] == known
    assert len(padded) == count
    assert bool(((padded >= 0) & (padded < num_slots)).all())


def test_padding_of_scattered_pages_is_the_dummy() -> None:
    padded = SlotTable(2, [5, 3]).padded(7, 12)
    assert isinstance(padded, Tensor)
    assert torch.equal(padded, torch.tensor([10, 11, 6, 7, DUMMY_SLOT, DUMMY_SLOT, DUMMY_SLOT]))


@pytest.mark.parametrize("pages", [[4, 5], [4, 9], []])
def test_positions_without_a_page_are_refused(pages: list[int]) -> None:
    table = SlotTable(4, pages)
    with pytest.raises(IndexError, match=f"beyond the {table.capacity} positions of {len(pages)} pages"):
        table.slots(0, table.capacity + 1)
