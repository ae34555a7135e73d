"""Tensor-parallel engines on CUDA: ranks that share one GPU give the tokens of one rank, over captured collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_models
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.records import CycleRecord, DispatchRecord, read_records
from alula.core.sampling import SamplingParams
from alula.engine.llm import LLM

pytestmark = pytest.mark.gpu

PROMPTS = [tiny_models.random_ids(5 + 17 * index, seed=index) for index in range(3)]
SAMPLINGS = [
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=5),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.7, top_k=20, top_p=0.9, seed=6),
]


def answers(
    tp: int, family: str, steps: int, record: Path | None = None, collectives: str = "auto"
) -> list[list[int]]:
    config = EngineConfig(
        dtype="float32",
        device="cuda",
        page_tokens=4,
        max_batch=4,
        context_tokens=256,
        parallel=ParallelConfig(tp=tp, share_gpus=True, collectives=collectives),
        speculation=SpeculationConfig(speculate="always"),
    )
    head = tiny_models.head(family, "bigram")
    checkpoint = str(tiny_models.checkpoint(family))
    with LLM(checkpoint, draft=str(head), config=config, record=record) as llm:
        return [list(answer.token_ids) for answer in llm.generate(PROMPTS, SAMPLINGS, steps=steps)]


@pytest.mark.parametrize(("tp", "family"), [(2, "eight_heads"), (3, "group3_tied")])
def test_tokens_of_one_rank(tmp_path: Path, tp: int, family: str) -> None:
    expected = answers(1, family, 0)
    record = tmp_path / "records.jsonl"
    assert answers(tp, family, 3, record) == expected
    found = list(read_records(record))
    cycles = [one for one in found if isinstance(one, CycleRecord) and one.drafted]
    assert all(outcome.replayed for cycle in cycles for outcome in cycle.outcomes.values())
    captured = [one for one in found if isinstance(one, DispatchRecord) and one.captured and one.num_replays]
    assert {(one.op, one.backend) for one in captured} >= {("sum_onto", "peer_push")}


def test_tokens_without_the_fused_sum() -> None:
    assert answers(2, "eight_heads", 3, collectives="nccl") == answers(1, "eight_heads", 0)
