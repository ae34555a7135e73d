"""Draws from tables on the device: torch against `sampling.py`, and the Triton twin against torch.

Tokens are compared where the winner is clear, since logarithms differ from device to device; noise words, kept sets and
all that does not hang on a logarithm are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import interpreter  # before Triton
from alula.core.sampling import SamplingParams
from alula.kernels.gpu import device_sampling as gpu
from alula.kernels.gpu import filter_cuts as gpu_cuts
from alula.kernels.gpu.noise import gumbel_at, gumbel_from_words, gumbel_tile, noise_words
from alula.kernels.reference import device_sampling as reference
from alula.kernels.reference import noise
from alula.kernels.reference.device_sampling import SamplingTable, has_filters, order_codes
from alula.kernels.reference.sampling import RowSampling, process_logits, sample

# numpy, which interprets the kernels, speaks up about infinities.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TWINS = pytest.mark.parametrize("twin", [reference, gpu], ids=["torch", "triton"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
DEVICE = interpreter.DEVICE
CLEAR = 1e-3  # a winner's lead over the next token

filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 7, 100, 10**6]),
    top_p=st.sampled_from([1.0, 1e-6, 0.5, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    sample_index=st.integers(0, 2**32 - 1),
)


@contextmanager
def small_workspaces() -> Iterator[None]:
    """So few places that lists overflow and rows take several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_cuts, "_LIST", 32)
        patch.setattr(gpu_cuts, "_CHUNK", 512)
        patch.setattr(gpu_cuts, "_BLOCK", 512)
        yield


def table_of(params: Sequence[SamplingParams]) -> tuple[SamplingTable, Tensor]:
    """Request b sits on seat len - b; the seats are returned too."""
    table = SamplingTable.make(len(params) + 1, DEVICE)
    for b, one in enumerate(params):
        table.set(len(params) - b, SamplingTable.row(one))
    return table, torch.arange(len(params), 0, -1, dtype=torch.int32, device=DEVICE)


def random_logits(rows: int, vocab_size: int, dtype: torch.dtype, seed: int, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab_size, generator=generator) * scale).to(dtype).to(DEVICE)


def positions(rows: int, first: int = 1000) -> Tensor:
    return torch.arange(first, first + rows, device=DEVICE)


def clear_rows(logits_RV: Tensor, params_R: Sequence[SamplingParams], positions_R: Tensor) -> Tensor:
    """Rows whose processed distribution plus noise has one clear winner."""
    rows = RowSampling.build(params_R, device=DEVICE)
    noise_RV = noise.gumbel(rows.seed_R, rows.sample_index_R, positions_R + 1, logits_RV.shape[1])
    best_R2 = (process_logits(logits_RV, rows).float() + noise_RV).topk(2, dim=1).values
    return rows.greedy_R | ((best_R2[:, 0] - best_R2[:, 1]) > CLEAR)


@given(params=st.lists(filters, min_size=1, max_size=4), seed=st.integers(0, 99), width=st.integers(1, 3))
@settings(max_examples=30)
def test_torch_draws_what_sampling_draws(params: list[SamplingParams], seed: int, width: int) -> None:
    table, seats_B = table_of(params)
    logits_RV = random_logits(len(params) * width, 1000, torch.bfloat16 if seed % 2 else torch.float32, seed)
    positions_R = positions(len(logits_RV))
    ids_R, bad_R = reference.draw_tokens(logits_RV, table, seats_B, width, positions_R, filtered=True, sampled=True)
    rows = RowSampling.build(params, [width] * len(params), DEVICE)
    noise_RV = noise.gumbel(rows.seed_R, rows.sample_index_R, positions_R + 1, 1000)
    expected_R = sample(logits_RV, rows, noise_RV)
    clear_R = clear_rows(logits_RV, [one for one in params for _ in range(width)], positions_R)
    assert torch.equal(ids_R[clear_R], expected_R[clear_R]) and not bad_R.any()


@DTYPES
@pytest.mark.parametrize("vocab_size", [307, 1000, 5000])
@pytest.mark.parametrize("filtered", [False, True], ids=["free", "filtered"])
def test_triton_draws_what_torch_draws(dtype: torch.dtype, vocab_size: int, filtered: bool) -> None:
    params = [
        SamplingParams(temperature=0.8, top_k=20 * filtered, seed=2**63 - 1, sample_index=2**32 - 1),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, top_p=0.9 if filtered else 1.0, seed=5),
    ]
    table, seats_B = table_of(params)
    logits_RV = random_logits(6, vocab_size, dtype, vocab_size)
    positions_R = positions(6, 2**31 - 3)
    drawn = [
        twin.draw_tokens(logits_RV, table, seats_B, 2, positions_R, filtered=filtered, sampled=True)
        for twin in (reference, gpu)
    ]
    clear_R = clear_rows(logits_RV, [one for one in params for _ in range(2)], positions_R)
    assert clear_R.sum() >= 4
    assert torch.equal(drawn[0][0][clear_R], drawn[1][0][clear_R])
    assert torch.equal(drawn[0][1], drawn[1][1])


@TWINS
@DTYPES
def test_greedy_takes_the_first_of_equals(twin: ModuleType, dtype: torch.dtype) -> None:
    logits_RV = random_logits(3, 5000, dtype, 1)
    logits_RV[0, [4999, 77, 2048]] = 50.0
    logits_RV[1].fill_(-3.0)
    logits_RV[2] = logits_RV[2].abs().neg()
    logits_RV[2, 4000], logits_RV[2, 9] = 0.0, -0.0
    for sampled in (False, True):
        table, seats_B = table_of([SamplingParams()] * 3)
        ids_R, bad_R = twin.draw_tokens(
            logits_RV, table, seats_B, 1, positions(3), filtered=sampled, sampled=sampled
        )
        assert ids_R.tolist() == [77, 0, 9] and ids_R.dtype == torch.int64
        assert not bad_R.any() and bad_R.dtype == torch.bool


@TWINS
@pytest.mark.parametrize("mode", ["greedy", "sampled", "filtered"])
def test_rows_without_numbers_are_bad_and_hurt_no_other(twin: ModuleType, mode: str) -> None:
    nothing, own = float("-inf"), SamplingParams(temperature=float(mode != "greedy"), top_p=0.9, top_k=40)
    table, seats_B = table_of([own] * 6)
    logits_RV = random_logits(6, 2500, torch.bfloat16, 3)
    flags = {"sampled": mode != "greedy", "filtered": mode == "filtered"}
    expected_R, _ = twin.draw_tokens(logits_RV, table, seats_B, 1, positions(6), **flags)
    hurt_RV = logits_RV.clone()
    hurt_RV[0, 2400], hurt_RV[1, 3] = float("nan"), float("inf")
    hurt_RV[2].fill_(nothing)
    hurt_RV[3].fill_(float("nan"))
    hurt_RV[4, torch.arange(2500, device=DEVICE) != expected_R[4]] = nothing  # one token is left
    ids_R, bad_R = twin.draw_tokens(hurt_RV, table, seats_B, 1, positions(6), **flags)
    assert bad_R.tolist() == [True, True, True, True, False, False]
    assert torch.equal(ids_R[4:], expected_R[4:])
    assert bool(((ids_R >= 0) & (ids_R < 2500)).all())


@TWINS
def test_a_row_draws_alone_what_it_draws_among_others(twin: ModuleType) -> None:
    params = [
        SamplingParams(temperature=1.0, top_p=0.8, seed=1),
        SamplingParams(temperature=0.4, top_k=9, seed=2),
        SamplingParams(temperature=0.0),
    ]
    table, seats_B = table_of(params)
    padded_B = torch.cat([seats_B, torch.zeros(1, dtype=torch.int32, device=DEVICE)])
    logits_RV, positions_R = random_logits(8, 3000, torch.bfloat16, 4), positions(8)
    flags = {"filtered": True, "sampled": True}
    together_R, _ = twin.draw_tokens(logits_RV, table, padded_B, 2, positions_R, **flags)
    for row in range(8):
        own = slice(row, row + 1)
        seat_1 = padded_B[row // 2 : row // 2 + 1]
        alone, _ = twin.draw_tokens(logits_RV[own], table, seat_1, 1, positions_R[own], **flags)
        assert alone.tolist() == together_R[own].tolist()


def kept_sets_agree(logits_RV: Tensor, params: Sequence[SamplingParams], width: int = 1) -> Tensor:
    """Whether both twins keep the same tokens in rows that have filters; returns how many."""
    table, seats_B = table_of(params)
    codes_RV = order_codes(logits_RV)
    kept = [
        twin.filter_cuts(logits_RV, table, seats_B, width)[:, None] >= codes_RV for twin in (reference, gpu_cuts)
    ]
    filtered_R = torch.tensor([has_filters(one) for one in params], device=DEVICE).repeat_interleave(width)
    assert torch.equal(kept[0][filtered_R], kept[1][filtered_R])
    assert bool(kept[1][~filtered_R].all())
    return kept[1].sum(1)


@given(
    params=st.lists(filters, min_size=1, max_size=2),
    kind=st.sampled_from(["normal", "levels", "equal", "few"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_filters_keep_the_same_tokens(
    params: list[SamplingParams], kind: str, dtype: torch.dtype, seed: int
) -> None:
    logits_RV = random_logits(len(params), 1200, dtype, seed)
    if kind == "levels":
        logits_RV = (logits_RV * 2).round() / 2  # with -0 and 0
    elif kind == "equal":
        logits_RV.fill_(1.5)
    elif kind == "few":
        logits_RV[:, 5:1190] = float("-inf")
    with small_workspaces():
        kept_sets_agree(logits_RV, params)


@DTYPES
def test_filters_keep_the_same_tokens_of_a_large_row(dtype: torch.dtype) -> None:
    params = [SamplingParams(temperature=0.9, top_k=300, top_p=0.9), SamplingParams(temperature=1.0, top_p=0.95)]
    counts_R = kept_sets_agree(random_logits(2, 20000, dtype, 8), params)
    assert 1 < counts_R[0] < 300 < counts_R[1] < 20000


def test_equal_tokens_are_kept_by_lower_id() -> None:
    logits_RV = torch.zeros(3, 1000, device=DEVICE)
    logits_RV[:, ::2] = -0.0
    logits_RV[2, 600:] = 1.0
    params = [SamplingParams(temperature=1.0, top_p=0.5), SamplingParams(temperature=1.0, top_k=33)]
    table, seats_B = table_of([*params, params[1]])
    with small_workspaces():
        cut_R = gpu_cuts.filter_cuts(logits_RV, table, seats_B, 1)
    kept_RV = order_codes(logits_RV) <= cut_R[:, None]
    ranges = [range(500), range(33), range(600, 633)]
    assert [row.nonzero()[:, 0].tolist() for row in kept_RV] == [list(ids) for ids in ranges]


@TWINS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_with_the_targets_logits_draws_the_targets_token(twin: ModuleType, temperature: float) -> None:
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in (3, 4, 5)]
    table, seats_B = table_of(params)
    logits_BV = random_logits(3, 1500, torch.bfloat16, 6)
    sampled = temperature > 0
    # The draft's row p - 1 and the target's row p draw the token of position p + 1.
    targets_B, _ = twin.draw_tokens(logits_BV, table, seats_B, 1, positions(3), filtered=False, sampled=sampled)
    everything_D = torch.arange(1500, device=DEVICE)
    assert torch.equal(
        twin.draw_draft_tokens(logits_BV, everything_D, table, seats_B, positions(3) - 1, sampled=sampled),
        targets_B,
    )
    # A draft that knows every third token, the target's own among them.
    hot_D = torch.cat([everything_D[::3], targets_B]).unique()
    drafts_B = twin.draw_draft_tokens(logits_BV[:, hot_D], hot_D, table, seats_B, positions(3) - 1, sampled=sampled)
    assert torch.equal(drafts_B, targets_B)


def test_a_table_holds_what_it_was_given() -> None:
    given_params = SamplingParams(temperature=0.6, top_k=12, top_p=0.75, min_p=0.1, seed=2**62 + 1, sample_index=9)
    table, _ = table_of([SamplingParams(), given_params])
    assert table.temperature_S.tolist() == pytest.approx([0.0, 0.6, 0.0])
    assert table.top_k_S.tolist() == [0, 12, 0] and table.top_p_S.tolist() == [1.0, 0.75, 1.0]
    assert table.log_min_p_S.tolist() == pytest.approx([-math.inf, math.log(0.1), -math.inf])
    assert table.seed_S.tolist() == [0, 2**62 + 1, 0] and table.sample_index_S.tolist() == [0, 9, 0]


@triton.jit
def _words_kernel(words_ptr, tile_ptr, at_ptr, counter_ptr, token_ptr, seed_ptr, NUM: tl.constexpr):
    index = tl.arange(0, NUM)
    seed, sample_index, position = tl.load(seed_ptr), tl.load(seed_ptr + 1), tl.load(seed_ptr + 2)
    counter = tl.load(counter_ptr + index)
    w0, w1, w2, w3 = noise_words(counter, seed, sample_index, position)
    tl.store(words_ptr + index, w0.to(tl.int64))
    tl.store(words_ptr + NUM + index, w1.to(tl.int64))
    tl.store(words_ptr + 2 * NUM + index, w2.to(tl.int64))
    tl.store(words_ptr + 3 * NUM + index, w3.to(tl.int64))
    place = index[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(tile_ptr + place, gumbel_tile(counter, seed, sample_index, position))
    tl.store(at_ptr + index, gumbel_at(tl.load(token_ptr + index), seed, sample_index, position))


@triton.jit
def _gumbel_kernel(out_ptr, word_ptr, NUM: tl.constexpr):
    index = tl.arange(0, NUM)
    tl.store(out_ptr + index, gumbel_from_words(tl.load(word_ptr + index).to(tl.uint32)))


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**63 - 1])
def test_noise_words_are_the_same_bits(seed: int) -> None:
    sample_index, position, num = 2**32 - 1 - seed % 5, 2**31 + 11, 64
    generator = torch.Generator().manual_seed(seed % 1000)
    counter = torch.cat([torch.arange(32), torch.randint(0, 2**16, (32,), generator=generator)]).to(DEVICE)
    token = torch.randint(0, 2**18, (num,), generator=generator).to(DEVICE)
    words_4N = torch.empty(4, num, dtype=torch.int64, device=DEVICE)
    tile_N4, at_N = torch.empty(num, 4, device=DEVICE), torch.empty(num, device=DEVICE)
    key = torch.tensor([seed, sample_index, position], device=DEVICE)
    _words_kernel[(1,)](words_4N, tile_N4, at_N, counter.int(), token.int(), key, NUM=num)
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    expected = noise.philox(
        (counter, zero + position, zero + sample_index, zero), (zero + (seed & noise.WORD), zero + (seed >> 32))
    )
    assert torch.equal(words_4N, torch.stack(expected))
    seed_1, sample_1, position_1 = key[:1], key[1:2], key[2:]
    columns = (counter[:, None] * 4 + torch.arange(4, device=DEVICE)).flatten()
    expected_tile = noise.gumbel_at(seed_1, sample_1, position_1, columns)
    torch.testing.assert_close(tile_N4.flatten(), expected_tile[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(at_N, noise.gumbel_at(seed_1, sample_1, position_1, token)[0], rtol=2e-6, atol=2e-6)


def test_noise_is_precise_at_both_ends() -> None:
    words = [
        0,
        1,
        2,
        3,
        1000,
        2**16,
        2**20,
        2**24 + 1,
        2**30,
        2**31,
        2**32 - 2**20,
        2**32 - 257,
        2**32 - 129,
        2**32 - 1,
    ]
    words += [7] * (16 - len(words))
    found = torch.empty(16, device=DEVICE)
    _gumbel_kernel[(1,)](found, torch.tensor(words, device=DEVICE), NUM=16)
    v = ((torch.tensor(words).float() + 0.5) * torch.tensor(noise.SCALE)).double()
    torch.testing.assert_close(found.cpu().double(), -torch.log(-torch.log1p(-v)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("twin", "num"), [(reference, 4000), (gpu, 300)], ids=["torch", "triton"])
def test_draws_follow_the_distribution(monkeypatch: pytest.MonkeyPatch, twin: ModuleType, num: int) -> None:
    monkeypatch.setattr(gpu, "_BLOCK", 16)
    probabilities = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    table, seats_B = table_of([SamplingParams(temperature=2.0, seed=12)])
    logits_RV = (2.0 * probabilities.log()).expand(num, 6).contiguous().to(DEVICE)
    ids_R, _ = twin.draw_tokens(logits_RV, table, seats_B, num, positions(num), filtered=False, sampled=True)
    counts = torch.bincount(ids_R.cpu(), minlength=6).double()
    expected = probabilities.double() * num
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 20.5  # 5 degrees of freedom: one in a thousand


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_full_vocabulary(dtype: torch.dtype, temperature: float) -> None:
    kinds = [{"top_k": 50}, {"top_p": 0.95}, {"top_k": 2000, "top_p": 0.8}, {"min_p": 0.05}, {}, {"top_p": 0.999}]
    params = [SamplingParams(temperature=temperature, seed=seed, **kind) for seed, kind in enumerate(kinds)]
    logits_RV = random_logits(4 * len(params), 128256, dtype, 9)
    kept_sets_agree(logits_RV, params, width=4)
    table, seats_B = table_of(params)
    positions_R = positions(len(logits_RV))
    flags = {"filtered": True, "sampled": True}
    expected_R, _ = reference.draw_tokens(logits_RV, table, seats_B, 4, positions_R, **flags)
    found_R, bad_R = gpu.draw_tokens(logits_RV, table, seats_B, 4, positions_R, **flags)
    clear_R = clear_rows(logits_RV, [one for one in params for _ in range(4)], positions_R)
    assert torch.equal(found_R[clear_R], expected_R[clear_R]) and clear_R.sum() >= 20 and not bad_R.any()


@pytest.mark.gpu
def test_a_captured_draw_replays() -> None:
    params = [
        SamplingParams(temperature=0.9, top_p=0.9, top_k=100, seed=4),
        SamplingParams(temperature=0.5, seed=5),
    ]
    table, seats_B = table_of(params)
    logits_RV, positions_R = random_logits(6, 32000, torch.bfloat16, 1), positions(6)
    flags = {"filtered": True, "sampled": True}
    gpu.draw_tokens(logits_RV, table, seats_B, 3, positions_R, **flags)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids_R, _ = gpu.draw_tokens(logits_RV, table, seats_B, 3, positions_R, **flags)
    for seed in range(3):
        logits_RV.copy_(random_logits(6, 32000, torch.bfloat16, seed))
        positions_R += 3
        graph.replay()
        expected_R, _ = gpu.draw_tokens(logits_RV, table, seats_B, 3, positions_R, **flags)
        assert torch.equal(ids_R, expected_R)
