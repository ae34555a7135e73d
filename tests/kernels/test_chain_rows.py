"""Row movements between phases: the kernels against their torch definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.kernels.gpu import chain_rows as gpu
from alula.kernels.reference import chain_rows as reference
from alula.kernels.reference.fused import Deferred, Norm, Stream
from alula.kernels.reference.seats import Seats
from interpreter import DEVICE  # before triton

DTYPES = [torch.float32, torch.bfloat16]


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def _seats() -> Seats:
    seats = Seats.make(5, 4, 3, DEVICE)
    seats.root_S.copy_(torch.arange(5) + 10)
    seats.drafts_SK.copy_(torch.arange(40).view(5, 8))
    seats.num_kv_S.copy_(torch.tensor([0, 2, 7, 11, 12]))
    seats.tables_SP.copy_(torch.tensor([[0, 0, 0, 0], [3, 4, 0, 0], [9, 2, 5, 0], [1, 6, 7, 8], [10, 11, 12, 13]]))
    return seats


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 4])
def test_rows_begin_with_their_positions_and_embeddings(width: int, dtype: torch.dtype) -> None:
    seats, seats_B = _seats(), torch.tensor([3, 1, 0, 4], dtype=torch.int32, device=DEVICE)
    table, norm = _random(64, 24, dtype=dtype), Norm(_random(24, dtype=dtype, seed=1), 1e-5)
    found, expected = (
        (
            *(torch.full((4 * width,), -1, device=DEVICE) for _ in range(3)),
            torch.full((4,), -1, dtype=torch.int32, device=DEVICE),
        )
        for _ in range(2)
    )
    stream = gpu.embed_rows(seats, seats_B, width, found, table, norm)
    like = reference.embed_rows(seats, seats_B, width, expected, table, norm)
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left, right)
    assert torch.equal(stream.x_RH, like.x_RH)
    torch.testing.assert_close(stream.normed.value_RI, like.normed.value_RI)
    torch.testing.assert_close(stream.normed.squares_RC, like.normed.squares_RC)


@pytest.mark.parametrize("num_parts", [1, 3, 5])
def test_features_lie_side_by_side_or_in_the_ring(num_parts: int) -> None:
    parts = tuple(_random(6, 10, dtype=torch.float32, seed=i) for i in range(num_parts))
    found, expected = (torch.zeros(6, 10 * num_parts, device=DEVICE) for _ in range(2))
    gpu.store_features(parts, found)
    reference.store_features(parts, expected)
    assert torch.equal(found, expected)
    seats_B = torch.tensor([2, 0, 1], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([6, 7, 0, 1, 15, 16], device=DEVICE)
    found_ring, expected_ring = (torch.zeros(3, 8, 10 * num_parts, device=DEVICE) for _ in range(2))
    gpu.keep_features(parts, found_ring, seats_B, positions)
    reference.keep_features(parts, expected_ring, seats_B, positions)
    assert torch.equal(found_ring, expected_ring)


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chains_begin_at_their_rows(post: bool, dtype: torch.dtype) -> None:
    squares = torch.rand(6, 3, device=DEVICE) + 1
    stream = Stream(_random(6, 20, dtype=dtype), Deferred(_random(6, 20, dtype=dtype, seed=3), squares, 1e-5))
    rows_B = torch.tensor([5, 0], device=DEVICE)
    seats_B = torch.tensor([1, 3], dtype=torch.int32, device=DEVICE)
    found, expected = (torch.zeros(4, 20, dtype=dtype, device=DEVICE) for _ in range(2))
    picked = gpu.begin_chains(stream, rows_B, seats_B, found, post)
    like = reference.begin_chains(stream, rows_B, seats_B, expected, post)
    torch.testing.assert_close(found, expected)
    assert torch.equal(picked.value_RI, like.value_RI) and torch.equal(picked.squares_RC, like.squares_RC)
