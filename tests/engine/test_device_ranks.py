"""The device-resident cycle over two, three and four ranks, on a CPU over torch's kernels: one rank's tokens, the same
bits on every rank, and a clear end where they differ.

Pools of ranks take seconds to start, so the tests of one pool share it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import device_workers
import tiny_models
from alula.comm.environment_plan import plan_environment
from alula.comm.group import single_group
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.errors import RankFailure
from alula.core.records import CycleRecord, DispatchRecord, read_records
from alula.core.sampling import SamplingParams
from alula.engine.llm import LLM
from alula.engine.ranks import RankPool
from alula.engine.request import RequestSpec
from alula.engine.setup import EngineSpec, Parts
from alula.models.source import resolve_source

TIMEOUT_S = 60.0
# One of each kind of draw; the last is drawn on the host.
SAMPLINGS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.0, seed=5),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.7, top_k=20, top_p=0.9, seed=6),
    SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, repetition_penalty=1.2, logprobs=2, seed=8),
]
MIXED = ((0, 3), (1, 3), (2, 0), (3, 2))  # sampling, drafts


def requests(*kinds: tuple[int, int]) -> tuple[RequestSpec, ...]:
    return tuple(
        RequestSpec(
            request_id=f"r{index}",
            prompt_ids=tuple(tiny_models.random_ids(5 + 17 * index, seed=index)),
            sampling=SAMPLINGS[kind],
            steps=steps,
        )
        for index, (kind, steps) in enumerate(kinds)
    )


RUNS = {
    "plain": device_workers.Run(requests((0, 0), (1, 0), (2, 0))),
    "drafted": device_workers.Run(requests((0, 3), (1, 3), (2, 3))),
    "in chunks, now and then drafted": device_workers.Run(
        requests(*MIXED), (True, False, False), gap=2, limits=(("chunk_tokens", 7),)
    ),
    "with preemption": device_workers.Run(
        requests((0, 3), (0, 3), (0, 3), (1, 0)), limits=(("num_pages", 24), ("chunk_tokens", 16))
    ),
}


def spec_of(family: str, tp: int, head: Path | None, draft: str = "auto") -> EngineSpec:
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        threads=1,
        page_tokens=4,
        max_batch=8,
        context_tokens=256,
        parallel=ParallelConfig(tp=tp, draft=draft, rank_deadline_s=TIMEOUT_S),
        speculation=SpeculationConfig(speculate="always"),
    )
    return EngineSpec(source=resolve_source(str(tiny_models.checkpoint(family))), head=head, config=config)


@functools.cache
def alone(family: str, head: Path | None) -> Parts:
    return device_workers.load_device_parts(spec_of(family, 1, head), single_group())


@functools.cache
def expected(family: str, head: Path | None, name: str) -> device_workers.Ran:
    return device_workers.run(alone(family, head), RUNS[name])


def start(spec: EngineSpec) -> RankPool:
    plan = plan_environment(spec.config.parallel, "cpu", os.environ)
    return RankPool("device_workers:build", spec.config.parallel.tp, spec, plan, TIMEOUT_S)


def check(pool: RankPool, family: str, head: Path | None, name: str) -> None:
    wanted = expected(family, head, name)
    found, *others = pool.call_all(RUNS[name])
    assert found.token_ids == wanted.token_ids
    assert (found.accepted, found.num_preemptions) == (wanted.accepted, wanted.num_preemptions)
    assert all(other == found for other in others)  # with the digest of all logits


# (family, ranks, where the head is): heads sharded, whole on every rank beside a sharded target, or forced to be whole
PLACES = [("eight_heads", 2, "sharded"), ("group3_tied", 3, "auto"), ("eight_heads", 4, "replicated")]


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: f"{place[0]} on {place[1]}, head {place[2]}")
def place(request: pytest.FixtureRequest) -> Iterator[tuple[RankPool, str]]:
    family, tp, draft = request.param
    with start(spec_of(family, tp, tiny_models.head(family, "bigram"), draft)) as pool:
        yield pool, family


@pytest.mark.parametrize("name", RUNS)
def test_the_tokens_of_one_rank_and_equal_bits_on_all(place: tuple[RankPool, str], name: str) -> None:
    pool, family = place
    check(pool, family, tiny_models.head(family, "bigram"), name)


def test_the_runs_are_worth_their_name() -> None:
    wanted = {name: expected("eight_heads", tiny_models.head("eight_heads", "bigram"), name) for name in RUNS}
    assert wanted["plain"].token_ids == wanted["drafted"].token_ids
    assert wanted["plain"].accepted == 0 < wanted["drafted"].accepted
    assert wanted["drafted"].num_cycles < wanted["plain"].num_cycles
    assert wanted["with preemption"].num_preemptions > 0


def test_a_head_that_multiplies_with_the_targets_own_weights(tmp_path: Path) -> None:
    """Sharded by vocabulary: embedding and output head both belong to the target, and the draft gathers its logits."""
    head = shared_head(tmp_path / "head")
    with start(spec_of("eight_heads", 2, head, "sharded")) as pool:
        check(pool, "eight_heads", head, "drafted")


def shared_head(folder: Path) -> Path:
    source = tiny_models.head("eight_heads", "random")
    config = json.loads((source / "config.json").read_text())
    del config["draft_vocab_size"]
    tensors = load_file(source / "model.safetensors")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {k: v for k, v in tensors.items() if k not in ("lm_head.weight", "d2t", "t2d")},
        folder / "model.safetensors",
    )
    return folder


def test_ranks_that_disagree_are_stopped() -> None:
    spec = spec_of("eight_heads", 2, tiny_models.head("eight_heads", "bigram"))
    with start(spec) as pool:
        pool.call(device_workers.Diverge())
        with pytest.raises(RankFailure, match="cycle 0: the ranks hold different logits"):
            pool.call(RUNS["plain"])


def test_an_llm_over_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto`: the driver decides from rank 0's times; every rank follows, with a cycle under way."""
    monkeypatch.setattr("alula.engine.backends.build_rank_worker", device_workers.build_rank_worker)
    head, record = tiny_models.head("eight_heads", "bigram"), tmp_path / "records.jsonl"
    config = spec_of("eight_heads", 2, None).config
    prompts = [list(spec.prompt_ids) for spec in RUNS["plain"].specs]
    samplings = [spec.sampling for spec in RUNS["plain"].specs]
    wanted = list(expected("eight_heads", head, "plain").token_ids.values())
    with LLM(str(tiny_models.checkpoint("eight_heads")), draft=str(head), config=config, record=record) as llm:
        assert llm.describe().facts["device_cycle"]["kernels"] == "torch"
        for steps in (0, 3):
            answers = llm.generate(prompts, samplings, steps=steps)
            assert [list(answer.token_ids) for answer in answers] == wanted
        stream = llm.stream(prompts[0], SamplingParams(max_tokens=100, ignore_eos=True))
        next(stream)
        stream.close()  # while a cycle is under way
        assert [list(answer.token_ids) for answer in llm.generate(prompts, samplings)] == wanted
    found = list(read_records(record))
    dispatched = [one for one in found if isinstance(one, DispatchRecord)]
    assert {(one.op, one.phase) for one in dispatched} >= {
        (op, phase) for op in ("all_reduce", "all_gather") for phase in ("draft", "verify", "extend")
    }
    cycles = [one for one in found if isinstance(one, CycleRecord) and one.drafted]
    assert {"draft", "verify", "extend"} <= cycles[0].outcomes.keys()
