"""The cycle's arithmetic: torch against plain Python, and the Triton twin against torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from alula.core.config import MAX_STEPS
from alula.kernels.gpu import seats as gpu
from alula.kernels.reference import seats as reference
from alula.kernels.reference.seats import Forced, Seats
from alula.spec.acceptance import accept_chain
from interpreter import DEVICE

TWINS = pytest.mark.parametrize("twin", [reference, gpu], ids=["torch", "triton"])
NUM_SEATS, NUM_PAGES, PAGE_TOKENS = 9, 5, 4
TOKENS = 3  # of the vocabulary: draws often agree with drafts


def make_seats(seed: int, num_seats: int = NUM_SEATS) -> Seats:
    made = Seats.make(num_seats, NUM_PAGES, PAGE_TOKENS, DEVICE)
    generator = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    made.root_S[1:] = numbers(0, TOKENS, num_seats - 1).to(DEVICE)
    made.drafts_SK[1:] = numbers(0, TOKENS, num_seats - 1, MAX_STEPS).to(DEVICE)
    made.num_kv_S[1:] = numbers(0, NUM_PAGES * PAGE_TOKENS, num_seats - 1).to(DEVICE)
    made.limit_S[1:] = numbers(0, MAX_STEPS + 1, num_seats - 1).to(DEVICE)
    made.tables_SP[1:] = numbers(1, 1000, num_seats - 1, NUM_PAGES).to(DEVICE)
    return made


def as_seats(indices: Sequence[int]) -> Tensor:
    return torch.tensor(indices, dtype=torch.int32, device=DEVICE)


def longs(*shape: int) -> Tensor:
    return torch.full(shape, -7, dtype=torch.int64, device=DEVICE)


def ints(size: int) -> Tensor:
    return torch.full((size,), -7, dtype=torch.int32, device=DEVICE)


def same_seats(a: Seats, b: Seats) -> bool:
    return all(
        torch.equal(getattr(a, field.name), getattr(b, field.name))
        for field in fields(Seats)
        if field.name != "page_tokens"
    )


def slot_of(seats: Seats, seat: int, position: int) -> int:
    page = position // PAGE_TOKENS
    if page >= NUM_PAGES:
        return 0
    return int(seats.tables_SP[seat, page]) * PAGE_TOKENS + position % PAGE_TOKENS


@TWINS
@given(seed=st.integers(0, 999), width=st.integers(1, MAX_STEPS + 1), data=st.data())
@settings(max_examples=15)
def test_rows_are_root_and_drafts_at_their_slots(
    twin: ModuleType, seed: int, width: int, data: st.DataObject
) -> None:
    seats = make_seats(seed)
    batch = data.draw(st.lists(st.integers(0, NUM_SEATS - 1), min_size=1, max_size=7))
    ids_R, positions_R, slots_R = (longs(len(batch) * width) for _ in range(3))
    first_B = ints(len(batch))
    twin.prepare_rows(seats, as_seats(batch), width, ids_R, positions_R, slots_R, first_B)
    for b, seat in enumerate(batch):
        rows = slice(b * width, (b + 1) * width)
        num_kv = int(seats.num_kv_S[seat])
        drafts = seats.drafts_SK[seat, : width - 1].tolist()
        assert ids_R[rows].tolist() == [int(seats.root_S[seat]), *drafts]
        assert positions_R[rows].tolist() == list(range(num_kv, num_kv + width))
        assert slots_R[rows].tolist() == [slot_of(seats, seat, p) for p in range(num_kv, num_kv + width)]
        assert int(first_B[b]) == num_kv


@TWINS
@pytest.mark.parametrize("step", range(MAX_STEPS - 1))
def test_draft_rows_follow_the_chain(twin: ModuleType, step: int) -> None:
    seats = make_seats(step)
    batch = [0, 3, 1, 8, 0]
    ids_B, positions_B, slots_B = (longs(len(batch)) for _ in range(3))
    first_B = ints(len(batch))
    twin.prepare_draft_rows(seats, as_seats(batch), step, ids_B, positions_B, slots_B, first_B)
    expected = [int(seats.num_kv_S[seat]) + step for seat in batch]
    assert ids_B.tolist() == [int(seats.drafts_SK[seat, step]) for seat in batch]
    assert positions_B.tolist() == first_B.tolist() == expected
    assert slots_B.tolist() == [slot_of(seats, seat, p) for seat, p in zip(batch, expected, strict=True)]


def accept(
    twin: ModuleType, seats: Seats, batch: list[int], width: int, draws: Tensor, bad: Tensor, forced: Forced | None
) -> tuple[list[int], list[int], Tensor]:
    accepted_B, last_row_B, results_BX = ints(len(batch)), longs(len(batch)), longs(len(batch), 2 + width)
    twin.accept_rows(seats, as_seats(batch), width, draws, bad, forced, accepted_B, last_row_B, results_BX)
    return accepted_B.tolist(), last_row_B.tolist(), results_BX


@TWINS
@given(seed=st.integers(0, 999), width=st.integers(1, MAX_STEPS + 1), any_bad=st.booleans(), data=st.data())
@settings(max_examples=20)
def test_acceptance_is_that_of_the_chain(
    twin: ModuleType, seed: int, width: int, any_bad: bool, data: st.DataObject
) -> None:
    before = make_seats(seed)
    after = copy.deepcopy(before)
    batch = [*data.draw(st.lists(st.integers(1, NUM_SEATS - 1), unique=True, max_size=6)), 0, 0]
    generator = torch.Generator().manual_seed(seed)
    draws_BW = torch.randint(0, TOKENS, (len(batch), width), generator=generator)
    bad_BW = (torch.rand(len(batch), width, generator=generator) < 0.2) & any_bad
    bad_R = bad_BW.flatten().to(DEVICE)
    accepted, last_rows, results_BX = accept(twin, after, batch, width, draws_BW.flatten().to(DEVICE), bad_R, None)
    for b, seat in enumerate(batch):
        draws, bad = draws_BW[b].tolist(), bad_BW[b].tolist()
        good_rows = bad.index(True) if any(bad) else width
        limit = min(width - 1, int(before.limit_S[seat]), max(good_rows - 1, 0))
        drafts = before.drafts_SK[seat, :limit].tolist()
        expected = accept_chain(drafts, draws[: limit + 1])
        assert accepted[b] == expected.accepted
        assert last_rows[b] == b * width + expected.accepted
        assert results_BX[b].tolist() == [expected.accepted, int(bad[0]), *draws]
        if seat:
            assert int(after.root_S[seat]) == expected.emitted[-1]
            assert int(after.num_kv_S[seat]) == int(before.num_kv_S[seat]) + expected.accepted + 1
    untouched = [seat for seat in range(NUM_SEATS) if seat not in batch or seat == 0]
    assert torch.equal(after.root_S[untouched], before.root_S[untouched])
    assert torch.equal(after.num_kv_S[untouched], before.num_kv_S[untouched])
    assert torch.equal(after.drafts_SK, before.drafts_SK) and torch.equal(after.limit_S, before.limit_S)


@TWINS
def test_forced_counts_have_the_mean_of_the_table(twin: ModuleType) -> None:
    seats = make_seats(0)
    seats.limit_S.fill_(MAX_STEPS)
    table = [3, 0, 2, 4, 4, 1, 0]
    forced = Forced(
        table_T=torch.tensor(table, dtype=torch.int32, device=DEVICE),
        cursor_1=torch.zeros(1, dtype=torch.int64, device=DEVICE),
    )
    batch, width = [2, 0, 5], 5
    draws_R = torch.full((len(batch) * width,), 77, device=DEVICE)  # no draft agrees
    bad_R = torch.zeros(len(batch) * width, dtype=torch.int8, device=DEVICE)
    seen: list[list[int]] = []
    for call in range(2 * len(table)):
        assert int(forced.cursor_1) == call
        seen.append(accept(twin, seats, batch, width, draws_R, bad_R, forced)[0])
        assert seen[-1] == [table[(call + b) % len(table)] for b in range(len(batch))]
    for b in range(len(batch)):
        assert sum(counts[b] for counts in seen) == 2 * sum(table)


@TWINS
def test_forced_counts_respect_width_limit_and_bad_rows(twin: ModuleType) -> None:
    seats = make_seats(0)
    seats.limit_S[1:4] = torch.tensor([8, 1, 8], dtype=torch.int32, device=DEVICE)
    forced = Forced(
        torch.full((1,), 6, dtype=torch.int32, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    )
    bad_BW = torch.zeros(3, 4, dtype=torch.bool, device=DEVICE)
    bad_BW[2, 2] = True
    accepted, _, _ = accept(twin, seats, [1, 2, 3], 4, longs(12), bad_BW.flatten(), forced)
    assert accepted == [3, 1, 1]


@TWINS
def test_drafts_go_to_their_seats(twin: ModuleType) -> None:
    seats = make_seats(3)
    expected_SK = seats.drafts_SK.clone()
    expected_SK[[7, 2], 4] = torch.tensor([11, 12], device=DEVICE)
    drafts_B = torch.tensor([90, 11, 91, 12], device=DEVICE)
    twin.store_drafts(seats, as_seats([0, 7, 0, 2]), drafts_B, 4)
    assert torch.equal(seats.drafts_SK, expected_SK)


def test_large_batches_are_the_same_in_both() -> None:
    batch, width = [*range(1, 150), 0, 0], 9
    theirs, ours = make_seats(1, 150), make_seats(1, 150)
    generator = torch.Generator().manual_seed(1)
    draws_R = torch.randint(0, TOKENS, (len(batch) * width,), generator=generator).to(DEVICE)
    bad_R = (torch.rand(len(batch) * width, generator=generator) < 0.05).to(DEVICE)
    found = [accept(twin, s, batch, width, draws_R, bad_R, None) for twin, s in ((reference, theirs), (gpu, ours))]
    assert found[0][:2] == found[1][:2] and torch.equal(found[0][2], found[1][2])
    assert same_seats(theirs, ours)
