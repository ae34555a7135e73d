"""Filters, draws and logprobs against a plain numpy oracle; rows independent of their company."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from alula.core.sampling import SamplingParams
from alula.kernels.reference.noise import gumbel
from alula.kernels.reference.sampling import (
    RowSampling,
    check_rows,
    draw,
    first_argmax,
    logprobs,
    process_logits,
    sample,
)

Array = npt.NDArray[np.float64]


def oracle(logits: Sequence[float], params: SamplingParams) -> tuple[Array, bool]:
    """p of one row, in float64, and whether some decision was too close to call in fp32."""
    p = np.array(logits, np.float64)
    if params.greedy:
        return (np.arange(len(p)) == p.argmax()).astype(np.float64), False
    p = np.exp((p - p.max()) / params.temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: params.top_k or len(p)]
    close = False
    if params.top_p < 1:
        share = p[kept] / p[kept].sum()
        before = np.concatenate(([0.0], share.cumsum()[:-1]))
        close |= bool((abs(before - params.top_p)[(share > 0) & (before > 0)] < 1e-5).any())
        kept = kept[(before < params.top_p) | (before == 0)]
    ratio = p[kept] / p[kept[0]]
    close |= params.min_p > 0 and bool((abs(ratio - params.min_p) < 1e-5 * params.min_p)[ratio < 1].any())
    kept = kept[ratio >= params.min_p]
    result = np.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result, close


temperatures = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 3.0))
some_params = st.builds(
    SamplingParams,
    temperature=temperatures,
    top_k=st.one_of(st.just(0), st.integers(1, 40)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
)
# Coarse values, so that equal logits are common; exact in bfloat16.
some_rows = st.integers(1, 40).flatmap(
    lambda size: st.lists(
        st.tuples(st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=size, max_size=size), some_params),
        min_size=1,
        max_size=5,
    )
)


def mixture() -> list[SamplingParams]:
    """One of each kind, as a batch may bring them."""
    return [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.7, top_k=50),
        SamplingParams(temperature=1.3, top_p=0.9),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.8, min_p=0.01),
        SamplingParams(temperature=0.9, min_p=0.05),
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-6),
    ]


def random_logits(num_rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed)) * 4


@given(rows=some_rows, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_processing_follows_the_oracle(rows: list[tuple[list[float], SamplingParams]], dtype: torch.dtype) -> None:
    logits = torch.tensor([row for row, _ in rows]).to(dtype)
    found = process_logits(logits, RowSampling.build([params for _, params in rows]))
    assert found.dtype == torch.float32
    for (row, params), log_probs in zip(rows, found, strict=True):
        expected, close = oracle(row, params)
        if close:
            continue
        assert ((log_probs > -math.inf).numpy() == (expected > 0)).all()
        np.testing.assert_allclose(log_probs.exp().numpy(), expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("params", mixture(), ids=lambda p: f"T{p.temperature}k{p.top_k}p{p.top_p}m{p.min_p}")
def test_processing_at_a_real_vocabulary(params: SamplingParams) -> None:
    logits = random_logits(2, 49152)
    found = process_logits(logits, RowSampling.build([params] * 2))
    for row in range(2):
        expected, _ = oracle(logits[row].tolist(), params)
        wrong = (found[row] > -math.inf).numpy() != (expected > 0)
        assert wrong.sum() <= 1  # the sum over so many may meet top-p one token later in fp32
        np.testing.assert_allclose(found[row].exp().numpy()[~wrong], expected[~wrong], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("size", [33, 1024, 5003, 16384])
def test_rows_do_not_depend_on_their_company(size: int) -> None:
    params = mixture()
    logits = random_logits(len(params), size, seed=size)
    logits[4:] = (logits[4:] * 2).round() / 2  # with many equals
    full = process_logits(logits, RowSampling.build(params))
    for row, own in enumerate(params):
        alone = process_logits(logits[row : row + 1], RowSampling.build([own]))
        assert torch.equal(alone[0], full[row]), own
        twice = process_logits(logits[row].expand(7, -1), RowSampling.build([own], widths=[7]))
        assert torch.equal(twice, full[row].expand(7, -1)), own
    for seed in range(5):
        order = torch.randperm(len(params), generator=torch.Generator().manual_seed(seed))[: 4 + seed]
        mixed = process_logits(logits[order], RowSampling.build([params[i] for i in order.tolist()]))
        assert torch.equal(mixed, full[order])


def test_equals_at_the_border_are_kept_by_lower_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0]])
    by_rank = process_logits(logits, RowSampling.build([SamplingParams(temperature=1.0, top_k=4)]))
    assert (by_rank[0] > -math.inf).tolist() == [True, True, True, True, False, False]
    logits = torch.zeros(1, 1000)
    by_mass = process_logits(logits, RowSampling.build([SamplingParams(temperature=1.0, top_p=0.5)]))
    kept = (by_mass[0] > -math.inf).nonzero()[:, 0].tolist()
    assert kept == list(range(len(kept))) and 500 <= len(kept) <= 501
    by_ratio = process_logits(logits, RowSampling.build([SamplingParams(temperature=1.0, min_p=1.0)]))
    assert (by_ratio > -math.inf).all()


def test_extreme_temperatures_stay_finite() -> None:
    logits = torch.tensor([[3e4, 2.9e4, -3e4], [1.0, 1.0, 0.0]])
    cold = process_logits(logits, RowSampling.build([SamplingParams(temperature=1e-300)] * 2))
    assert cold.exp().tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    hot = process_logits(logits, RowSampling.build([SamplingParams(temperature=1e30)] * 2))
    torch.testing.assert_close(hot.exp(), torch.full((2, 3), 1 / 3))


def test_tokens_already_excluded_stay_so() -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 0.0]])
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=3, top_p=0.99)):
        found = process_logits(logits, RowSampling.build([params]))
        assert (found > -math.inf).tolist() == [[False, True, False, True]]
        assert float(found.exp().sum()) == pytest.approx(1.0)


@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=300),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_greedy_takes_the_lowest_id_among_equals(values: list[int], dtype: torch.dtype) -> None:
    row = torch.tensor([values]).to(dtype)
    expected = values.index(max(values))
    assert first_argmax(row).tolist() == [expected]
    assert sample(row, RowSampling.build([SamplingParams()])).tolist() == [expected]
    assert process_logits(row, RowSampling.build([SamplingParams()]))[0].argmax().item() == expected


def test_greedy_at_a_real_vocabulary() -> None:
    logits = random_logits(9, 49152).round().to(torch.bfloat16)
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert sample(logits, RowSampling.build([SamplingParams()] * 9)).tolist() == expected


def test_a_mixed_batch_draws_each_row_by_its_own() -> None:
    params = mixture()
    logits = random_logits(len(params), 301)
    rows = RowSampling.build(params)
    noise = gumbel(rows.seed_R, rows.sample_index_R, torch.arange(len(params)), 301)
    drawn = sample(logits, rows, noise)
    for row, own in enumerate(params):
        assert sample(logits[row : row + 1], RowSampling.build([own]), noise[row : row + 1]).tolist() == [
            int(drawn[row])
        ]
    assert drawn[0] == logits[0].argmax() and drawn[6] == logits[6].argmax() and drawn[7] == logits[7].argmax()


def test_rows_are_built_in_order_and_width() -> None:
    greedy, warm = SamplingParams(seed=3), SamplingParams(temperature=0.5, top_k=7, seed=2**63 - 1, sample_index=4)
    rows = RowSampling.build([greedy, warm], widths=[1, 2])
    assert rows.greedy_R.tolist() == [True, False, False] and not rows.all_greedy
    assert rows.seed_R.tolist() == [3, 2**63 - 1, 2**63 - 1]
    assert rows.sample_index_R.tolist() == [0, 4, 4]
    assert rows.top_k_R.tolist() == [0, 7, 7] and rows.temperature_R.tolist() == [1.0, 0.5, 0.5]
    assert RowSampling.build([greedy] * 3).all_greedy


def test_draws_follow_the_processed_law() -> None:
    params = SamplingParams(temperature=0.8, top_k=6, top_p=0.95, seed=7)
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0, 1.5])
    count = 100_000
    log_probs = process_logits(logits[None], RowSampling.build([params]))
    noise = gumbel(torch.tensor([7]), torch.tensor([0]), torch.arange(count), len(logits))
    counts = torch.bincount(draw(log_probs, noise), minlength=len(logits)).double()
    p = torch.from_numpy(oracle(logits.tolist(), params)[0])
    assert (counts[p == 0] == 0).all()
    kept = p > 0
    statistic = float(((counts - p * count)[kept] ** 2 / (p * count)[kept]).sum())
    assert 1 < kept.sum() < len(logits) and statistic < 26  # 5 degrees of freedom at most: p > 1e-4


def test_the_draft_draws_with_the_noise_of_the_target_ids() -> None:
    """A draft whose q is p restricted to its vocabulary proposes the target's token whenever that is in it."""
    hot_ids = torch.arange(1, 300, 3)
    logits = random_logits(40, 300)
    rows = RowSampling.build([SamplingParams(temperature=1.0)] * 40)
    noise = gumbel(rows.seed_R, rows.sample_index_R, torch.arange(40), 300)
    target = sample(logits, rows, noise)
    drafted = hot_ids[sample(logits[:, hot_ids], rows, noise[:, hot_ids])]
    covered = torch.isin(target, hot_ids)
    assert 5 < covered.sum() < 40 and torch.equal(drafted[covered], target[covered])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bad_rows_are_named(dtype: torch.dtype) -> None:
    logits = random_logits(6, 50).to(dtype)
    logits[1, 30] = math.nan
    logits[2, 0] = math.inf
    logits[3] = -math.inf
    logits[4, 5:] = -math.inf
    logits[5, 1], logits[5, 2] = math.nan, math.inf
    assert check_rows(logits).tolist() == [False, True, True, True, False, True]


def test_a_bad_row_leaves_the_others_alone() -> None:
    params = mixture()
    logits = random_logits(len(params), 200)
    rows = RowSampling.build(params)
    clean = process_logits(logits, rows)
    for bad in range(len(params)):
        broken = logits.clone()
        broken[bad, 17] = math.nan
        others = torch.arange(len(params)) != bad
        assert torch.equal(process_logits(broken, rows)[others], clean[others])


@given(values=st.lists(st.integers(-8, 8), min_size=1, max_size=30), num_top=st.integers(0, 20))
def test_logprobs(values: list[int], num_top: int) -> None:
    assume(num_top <= len(values))
    logits = torch.tensor([values, values[::-1]]).to(torch.bfloat16)
    found = logprobs(logits, torch.tensor([0, len(values) - 1]), num_top)
    expected = torch.log_softmax(logits.float(), -1)
    assert found.chosen_R.tolist() == [expected[0, 0], expected[1, -1]]
    order = [sorted(range(len(values)), key=lambda i: (-row[i], i))[:num_top] for row in expected.tolist()]
    assert found.top_ids_RN.tolist() == order
    assert torch.equal(found.top_RN, expected.gather(1, found.top_ids_RN))


@pytest.mark.parametrize("size", [64, 4096, 4100, 49152])
@pytest.mark.parametrize("spread", [1, 3, 100])
def test_top_tokens_of_a_large_vocabulary_with_many_equals(size: int, spread: int) -> None:
    logits = torch.randint(0, spread, (3, size), generator=torch.Generator().manual_seed(size)).to(torch.bfloat16)
    logits[2, 5::7] = -math.inf
    found = logprobs(logits, torch.zeros(3, dtype=torch.int64), 16)
    expected = [sorted(range(size), key=lambda i: (-row[i], i))[:16] for row in logits.tolist()]
    assert found.top_ids_RN.tolist() == expected


def test_nothing_is_mutated() -> None:
    params = mixture()
    logits, noise = random_logits(len(params), 100), torch.zeros(len(params), 100)
    copy = logits.clone()
    sample(logits, RowSampling.build(params), noise)
    logprobs(logits, torch.zeros(len(params), dtype=torch.int64), 3)
    check_rows(logits)
    assert torch.equal(logits, copy) and not noise.any()


@pytest.mark.gpu
def test_a_gpu_keeps_rows_independent_and_ties_low() -> None:
    params = mixture()
    for size in (1000, 49152):
        logits = ((random_logits(len(params), size) * 2).round() / 2).cuda()
        full = process_logits(logits, RowSampling.build(params, device="cuda"))
        torch.testing.assert_close(full.cpu(), process_logits(logits.cpu(), RowSampling.build(params)))
        for row, own in enumerate(params):
            alone = process_logits(logits[row : row + 1], RowSampling.build([own], device="cuda"))
            assert torch.equal(alone[0], full[row])
        assert first_argmax(logits).tolist() == [row.index(max(row)) for row in logits.tolist()]
