"""Collectives between real rank processes, against sums and joins computed here from the same seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from collective_workers import Step, step_input
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.comm.environment_plan import plan_environment
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption, RankFailure
from alula.engine.ranks import RankPool

TIMEOUT_S = 30.0
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "uint8")
OVER_A_SLOT: list[Step] = [
    ("all_reduce", "float32", (3, 100_001), 1),
    ("all_reduce", "bfloat16", (1_100_003,), 2),
    ("all_gather", "float32", (2, 150_007), 3),
    ("broadcast", "float16", (600_011,), 4),
]


def make_pool(size: int, collectives: str = "auto") -> RankPool:
    parallel = ParallelConfig(tp=size, collectives=collectives, rank_deadline_s=TIMEOUT_S)
    plan = plan_environment(parallel, "cpu", os.environ)
    return RankPool("collective_workers:build", size, None, plan, TIMEOUT_S)


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with make_pool(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def gloo_pool() -> Iterator[RankPool]:
    with make_pool(3, "torch_distributed") as pool:
        yield pool


def reference(step: Step, size: int) -> torch.Tensor:
    inputs = [step_input(step, rank) for rank in range(size)]
    if step[0] == "all_gather":
        return torch.cat(inputs, -1)
    if step[0] == "broadcast":
        return inputs[step[3] % size]
    wide = torch.float32 if step[1] in ("bfloat16", "float16") else inputs[0].dtype
    total = inputs[0].to(wide)
    for x in inputs[1:]:
        total = total + x.to(wide)
    return total.to(inputs[0].dtype)


def check(pool: RankPool, steps: list[Step]) -> None:
    size = len(pool.process_ids())
    for results in pool.call_all(("steps", steps)):
        for step, result in zip(steps, results, strict=True):
            assert result.dtype == getattr(torch, step[1])
            assert torch.equal(result, reference(step, size)), step


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast"])
def test_equals_the_reference_bit_for_bit(pool: RankPool, op: str) -> None:
    shapes = [(1,), (7,), (288,), (4, 577), (3, 1, 5), (0, 8), (65, 129)]
    check(pool, [(op, dtype, shape, seed) for dtype in DTYPES for seed, shape in enumerate(shapes)])


def test_messages_larger_than_a_slot(pool: RankPool) -> None:
    check(pool, OVER_A_SLOT)


def test_rapid_calls_of_changing_size(pool: RankPool) -> None:
    """A slot that is written again too early, or read too late, shows as a wrong sum."""
    assert set(pool.call_all(("rapid", [1, 3584, 7, 288, 1, 1, 20_000], 1500))) == {0}


STEPS = st.tuples(
    st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
    st.sampled_from(DTYPES),
    st.one_of(
        st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
        st.integers(1, 700_000).map(lambda numel: (numel,)),
    ),
    st.integers(0, 2**20),
)


@settings(max_examples=12)
@given(steps=st.lists(STEPS, min_size=1, max_size=12))
def test_random_sequences(pool: RankPool, steps: list[Step]) -> None:
    check(pool, steps)


def test_bits_agree(pool: RankPool) -> None:
    steps: list[Step] = [("all_reduce", "bfloat16", (5, 577), 1), ("all_gather", "float32", (31,), 2), *OVER_A_SLOT]
    assert all(all(answers) for answers in pool.call_all(("agree", steps)))
    assert set(pool.call_all(("disagree",))) == {(False, False, False)}


def test_strided_tensors(pool: RankPool) -> None:
    size = len(pool.process_ids())
    base = torch.arange(24.0).view(4, 6)
    expected = (
        size * base.t() + sum(range(size)),
        torch.cat([base.t() + rank for rank in range(size)], 0),
        base[:, 1] + 1,
    )
    for results in pool.call_all(("strided",)):
        assert all(torch.equal(found, wanted) for found, wanted in zip(results, expected, strict=True))


def test_every_gradient_mode(pool: RankPool) -> None:
    assert pool.call(("modes",)) == 3 * 7 * len(pool.process_ids())


def test_records_count_calls_and_name_backends(pool: RankPool) -> None:
    step: Step = ("all_reduce", "float32", (12_347,), 0)
    pool.call(("steps", [step] * 5))
    (record,) = [record for record in pool.call(("records",)) if record.num_bytes == 4 * 12_347]
    assert (record.backend, record.num_calls, record.phase, record.refused) == ("shared_memory", 5, "verify", ())


def test_a_refusal_is_recorded_and_the_next_backend_takes_the_call(pool: RankPool) -> None:
    assert pool.call_all(("unknown_dtype",)) == [2.0 * len(pool.process_ids())] * len(pool.process_ids())
    (record,) = [record for record in pool.call(("records",)) if record.dtype == "complex64"]
    assert record.backend == "torch_distributed"
    assert [(refusal.backend, refusal.reason[:15]) for refusal in record.refused] == [
        ("shared_memory", "dtype complex64")
    ]


def test_an_error_that_all_ranks_share_leaves_the_pool_alive(pool: RankPool) -> None:
    with pytest.raises(InvalidOption, match=r"shared_memory: a sum of bool .*; torch_distributed: a sum of bool"):
        pool.call(("sum_of_bool",))
    check(pool, [("all_reduce", "float32", (5,), 0)])


def test_gloo_gives_the_same_bits_as_shared_memory(gloo_pool: RankPool) -> None:
    shapes = [(1,), (288,), (4, 577), (0, 8)]
    ops = ("all_reduce", "all_gather", "broadcast")
    check(gloo_pool, [(op, dtype, shape, 5) for op in ops for dtype in DTYPES for shape in shapes])
    check(gloo_pool, OVER_A_SLOT)
    assert gloo_pool.call(("modes",)) == 3 * 7 * 3
    assert {record.backend for record in gloo_pool.call(("records",))} == {"torch_distributed"}


def test_a_forced_backend_says_why_it_refuses_and_ranks_at_odds_are_an_error() -> None:
    with make_pool(2, "shared_memory") as pool:
        with pytest.raises(InvalidOption) as caught:
            pool.call(("unknown_dtype",))
        assert "shared_memory: dtype complex64" in str(caught.value)
        assert "torch_distributed: not asked for: --collectives shared_memory" in str(caught.value)
        with pytest.raises(RankFailure, match=r"all_reduce of 16 bytes of float32.*20 bytes"):
            pool.call(("different_calls",))
