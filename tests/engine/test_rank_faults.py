"""Faults in a whole engine over ranks, and what its records tell of its collectives: paths, differences, waits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rank_fault_workers
import tiny_models
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.dispatch_paths import Collectives, late_ranks, path_differences, paths_of
from alula.core.errors import RankFailure
from alula.core.records import DispatchRecord, PathDifference, RankWaitRecord, read_records
from alula.core.sampling import SamplingParams
from alula.engine.agreement import odd_ranks
from alula.engine.llm import LLM

MARGIN_S = 15.0
PROMPT = tiny_models.random_ids(20, 3)
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


def load(
    monkeypatch: pytest.MonkeyPatch,
    build: str | None,
    tp: int = 2,
    record: Path | None = None,
    deadline_s: float = 60.0,
    family: str = "eight_heads",
    collectives: str = "auto",
) -> LLM:
    if build is not None:
        monkeypatch.setattr("alula.engine.backends.build_rank_worker", getattr(rank_fault_workers, build))
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        threads=1,
        page_tokens=4,
        max_batch=4,
        context_tokens=256,
        parallel=ParallelConfig(tp=tp, rank_deadline_s=deadline_s, collectives=collectives),
        speculation=SpeculationConfig(speculate="always"),
    )
    head = tiny_models.head(family, "bigram")
    return LLM(str(tiny_models.checkpoint(family)), draft=str(head), config=config, record=record)


def process_ids(llm: LLM) -> tuple[int, ...]:
    return llm._backend._pool.process_ids()  # type: ignore[attr-defined,no-any-return]


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    with pytest.MonkeyPatch.context() as patch, load(patch, None, tp=1) as llm:
        assert llm.collectives() is None
        return llm.generate([PROMPT], GREEDY)[0].token_ids


def test_a_rank_that_is_stopped_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with load(monkeypatch, None, deadline_s=2.0) as llm:
        processes = process_ids(llm)
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        os.kill(processes[1], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(RankFailure, match=r"rank 1 did not .*no heartbeat .* in phase \w+; its last") as caught:
            list(stream)
        assert time.monotonic() - start < 2.0 + MARGIN_S
        assert caught.value.rank == 1 and "SIGSTOP" in str(caught.value)
        assert not any(map(is_running, processes))


@pytest.mark.parametrize("build", ["build_with_wrong_bits", "build_with_wrong_bits_on_device"])
def test_one_wrong_rank_of_three_is_named(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits show nothing of it: all ranks are given the same parts of them."""
    wrong = r"cycle \d+: the ranks hold different hidden states in phase verify \(rank 1 against the others\)"
    with load(monkeypatch, build, tp=3, family="group3_tied") as llm:
        processes = process_ids(llm)
        with pytest.raises(RankFailure, match=wrong) as caught:
            llm.generate([PROMPT], GREEDY)
        assert caught.value.rank == 1
        assert "Rank 1 was last seen in phase other; its last calls: " in str(caught.value)
        assert "see whether it also happens with --collectives" in str(caught.value)
        assert not any(map(is_running, processes))


@given(st.lists(st.integers(0, 2), min_size=2, max_size=8))
def test_the_ranks_that_differ_from_most(digests: list[int]) -> None:
    most = [digest for digest in set(digests) if digests.count(digest) * 2 > len(digests)]
    expected = [rank for rank, digest in enumerate(digests) if most and digest != most[0]]
    assert list(odd_ranks(digests)) == expected


def test_a_slow_rank_is_named_and_the_run_is_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expected: tuple[int, ...]
) -> None:
    record = tmp_path / "records.jsonl"
    # Waits are counted there alone, and on a busy machine gloo may be measured as the faster.
    with load(monkeypatch, "build_with_a_slow_rank", record=record, collectives="shared_memory") as llm:
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == expected
        told = llm.collectives()
        assert told is not None and late_ranks(told.waits) == (1,)
    waits = [one for one in read_records(record) if isinstance(one, RankWaitRecord)]
    assert [wait.rank for wait in waits] == [0, 1]
    assert waits[0].num_calls == waits[1].num_calls > 0
    assert late_ranks(waits) == (1,)
    # Each of the sums was waited for; the share is of the same cycles.
    sums = sum(one.num_calls for one in told.dispatched if one.op == "all_reduce" and one.work)
    assert waits[0].waited_ms > 0.5 * sums * rank_fault_workers.SLOW_S * 1e3
    assert 0.1 < waits[0].share <= 1.0


@pytest.mark.parametrize("build", ["build_with_table", "build_with_table_on_device"])
def test_decode_and_verify_on_two_sides_of_a_crossover(
    build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expected: tuple[int, ...]
) -> None:
    """Both engines: the one that the host leads and the one whose cycles stay on the device."""
    record = tmp_path / "records.jsonl"
    with load(monkeypatch, build, record=record) as llm:
        for steps in (0, 3):
            assert llm.generate([PROMPT], GREEDY, steps=steps)[0].token_ids == expected
    found = list(read_records(record))
    dispatched = [one for one in found if isinstance(one, DispatchRecord)]
    differences = [one for one in found if isinstance(one, PathDifference)]
    assert differences == list(path_differences(dispatched))
    assert Collectives(dispatched=tuple(dispatched), waits=()).differences == tuple(differences)
    (difference,) = [one for one in differences if one.op == "all_reduce"]
    assert (difference.decode_backend, difference.verify_backend) == ("shared_memory", "torch_distributed")
    # Rows of 64 fp32 numbers: one in a decode step, up to four in a verify (the answer's end may take fewer).
    assert difference.decode_bytes == (256,) and 1024 in difference.verify_bytes
    assert min(difference.verify_bytes) > rank_fault_workers.CROSSOVER_BYTES
    assert "300.0 us, shared_memory" in difference.decode_because
    assert "600.0 us, torch_distributed 310.0 us" in difference.verify_because
    assert {path.op for path in paths_of(dispatched, "decode")} == {"all_reduce", "all_gather"}
    assert {path.phase for path in paths_of(dispatched, "decode")} <= {"verify", "extend", "other"}
    assert {path.phase for path in paths_of(dispatched, "verify")} >= {"draft", "verify", "extend"}
    assert {path.phase for path in paths_of(dispatched, "prefill")} >= {"verify"}
