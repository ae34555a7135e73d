"""The pushed sum, one rank at a time: what other ranks would have sent is laid into its mailbox beforehand, and what it
sends is looked for in theirs. Ranks that really wait for each other: tests/comm/test_cuda_collectives.py.
"""

from __future__ import annotations

import pytest
import torch

from alula.comm.backends.reduction import sum_in_rank_order
from alula.kernels.gpu import peer_sum as gpu
from alula.kernels.reference import fused
from alula.kernels.reference.fused import Norm
from interpreter import DEVICE

# Triton's interpreter cuts bf16 off where a GPU rounds.
BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
FLAGS = gpu.MAX_ROWS * gpu.MAX_TILES  # of one sender
TILE_BYTES = gpu.TILE * 4


class Ranks:
    """Mailboxes of all ranks in this process's memory."""

    def __init__(self, num_ranks: int) -> None:
        self.memory = [
            torch.zeros(gpu.mailbox_bytes(num_ranks), dtype=torch.uint8, device=DEVICE) for _ in range(num_ranks)
        ]
        addresses = torch.tensor([box.data_ptr() for box in self.memory], dtype=torch.int64, device=DEVICE)
        self.boxes = [
            gpu.Mailboxes(
                rank=rank,
                num_ranks=num_ranks,
                addresses=addresses,
                calls_RC=torch.zeros(gpu.MAX_ROWS, gpu.MAX_TILES, dtype=torch.int32, device=DEVICE),
            )
            for rank in range(num_ranks)
        ]

    def flag(self, owner: int, sender: int, row: int, tile: int) -> torch.Tensor:
        flags = self.memory[owner][: len(self.memory) * FLAGS * 4].view(torch.int32)
        return flags[sender * FLAGS + row * gpu.MAX_TILES + tile :][:1]

    def sent(self, owner: int, sender: int, call: int, row: int, tile: int, like: torch.Tensor) -> torch.Tensor:
        place = ((call & 1) * len(self.memory) + sender) * FLAGS + row * gpu.MAX_TILES + tile
        begin = len(self.memory) * FLAGS * 4 + place * TILE_BYTES
        return self.memory[owner][begin : begin + like.nbytes].view(like.dtype)

    def deliver(self, owner: int, sender: int, call: int, y_RH: torch.Tensor) -> None:
        """What `sender` does to `owner`'s memory in a call."""
        for row, tile, part in tiles(y_RH):
            self.sent(owner, sender, call, row, tile, part).copy_(part)
            self.flag(owner, sender, row, tile).fill_(call)


def tiles(y_RH: torch.Tensor) -> list[tuple[int, int, torch.Tensor]]:
    return [(row, tile, part) for row, line in enumerate(y_RH) for tile, part in enumerate(line.split(gpu.TILE))]


def inputs(num_ranks: int, rows: int, size: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, size, generator=generator).to(dtype).to(DEVICE) for _ in range(num_ranks)]


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16, torch.float16], ids=str)
@pytest.mark.parametrize(("num_ranks", "rows", "size"), [(2, 1, 576), (2, 3, 1024), (3, 2, 2500), (4, 1, 40)])
def test_every_rank_gets_the_sum_in_rank_order_and_sends_its_own(
    num_ranks: int, rows: int, size: int, dtype: torch.dtype
) -> None:
    ranks = Ranks(num_ranks)
    for call in (1, 2, 3):  # both places, and the first again
        ys = inputs(num_ranks, rows, size, dtype, seed=call)
        expected = torch.empty_like(ys[0])
        sum_in_rank_order([y.clone() for y in ys], expected)
        for owner in range(num_ranks):
            for sender in range(num_ranks):
                if sender != owner:
                    ranks.deliver(owner, sender, call, ys[sender])
        for rank in range(num_ranks):
            for other in range(num_ranks):
                if other != rank:  # as if it had sent nothing yet
                    for row, tile, part in tiles(ys[rank]):
                        ranks.sent(other, rank, call, row, tile, part).zero_()
            assert torch.equal(gpu.peer_sum(ys[rank], ranks.boxes[rank]), expected)
            for other in range(num_ranks):
                if other != rank:
                    for row, tile, part in tiles(ys[rank]):
                        assert torch.equal(ranks.sent(other, rank, call, row, tile, part), part)
                        assert int(ranks.flag(other, rank, row, tile)) == call


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16], ids=str)
def test_the_fused_sum_is_the_sum_then_the_residual_then_the_norm(dtype: torch.dtype) -> None:
    ranks, (ours, theirs) = Ranks(2), inputs(2, 3, 1500, dtype, seed=7)
    onto_RH, weight_H = inputs(2, 3, 1500, dtype, seed=8)[0], torch.randn(1500).to(dtype).to(DEVICE)
    ranks.deliver(0, 1, 1, theirs)
    found = gpu.peer_sum_onto(ours, onto_RH, Norm(weight_H, 1e-5), ranks.boxes[0])
    summed = torch.empty_like(ours)
    sum_in_rank_order((ours, theirs), summed)
    expected = fused.enter(onto_RH + summed, Norm(weight_H, 1e-5))
    assert torch.equal(found.x_RH, expected.x_RH)
    assert torch.equal(found.normed.value_RI, expected.normed.value_RI)
    assert found.normed.squares_RC is not None and expected.normed.squares_RC is not None
    assert found.normed.squares_RC.shape == (3, 2)
    torch.testing.assert_close(found.normed.squares_RC.sum(-1), expected.normed.squares_RC.sum(-1))


def test_a_row_has_its_bits_whatever_rows_come_with_it() -> None:
    many, alone = Ranks(2), Ranks(2)
    ours, theirs = inputs(2, 4, 1100, torch.bfloat16, seed=9)
    many.deliver(0, 1, 1, theirs)
    together = gpu.peer_sum(ours, many.boxes[0])
    alone.deliver(0, 1, 1, theirs[:1])
    assert torch.equal(gpu.peer_sum(ours[:1].clone(), alone.boxes[0]), together[:1])


def test_a_count_that_wraps_goes_on() -> None:
    ranks = Ranks(2)
    ours, theirs = inputs(2, 1, 64, torch.float32, seed=10)
    last = torch.iinfo(torch.int32).max
    ranks.boxes[0].calls_RC.fill_(last)
    first = torch.iinfo(torch.int32).min  # one more than the largest
    ranks.deliver(0, 1, 0, theirs)  # an even call, as the smallest is
    ranks.flag(0, 1, 0, 0).fill_(first)
    assert torch.equal(gpu.peer_sum(ours, ranks.boxes[0]), ours + theirs)
    assert int(ranks.boxes[0].calls_RC[0, 0]) == first
