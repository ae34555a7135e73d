"""Positions, slots, masks and groups of a forward against a naive reading of the same segments."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from alula.kernels.reference.attention import paged_attention
from alula.layers.forward_input import ForwardInput
from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable, as_tensor

CPU = torch.device("cpu")
PAGE_TOKENS, NUM_PAGES = 4, 64
NUM_KV_HEADS, HEAD_DIM = 2, 8


@dataclass(frozen=True)
class Case:
    """Requests with scattered or adjacent pages, each with a few rows at its end."""

    segments: list[Segment]
    query_group: int
    kv_multiple: int
    row_multiple: int

    @property
    def rows(self) -> list[tuple[Segment, int]]:
        """(segment, position) of every row, in order."""
        return [(s, s.first_position + j) for s in self.segments for j in range(s.width)]

    def geometry(self) -> Geometry:
        cache = KVCache(1, NUM_PAGES * PAGE_TOKENS, NUM_KV_HEADS, HEAD_DIM, torch.float32, CPU)
        generator = torch.Generator().manual_seed(1)
        cache.k_LSKD.copy_(torch.randn(cache.k_LSKD.shape, generator=generator))
        cache.v_LSKD.copy_(torch.randn(cache.v_LSKD.shape, generator=generator))
        return Geometry(cache, self.query_group, CPU, self.kv_multiple, self.row_multiple)

    def forward(self) -> ForwardInput:
        return build_forward(self.geometry(), self.segments, list(range(100, 100 + len(self.rows))), "verify")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pages = draw(st.permutations(range(1, NUM_PAGES))) if draw(st.booleans()) else list(range(1, NUM_PAGES))
    segments, used = [], 0
    for _ in range(draw(st.integers(1, 5))):
        width = draw(st.sampled_from([1, 1, 2, 4, 7]))
        first = draw(st.sampled_from([0, 1, 5, 8, 17, 31]))
        count = -(-(first + width) // PAGE_TOKENS) + draw(st.integers(0, 1))
        segments.append(Segment(SlotTable(PAGE_TOKENS, pages[used : used + count]), first, width))
        used += count
    return Case(
        segments,
        query_group=draw(st.sampled_from([1, 3])),
        kv_multiple=draw(st.sampled_from([0, 0, 8, 16])),
        row_multiple=draw(st.sampled_from([1, 1, 5, 16])),
    )


def slot_of(segment: Segment, position: int) -> int:
    return segment.table.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS


@given(case=cases())
@settings(max_examples=200)
def test_rows_know_their_ids_positions_and_slots(case: Case) -> None:
    forward, rows = case.forward(), case.rows
    padding = -len(rows) % case.row_multiple
    assert forward.ids_R.tolist() == list(range(100, 100 + len(rows))) + [0] * padding
    assert forward.positions_R.tolist() == [position for _, position in rows] + [0] * padding
    slots = as_tensor(forward.write_slots).tolist()
    assert slots == [slot_of(segment, position) for segment, position in rows] + [0] * padding


@given(case=cases())
@settings(max_examples=200)
def test_a_row_sees_its_own_positions_and_nothing_else(case: Case) -> None:
    seen = visible_slots(case, case.forward())
    assert sorted(seen) == list(range(len(case.rows))), "each row is in one group, padding rows in none"
    for row, (segment, position) in enumerate(case.rows):
        expected = [slot_of(segment, p) for p in range(position + 1)]
        for slots, _ in seen[row]:
            assert slots == expected


@given(case=cases())
@settings(max_examples=200)
def test_exact_rows_are_attended_over_a_length_of_their_own(case: Case) -> None:
    """With `kv_multiple` the length depends on the row's position alone; without, it is as long as needed."""
    seen = visible_slots(case, case.forward())
    for row, (_, position) in enumerate(case.rows):
        lengths = {length for _, length in seen[row]}
        if case.kv_multiple:
            assert lengths == {(position // case.kv_multiple + 1) * case.kv_multiple}
        else:
            assert max(lengths) >= position + 1


def visible_slots(case: Case, forward: ForwardInput) -> dict[int, list[tuple[list[int], int]]]:
    """For every row, and each of its query heads of one kv head: the slots behind no mask, and the length."""
    found: dict[int, list[tuple[list[int], int]]] = {}
    for group in forward.groups:
        rows = as_tensor(group.rows).tolist()
        slots_BT = as_tensor(group.slots).reshape(group.num_requests, -1)
        assert int(slots_BT.min()) >= 0 and int(slots_BT.max()) < NUM_PAGES * PAGE_TOKENS
        for index, row in enumerate(rows):
            assert row not in found
            request, offset = divmod(index, group.width)
            slots_T = slots_BT[request]
            found[row] = []
            for head in range(case.query_group):
                shown_T = torch.ones(len(slots_T), dtype=torch.bool)
                if group.mask is not None:
                    shown_T = group.mask[request, 0, offset * case.query_group + head] == 0
                found[row].append((slots_T[shown_T].tolist(), len(slots_T)))
    return found


@given(case=cases())
@settings(max_examples=60)
def test_attention_equals_the_naive_one(case: Case) -> None:
    geometry, rows = case.geometry(), case.rows
    forward = build_forward(geometry, case.segments, [0] * len(rows), "verify")
    num_heads = NUM_KV_HEADS * case.query_group
    generator = torch.Generator().manual_seed(2)
    q_RND = torch.randn(len(forward.ids_R), num_heads, HEAD_DIM, generator=generator)
    k_SKD, v_SKD = geometry.cache.k_LSKD[0], geometry.cache.v_LSKD[0]
    found_RX = paged_attention(q_RND, k_SKD, v_SKD, forward.groups)
    for row, (segment, position) in enumerate(rows):
        slots = torch.tensor([slot_of(segment, p) for p in range(position + 1)])
        expected_X = naive_attention(q_RND[row], k_SKD[slots], v_SKD[slots])
        torch.testing.assert_close(found_RX[row], expected_X, rtol=1e-5, atol=1e-5)
    assert not found_RX[len(rows) :].any(), "padding rows stay zero"


def naive_attention(q_ND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    heads = []
    for head, q_D in enumerate(q_ND):
        kv_head = head * k_TKD.shape[1] // len(q_ND)
        weights_T = (k_TKD[:, kv_head] @ q_D / q_D.numel() ** 0.5).softmax(0)
        heads.append(weights_T @ v_TKD[:, kv_head])
    return torch.cat(heads)


def test_a_long_segment_is_split_at_the_multiples() -> None:
    segment = Segment(SlotTable(PAGE_TOKENS, list(range(1, 12))), 6, 14)
    groups = Case([segment], 1, kv_multiple=8, row_multiple=1).forward().groups
    shapes = [(group.num_requests, group.width, group.mask.shape[-1]) for group in groups if group.mask is not None]
    assert shapes == [(1, 2, 8), (1, 8, 16), (1, 4, 24)]


def test_requests_of_one_width_and_like_length_are_attended_together() -> None:
    tables = [SlotTable(PAGE_TOKENS, list(range(1 + 12 * i, 13 + 12 * i))) for i in range(3)]
    segments = [Segment(table, position, 1) for table, position in zip(tables, (20, 35, 44), strict=True)]
    (group,) = Case(segments, 1, kv_multiple=0, row_multiple=1).forward().groups
    assert (group.num_requests, group.width, group.rows) == (3, 1, slice(0, 3))


@pytest.mark.parametrize("width", [1, 5])
def test_a_lone_request_is_read_without_a_copy(width: int) -> None:
    segment = Segment(SlotTable(PAGE_TOKENS, [3, 4, 5]), 12 - width, width)
    (group,) = Case([segment], 1, kv_multiple=0, row_multiple=1).forward().groups
    assert group.slots == slice(12, 24)
    assert (group.mask is None) == (width == 1)
