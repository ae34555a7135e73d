"""Collectives between ranks that hold a GPU each, through NCCL: values, equal bits, and capture into a CUDA graph."""

from __future__ import annotations

import os

import pytest
import torch
from collective_workers import Step, step_input

from alula.comm.environment_plan import plan_environment
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption
from alula.engine.ranks import RankPool

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "bfloat16", "float16")


def make_pool(size: int) -> RankPool:
    plan = plan_environment(ParallelConfig(tp=size), "cuda", os.environ)
    return RankPool("collective_workers:build", size, "cuda", plan, 60.0)


def reference(step: Step, size: int) -> torch.Tensor:
    inputs = [step_input(step, rank) for rank in range(size)]
    if step[0] == "all_reduce":
        return torch.stack(inputs).to(torch.float64).sum(0).to(inputs[0].dtype)
    return torch.cat(inputs, -1) if step[0] == "all_gather" else inputs[step[3] % size]


def test_two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("not run: needs two GPUs")
    shapes = [(1,), (288,), (4, 577), (0, 8), (600_011,)]
    steps: list[Step] = [
        (op, dtype, shape, 5)
        for op in ("all_reduce", "all_gather", "broadcast")
        for dtype in DTYPES
        for shape in shapes
    ]
    with make_pool(2) as pool:
        for results in pool.call_all(("steps", steps)):
            for step, result in zip(steps, results, strict=True):
                torch.testing.assert_close(result.cpu(), reference(step, 2))
        assert all(all(answers) for answers in pool.call_all(("agree", steps)))
        assert pool.call_all(("captured", 5)) == [2.0**5] * 2
        (record, *_) = pool.call(("records",))
        assert record.backend == "torch_distributed"
        assert "on cuda" in record.refused[0].reason


def test_more_ranks_than_gpus_are_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(InvalidOption, match=f"shows {count} GPUs"):
        make_pool(count + 1)
