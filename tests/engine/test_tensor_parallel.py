"""Two to four ranks against one: logits, tokens, equal bits on all ranks, and a clear end where a rank dies.

Pools of ranks take seconds to start, so the tests of one pool share it, and the last of them breaks it.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import engine_workers
import tiny_models
from alula.comm.dispatch import Dispatcher
from alula.comm.environment_plan import plan_environment
from alula.comm.group import Group
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.errors import InvalidOption, RankFailure
from alula.core.records import DispatchRecord, EnvironmentRecord, RequestRecord, RunRecord, read_records
from alula.core.sampling import SamplingParams
from alula.core.shape import parse_shape
from alula.engine.llm import LLM, Completion
from alula.engine.ranks import RankPool
from alula.engine.setup import EngineSpec
from alula.engine.speculation_policy import Decision, FixedPolicy
from alula.layers.kernels import reference_kernels
from alula.layers.weights import WeightReader
from alula.models.checkpoint import open_checkpoint
from alula.models.llama import LlamaModel
from alula.models.source import resolve_source
from alula.spec.head_loading import HeadPlace, load_head

FAMILY = "eight_heads"
TOLERANCE = 1e-4
TIMEOUT_S = 60.0
PROMPTS = [tiny_models.random_ids(n, seed) for seed, n in enumerate((20, 5, 33))]
SAMPLINGS = [
    SamplingParams(max_tokens=24, ignore_eos=True, logprobs=20),
    SamplingParams(max_tokens=24, ignore_eos=True, logprobs=20, temperature=0.9, top_p=0.95, seed=3),
    SamplingParams(max_tokens=24, ignore_eos=True, logprobs=20, temperature=0.7, repetition_penalty=1.3, seed=4),
]


def config(**parallel: Any) -> EngineConfig:
    return EngineConfig(
        dtype="float32",
        device="cpu",
        threads=1,
        page_tokens=4,
        max_batch=8,
        context_tokens=256,
        parallel=ParallelConfig(**{"rank_deadline_s": TIMEOUT_S, **parallel}),
        speculation=SpeculationConfig(speculate="always"),
    )


def load(record: Path | None = None, **parallel: Any) -> LLM:
    head = tiny_models.head(FAMILY, "bigram")
    return LLM(str(tiny_models.checkpoint(FAMILY)), draft=str(head), config=config(**parallel), record=record)


def process_ids(llm: LLM) -> tuple[int, ...]:
    return llm._backend._pool.process_ids()  # type: ignore[attr-defined]


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def single() -> Iterator[LLM]:
    with load() as llm:
        yield llm


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "records.jsonl"


@pytest.fixture(scope="module")
def sharded(record: Path) -> Iterator[LLM]:
    """Two ranks, each with half of the head."""
    with load(record, tp=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def replicated() -> Iterator[LLM]:
    """Two ranks, each with the whole head, that add through gloo."""
    with load(tp=2, draft="replicated", collectives="torch_distributed") as llm:
        yield llm


@pytest.fixture(params=["sharded", "replicated"])
def pair(request: pytest.FixtureRequest) -> LLM:
    return request.getfixturevalue(request.param)


def assert_equal_answers(found: list[Completion], expected: list[Completion]) -> None:
    """The same tokens, and log-probabilities within the tolerance, unless a near tie has parted the ways."""
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text and one.finish_reason == other.finish_reason
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=TOLERANCE)
            values = dict(theirs.top)
            for token, logprob in ours.top[:-1]:
                assert logprob == pytest.approx(values[token], abs=TOLERANCE)


# Two ranks, as a user has them


@pytest.mark.parametrize("steps", [0, 4])
def test_two_ranks_give_the_answers_of_one(pair: LLM, single: LLM, steps: int) -> None:
    expected = single.generate(PROMPTS, SAMPLINGS, steps=0)
    found = pair.generate(PROMPTS, SAMPLINGS, steps=steps)
    assert_equal_answers(found, expected)
    assert all(bool(answer.request.drafted) == bool(steps) for answer in found)
    if steps:
        alone = single.generate(PROMPTS, SAMPLINGS, steps=steps)
        assert [answer.request.accepted for answer in found] == [answer.request.accepted for answer in alone]


def test_ranks_follow_the_drivers_decisions(sharded: LLM, single: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times differ between ranks, so none of them decides: all draft in the same cycles, whatever these are."""
    decisions = itertools.cycle([Decision(True), Decision(False, "told so"), Decision(False, "told so")])
    policy = FixedPolicy(Decision(True))
    monkeypatch.setattr(policy, "decide", lambda: next(decisions))
    monkeypatch.setattr(sharded, "_policy", policy)
    sharded.take_cycles()
    found = sharded.generate(PROMPTS, SAMPLINGS, steps=3)
    assert_equal_answers(found, single.generate(PROMPTS, SAMPLINGS, steps=0))
    said = {cycle.speculation for cycle in sharded.take_cycles()}
    assert {"drafted", "plain: told so"} <= said
    assert all(answer.request.drafted for answer in found)


def test_the_description_says_where_the_head_is(single: LLM, sharded: LLM, replicated: LLM) -> None:
    placements = {llm.describe().draft_placement for llm in (sharded,)}
    assert placements == {"sharded"}
    assert replicated.describe().draft_placement == "replicated"
    assert [llm.describe().tp for llm in (single, sharded, replicated)] == [1, 2, 2]
    for llm in (sharded, replicated):
        assert llm.describe().facts["head"]["placement"] == llm.describe().draft_placement


def test_an_answer_beyond_the_period_of_the_bit_check(sharded: LLM, single: LLM) -> None:
    """Ranks compare their bits every 64 cycles; a plain answer of 150 tokens is checked twice on the way."""
    long = SamplingParams(max_tokens=150, ignore_eos=True)
    (found,) = sharded.generate([PROMPTS[0]], long, steps=0)
    assert found.token_ids == single.generate([PROMPTS[0]], long, steps=0)[0].token_ids


def test_bad_requests_leave_the_ranks_in_step(sharded: LLM, single: LLM) -> None:
    with pytest.raises(InvalidOption, match="outside the vocabulary"):
        sharded.generate([[tiny_models.VOCAB_SIZE]])
    stream = sharded.stream(PROMPTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    stream.close()
    assert_equal_answers(sharded.generate(PROMPTS, SAMPLINGS), single.generate(PROMPTS, SAMPLINGS))


def test_the_environment_of_each_rank_is_recorded_at_the_start(sharded: LLM, record: Path) -> None:
    records = sharded.environment_records()
    assert [one.rank for one in records] == [0, 1]
    assert all(one.mode == "strict" and one.variables and not one.mismatches for one in records)
    run, *following = read_records(record)
    assert tuple(following[:2]) == records
    assert isinstance(run, RunRecord) and isinstance(following[0], EnvironmentRecord)
    assert run.facts["environment"]["mode"] == "strict"
    assert run.facts["environment"]["num_mismatches"] == 0


def test_dispatch_is_recorded_at_the_end(sharded: LLM, record: Path) -> None:
    """The last test of this pool: closing it writes what each collective took, and ends the ranks."""
    processes = process_ids(sharded)
    sharded.close()
    sharded.close()
    assert not any(map(is_running, processes))
    found = list(read_records(record))
    dispatched = [one for one in found if isinstance(one, DispatchRecord)]
    assert {one.phase for one in dispatched} >= {"draft", "verify", "extend"}
    assert {one.op for one in dispatched} == {"all_reduce", "all_gather"}
    assert all(one.num_calls > 0 and one.num_ranks == 2 and one.num_bytes > 0 for one in dispatched)
    assert all(one.backend == "shared_memory" or one.refused for one in dispatched)
    assert sum(isinstance(one, RequestRecord) for one in found) >= 7


def test_a_rank_that_is_killed_ends_the_run(replicated: LLM) -> None:
    """The last test of this pool. The error names the rank, and no process is left."""
    processes = process_ids(replicated)
    stream = replicated.stream(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(RankFailure, match="rank 1 was killed by SIGKILL") as failure:
        list(stream)
    assert failure.value.rank == 1
    assert not any(map(is_running, processes))
    with pytest.raises(RankFailure, match="rank pool cannot run commands"):
        replicated.generate([PROMPTS[0]])
    replicated.close()


# Four ranks, row by row


@pytest.fixture(scope="module")
def spec() -> EngineSpec:
    source = resolve_source(str(tiny_models.checkpoint(FAMILY)))
    return EngineSpec(source=source, head=tiny_models.head(FAMILY, "bigram"), config=config(tp=4))


@pytest.fixture(scope="module")
def four(spec: EngineSpec) -> Iterator[RankPool]:
    plan = plan_environment(spec.config.parallel, "cpu", os.environ)
    with RankPool("engine_workers:build", 4, spec, plan, TIMEOUT_S) as pool:
        yield pool


REQUESTS = tuple((tuple(prompt), SAMPLINGS[i], 3 * i % 5) for i, prompt in enumerate(PROMPTS))
RUNS = {
    "at once": engine_workers.Run(REQUESTS),
    "in chunks, one after the other": engine_workers.Run(REQUESTS, chunk_tokens=7, gap=2),
    "with preemption": engine_workers.Run(REQUESTS, chunk_tokens=16, num_pages=24),
}


@pytest.mark.parametrize("name", RUNS)
def test_four_ranks_compute_the_logits_of_one(four: RankPool, name: str) -> None:
    import engine_spy

    expected = engine_workers.run(engine_spy.load(FAMILY, "bigram"), RUNS[name])
    found, *others = four.call_all(RUNS[name])
    assert found.token_ids == expected.token_ids
    assert found.positions == expected.positions
    assert found.num_preemptions == expected.num_preemptions
    assert bool(found.num_preemptions) == (name == "with preemption")
    for ours_RV, theirs_RV in zip(found.logits_RV, expected.logits_RV, strict=True):
        torch.testing.assert_close(ours_RV, theirs_RV, rtol=0, atol=TOLERANCE)
    for other in others:
        assert other.token_ids == found.token_ids
        assert all(torch.equal(a, b) for a, b in zip(other.logits_RV, found.logits_RV, strict=True))


def test_ranks_that_disagree_are_stopped(four: RankPool) -> None:
    """The last test of this pool: one rank's logits are off in their last bits, which the first check finds."""
    processes = four.process_ids()
    four.call(engine_workers.Diverge())
    with pytest.raises(RankFailure, match="the ranks hold different logits"):
        four.call(RUNS["at once"])
    assert not any(map(is_running, processes))


# What is refused, and where a head goes


@pytest.mark.parametrize(
    ("family", "tp", "possible"),
    [("group3_tied", 2, "1, 3"), ("eight_heads", 3, "1, 2, 4"), ("linear_rope", 2, "1, 5")],
)
def test_heads_that_do_not_divide_are_refused_before_a_rank_starts(
    monkeypatch: pytest.MonkeyPatch, family: str, tp: int, possible: str
) -> None:
    def unwanted(*arguments: Any) -> None:
        raise AssertionError("a pool was started")

    monkeypatch.setattr("alula.engine.backends.RankPool", unwanted)
    with pytest.raises(InvalidOption, match=f"--tp {tp}: .* do not divide over {tp} ranks; possible: {possible}$"):
        LLM(str(tiny_models.checkpoint(family)), draft=None, config=config(tp=tp))


@pytest.mark.parametrize(
    ("family", "tp", "wish", "placement"),
    [
        ("eight_heads", 4, "auto", "sharded"),
        ("eight_heads", 4, "replicated", "replicated"),
        ("group3_tied", 3, "auto", "replicated"),  # its head has 4 heads
        ("group3_tied", 3, "sharded", None),
        ("eight_heads", 1, "sharded", "sharded"),
    ],
)
def test_where_a_head_goes(family: str, tp: int, wish: str, placement: str | None) -> None:
    group = Group(0, tp, Dispatcher((), tp))
    device, kernels = torch.device("cpu"), reference_kernels()
    source = open_checkpoint(resolve_source(str(tiny_models.checkpoint(family))))
    reader = WeightReader(source, torch.float32, device)
    target = LlamaModel(reader, parse_shape(source.config), 64, group, kernels)
    place = HeadPlace(group, torch.float32, device, kernels, wish, 64, 0)
    if placement is None:
        with pytest.raises(InvalidOption, match="4 heads and 4 kv heads do not divide over 3 ranks"):
            load_head(tiny_models.head(family), SpeculationConfig(), target, place)
    else:
        assert load_head(tiny_models.head(family), SpeculationConfig(), target, place).placement == placement


# The real model


def real(tp: int) -> LLM:
    return LLM(
        "smollm2-135m",
        config=EngineConfig(
            dtype="float32",
            device="cpu",
            threads=1,
            context_tokens=512,
            max_batch=4,
            parallel=ParallelConfig(tp=tp, rank_deadline_s=TIMEOUT_S),
            speculation=SpeculationConfig(speculate="always"),
        ),
    )


def compare_real(prompts: list[str], max_tokens: int) -> None:
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    sampling = SamplingParams(max_tokens=max_tokens, logprobs=20)
    with real(1) as one:
        expected = one.chat(conversations, sampling, steps=0)
    with real(3) as three:
        assert three.describe().draft_placement == "sharded"
        for steps in (0, 3):
            assert_equal_answers(three.chat(conversations, sampling, steps=steps), expected)


def test_smollm2_on_three_ranks() -> None:
    compare_real(["Why is the sky blue?"], max_tokens=6)


@pytest.mark.acceptance
def test_smollm2_on_three_ranks_at_length() -> None:
    compare_real(
        [
            "Why is the sky blue?",
            "Write a short poem about a river.",
            "What is 17 times 23? Explain your steps.",
            "List five facts about the moon.",
        ],
        max_tokens=96,
    )
