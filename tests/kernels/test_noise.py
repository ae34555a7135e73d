"""Gumbel noise: Philox against published vectors and against whole-number arithmetic; the law; independence."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from alula.kernels.reference.noise import (
    MULTIPLIERS,
    NUM_ROUNDS,
    SCALE,
    WEYL,
    NoiseWindow,
    gumbel,
    gumbel_at,
    philox,
)

WORD = 2**32 - 1
words = st.integers(0, WORD)
seeds = st.integers(0, 2**63 - 1)


def column(*values: int) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def whole_number_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """The definition, in Python's own integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(NUM_ROUNDS):
        high0, low0 = divmod(MULTIPLIERS[0] * c0, 2**32)
        high1, low1 = divmod(MULTIPLIERS[1] * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) % 2**32, (k1 + WEYL[1]) % 2**32
    return [c0, c1, c2, c3]


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """Upper tail of the chi-square statistic with len - 1 degrees of freedom."""
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


# Random123 1.09, kat_vectors, "philox4x32 10".
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    found = philox(column(*counter), column(*key))  # type: ignore[arg-type]
    assert [int(word) for word in found] == list(expected)


@given(counter=st.tuples(words, words, words, words), key=st.tuples(words, words))
def test_philox_is_the_definition(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    found = philox(column(*counter), column(*key))  # type: ignore[arg-type]
    assert [int(word) for word in found] == whole_number_philox(counter, key)


@given(seed=seeds, sample=words, position=st.integers(0, 2**31), token=st.integers(0, 300))
def test_an_element_follows_from_its_coordinates(seed: int, sample: int, position: int, token: int) -> None:
    found = gumbel(*column(seed, sample, position), 301)[0, token]
    h = whole_number_philox((token // 4, position, sample, 0), (seed & WORD, seed >> 32))[token % 4]
    v = min((h + 0.5) * SCALE, 1 - 2**-24)
    # relative error of v is at most 2^-24; near v = 1 that is large for -log1p(-v)
    assert float(found) == pytest.approx(-math.log(-math.log1p(-v)), abs=1e-4 if v < 0.99 else 0.8)


def test_every_value_is_finite_and_large_ones_are_fine() -> None:
    from alula.kernels.reference.noise import _gumbel_from_words_

    ends = torch.tensor([0, 1, 2, 3, 2**31, WORD - 1, WORD]).to(torch.float32)
    noise = _gumbel_from_words_(ends.clone())
    assert torch.isfinite(noise).all()
    assert float(noise[0]) == pytest.approx(-math.log(2**-33), abs=1e-5)
    assert (noise[:4].diff() < 0).all()  # neighbours at the top are told apart
    assert float(noise[-1]) == pytest.approx(-math.log(24 * math.log(2)), abs=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 63, 64, 65, 1000, 49152])
def test_columns_agree_bit_for_bit(vocab_size: int) -> None:
    three = (torch.tensor([5, 2**62 + 17, 5]), torch.tensor([0, 3, 1]), torch.tensor([9, 0, 70000]))
    full = gumbel(*three, vocab_size)
    assert full.shape == (3, vocab_size)
    generator = torch.Generator().manual_seed(vocab_size)
    for count in (1, 2, 17, 255):
        ids = torch.randint(0, vocab_size, (count,), generator=generator)
        assert torch.equal(gumbel_at(*three, ids), full[:, ids])
        own_ids = torch.randint(0, vocab_size, (3, count), generator=generator)
        assert torch.equal(gumbel_at(*three, own_ids), full.gather(1, own_ids))


def test_rows_do_not_depend_on_their_company() -> None:
    count = 9
    arguments = (torch.arange(count) * 77, torch.arange(count) % 2, torch.arange(count) + 100)
    full = gumbel(*arguments, 4099)
    for row in range(count):
        assert torch.equal(gumbel(*(a[row : row + 1] for a in arguments), 4099)[0], full[row])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gumbel(*(a[order] for a in arguments), 4099), full[order])
    assert torch.equal(gumbel(*(a[2:7] for a in arguments), 130), full[2:7, :130])


def test_one_seed_may_serve_all_rows() -> None:
    positions = torch.arange(6)
    spread = gumbel(torch.full((6,), 11), torch.full((6,), 2), positions, 100)
    assert torch.equal(gumbel(torch.tensor([11]), torch.tensor([2]), positions, 100), spread)


def test_words_are_uniform() -> None:
    positions = torch.arange(64)
    noise = gumbel(torch.tensor([2024]), torch.tensor([0]), positions, 8192)
    uniform = -torch.expm1(-torch.exp(-noise.double()))  # back to v
    counts = torch.histc(uniform, bins=256, min=0, max=1)
    assert chi_square_p(counts, torch.full((256,), noise.numel() / 256)) > 1e-4
    for lane in range(4):
        counts = torch.histc(uniform[:, lane::4].contiguous(), bins=64, min=0, max=1)
        assert chi_square_p(counts, torch.full((64,), noise.numel() / 256)) > 1e-4


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_the_largest_sum_follows_the_distribution(varied: str) -> None:
    """Gumbel-max: argmax(log p + noise) is a draw from p, over whichever coordinate the draws run."""
    p = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005])
    count = 200_000
    running, fixed = torch.arange(count), torch.full((count,), 3)
    arguments = [running if name == varied else fixed for name in ("seed", "sample", "position")]
    ids = (p.log() + gumbel(*arguments, len(p))).argmax(-1)
    assert chi_square_p(torch.bincount(ids, minlength=len(p)), p * count) > 1e-4


@pytest.mark.parametrize("varied", ["seed", "sample", "position", "token"])
def test_neighbours_are_independent(varied: str) -> None:
    """A 16 x 16 table of the probabilities at neighbouring coordinates is flat."""
    count = 256
    grid = torch.arange(count)
    steps = {name: int(name == varied) for name in ("seed", "sample", "position", "token")}
    here = gumbel(grid, grid * 0, grid * 0 + 5, 2 * count)
    there = gumbel(grid + steps["seed"], grid * 0 + steps["sample"], grid * 0 + 5 + steps["position"], 2 * count)
    if varied == "token":
        here, there = here[:, 0::2], here[:, 1::2]
    bins = [(torch.exp(-torch.exp(-noise)) * 16).long().clamp(0, 15).flatten() for noise in (here, there)]
    table = torch.bincount(bins[0] * 16 + bins[1], minlength=256)
    assert chi_square_p(table, torch.full((256,), len(bins[0]) / 256)) > 1e-4


@given(moves=st.lists(st.tuples(st.integers(-3, 9), st.integers(1, 6)), max_size=40), block=st.integers(1, 5))
def test_a_window_shows_the_same_rows(moves: list[tuple[int, int]], block: int) -> None:
    window = NoiseWindow(99, 1, 70, max_rows=6, block=block)
    first = 5
    for step, num_rows in moves:
        first = max(0, first + step)
        expected = gumbel(torch.tensor([99]), torch.tensor([1]), torch.arange(first, first + num_rows), 70)
        assert torch.equal(window.rows(first, num_rows), expected)


@pytest.mark.gpu
def test_a_gpu_agrees() -> None:
    arguments = (torch.tensor([5, 2**62 + 17]), torch.tensor([0, 3]), torch.tensor([9, 70000]))
    on_gpu = gumbel(*(a.cuda() for a in arguments), 49152)
    torch.testing.assert_close(on_gpu.cpu(), gumbel(*arguments, 49152), rtol=1e-5, atol=1e-5)
    ids = torch.tensor([0, 77, 49151]).cuda()
    assert torch.equal(gumbel_at(*(a.cuda() for a in arguments), ids), on_gpu[:, ids])
