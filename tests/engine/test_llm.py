"""`LLM`, as a caller has it: prompts of every kind, streams, interruptions, records, and an orderly end."""

from __future__ import annotations

import gc
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import tiny_models
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.errors import (
    AlulaError,
    CheckpointError,
    InvalidOption,
    PromptTooLong,
    RecordWriteError,
    UnsupportedModel,
)
from alula.core.records import CycleRecord, RequestRecord, RunRecord, read_records
from alula.core.sampling import SamplingParams
from alula.engine.backends import StepCommand
from alula.engine.engine import StepOutput
from alula.engine.llm import LLM
from alula.engine.speculation_policy import Decision, FixedPolicy

PROMPT = tiny_models.random_ids(9)
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
SMALL = {"dtype": "float32", "device": "cpu", "context_tokens": 96, "page_tokens": 4, "max_batch": 4, "threads": 1}


def load(draft: str | None = "bigram", record: Path | None = None, **config: Any) -> LLM:
    head = None if draft is None else str(tiny_models.head("plain", draft))
    return LLM(
        str(tiny_models.checkpoint("plain")), draft=head, config=EngineConfig(**{**SMALL, **config}), record=record
    )


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load() as loaded:
        yield loaded


def assert_all_pages_free(llm: LLM) -> None:
    """A request that needs every page of the cache is served at once."""
    whole = SamplingParams(max_tokens=1000, ignore_eos=True)
    for completion in llm.generate([PROMPT] * SMALL["max_batch"], whole):
        assert completion.request.num_preemptions == 0
        assert len(completion.prompt_ids) + len(completion.token_ids) == llm.context_tokens
    llm.take_cycles()


# Prompts


def test_text_ids_and_messages(llm: LLM) -> None:
    text, ids, chat = llm.generate(
        ["The sky", llm.tokenizer.encode("The sky"), [{"role": "user", "content": "The sky"}]], GREEDY
    )
    assert text.prompt_ids == ids.prompt_ids and text.token_ids == ids.token_ids
    expected = llm.tokenizer.encode("<|im_start|>user\nThe sky<|im_end|>\n<|im_start|>assistant\n")
    assert list(chat.prompt_ids) == expected
    assert llm.chat([[{"role": "user", "content": "The sky"}]], GREEDY)[0].token_ids == chat.token_ids


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_ids_in_any_sequence(llm: LLM, kind: Any) -> None:
    assert llm.generate([kind(PROMPT)], GREEDY)[0].prompt_ids == tuple(PROMPT)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ("", "empty"),
        ([5, 1.5], "1.5"),
        (["The", "sky"], "'The'"),
        ([{"role": "user", "content": "x"}, 5], "a prompt holds {'role'"),
        ([tiny_models.VOCAB_SIZE], "outside the vocabulary of 307"),
        ([5, -3], "token id -3"),
    ],
)
def test_prompts_that_are_none(llm: LLM, prompt: Any, message: str) -> None:
    """Refused as a whole: nothing of the call is queued, and nothing of a prompt is silently left out."""
    with pytest.raises(InvalidOption, match=message):
        llm.generate([PROMPT, prompt], GREEDY)
    llm.take_cycles()
    (only,) = llm.generate([PROMPT], SamplingParams(max_tokens=1))
    assert [len(cycle.requests) for cycle in llm.take_cycles()] == [1]
    assert only.finish_reason == "length"


def test_other_arguments_that_are_refused(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match="the prompt has 96 tokens and the context 96"):
        llm.generate([[5] * 96])
    with pytest.raises(InvalidOption, match="expected a list of prompts"):
        llm.generate("The sky")
    with pytest.raises(InvalidOption, match="2 sampling parameters for 1 prompts"):
        llm.generate([PROMPT], [GREEDY, GREEDY])
    with pytest.raises(InvalidOption, match="steps is 9"):
        llm.generate([PROMPT], GREEDY, steps=9)
    assert llm.generate([]) == []


def test_drafts_without_a_head_are_refused() -> None:
    with load(draft=None) as plain:
        assert not plain.has_draft
        assert plain.generate([PROMPT], GREEDY)[0].request.drafted == 0
        with pytest.raises(InvalidOption, match="no EAGLE-3 head is loaded"):
            plain.generate([PROMPT], GREEDY, steps=2)


# Answers


def test_a_list_of_parameters_goes_with_the_prompts(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (3, 1, 7)]
    answers = llm.generate([PROMPT, PROMPT[:4], PROMPT[2:]], params)
    assert [len(answer.token_ids) for answer in answers] == [3, 1, 7]
    assert [answer.prompt_ids for answer in answers] == [tuple(p) for p in (PROMPT, PROMPT[:4], PROMPT[2:])]


@pytest.mark.parametrize("head", ["trained", "random", "adversarial"])
def test_no_head_changes_a_token(llm: LLM, head: str) -> None:
    params = [GREEDY, SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=4)]
    plain = llm.generate([PROMPT] * 2, params, steps=0)
    with load(speculation=SpeculationConfig(head=head, speculate="always")) as other:
        for steps in (None, 1, 8):
            drafted = other.generate([PROMPT] * 2, params, steps=steps)
            assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
            assert [answer.text for answer in drafted] == [answer.text for answer in plain]
            assert all(answer.request.drafted for answer in drafted)


# Speculation


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("mode", ["auto", "always", "never"])
def test_no_decision_changes_a_token(
    llm: LLM, mode: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three modes, and whatever else could be decided."""
    params = [GREEDY, SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=4)]
    plain = llm.generate([PROMPT] * 2, params, steps=0)
    with load(speculation=SpeculationConfig(speculate=mode, head="random")) as other:
        if seed is not None:
            generator = random.Random(seed)
            policy = FixedPolicy(Decision(True))
            monkeypatch.setattr(policy, "decide", lambda: Decision(generator.random() < 0.5, "at random"))
            monkeypatch.setattr(other, "_policy", policy)
        for _ in range(3):
            found = other.generate([PROMPT] * 2, params)
            assert [answer.token_ids for answer in found] == [answer.token_ids for answer in plain]
        drafted = [cycle.drafted for cycle in other.take_cycles() if not cycle.requests[0].num_prefill]
        assert any(drafted) == (mode != "never")
        assert other.describe().speculate == mode


def test_auto_gives_up_on_a_random_head_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the times of a machine on which a drafted cycle costs 1.25 plain steps."""
    with load(speculation=SpeculationConfig(head="random")) as auto:
        step = auto._backend.step

        def timed(command: StepCommand) -> StepOutput:
            output = step(command)
            wall_ms = 12.5 if output.record.drafted else 10.0
            return msgspec.structs.replace(output, record=msgspec.structs.replace(output.record, wall_ms=wall_ms))

        monkeypatch.setattr(auto._backend, "step", timed)
        auto.generate([PROMPT], SamplingParams(max_tokens=60, ignore_eos=True))
        said = [cycle.speculation for cycle in auto.take_cycles()]
    assert said[0] is None and said[1] == "drafted"
    assert said[-1] is not None and said[-1].startswith("plain: unprofitable (1.0")
    assert said.count("plain: measuring a plain step") == 4


def test_never_needs_no_head_and_refuses_drafts() -> None:
    with load(draft=None, speculation=SpeculationConfig(speculate="never")) as plain:
        assert plain.generate([PROMPT], GREEDY)[0].request.drafted == 0
    with load(speculation=SpeculationConfig(speculate="never")) as never:
        assert never.has_draft and never.generate([PROMPT], GREEDY)[0].request.drafted == 0
        with pytest.raises(InvalidOption, match="speculation is off"):
            never.generate([PROMPT], GREEDY, steps=2)


@pytest.mark.parametrize("steps", [0, 4])
def test_a_stream_is_the_answer_in_pieces(llm: LLM, steps: int) -> None:
    free = llm.generate([PROMPT], GREEDY)[0]
    stop = free.text[len(free.text) // 2 :][:2]
    for sampling in (GREEDY, SamplingParams(max_tokens=20, ignore_eos=True, stop=(stop,), logprobs=1)):
        whole = llm.generate([PROMPT], sampling)[0]
        chunks = list(llm.stream(PROMPT, sampling, steps=steps))
        assert "".join(chunk.text for chunk in chunks) == whole.text
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        assert tuple(tokens[: len(whole.token_ids)]) == whole.token_ids
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == whole.finish_reason
        assert chunks[-1].request is not None
    assert whole.finish_reason == "stop" and whole.text == free.text[: free.text.index(stop)]
    assert len(whole.logprobs) == len(whole.token_ids) < 20


# Interruptions


def test_a_closed_stream_gives_its_pages_back(llm: LLM) -> None:
    for num_chunks in (0, 1, 5):
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=80, ignore_eos=True))
        for _ in range(num_chunks):
            next(stream)
        stream.close()
    assert_all_pages_free(llm)


@pytest.mark.parametrize("after", [0, 3])
def test_an_interrupt_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    step, calls = llm.step, []

    def interrupted() -> Any:
        calls.append(None)
        if len(calls) > after:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(llm, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([PROMPT, PROMPT], SamplingParams(max_tokens=80, ignore_eos=True))
    assert_all_pages_free(llm)


def test_an_abort_from_outside_ends_a_stream(llm: LLM) -> None:
    chunks = []
    for chunk in llm.stream(PROMPT, SamplingParams(max_tokens=80, ignore_eos=True), steps=0):
        chunks.append(chunk)
        if len(chunks) == 3:
            (request,) = llm.take_cycles()[-1].requests
            llm.abort(request.request_id)
    assert chunks[-1].finish_reason == "abort" and len(chunks) == 4
    assert chunks[-1].request is not None and chunks[-1].request.num_output_tokens == 3


# Records


def test_records_are_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with load(record=path) as llm:
        answers = llm.generate([PROMPT, PROMPT[:3]], GREEDY)
        list(llm.stream(PROMPT, GREEDY, steps=0))
        cycles = llm.take_cycles()
        described = llm.describe()
        assert llm.take_cycles() == []
    run, *rest = read_records(path)
    assert run == described and isinstance(run, RunRecord)
    assert run.model == str(tiny_models.checkpoint("plain")) and run.dtype == "float32" and run.steps == 3
    assert run.exact and run.tp == 1 and run.draft == str(tiny_models.head("plain"))
    assert [record for record in rest if isinstance(record, CycleRecord)] == cycles
    requests = [record for record in rest if isinstance(record, RequestRecord)]
    assert requests[:2] == sorted((answer.request for answer in answers), key=lambda r: r.request_id)
    assert len(requests) == 3 and requests[2].drafted == 0


def test_a_full_disk_loses_records_but_no_answer(llm: LLM) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    recording = load(record=full)
    assert recording.generate([PROMPT], GREEDY)[0].token_ids == llm.generate([PROMPT], GREEDY)[0].token_ids
    with pytest.raises(RecordWriteError, match="cannot write records to /dev/full: No space left on device"):
        recording.close()
    recording.close()  # said once


def test_a_record_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecordWriteError, match="cannot write records to"):
        load(record=tmp_path / "no folder" / "records.jsonl")


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    """An open one would be reported as a ResourceWarning, which is an error here."""
    broken = tiny_models.copy_with(tiny_models.checkpoint("plain"), {}, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(CheckpointError):
        LLM(str(broken), draft=None, record=tmp_path / "records.jsonl")
    gc.collect()


# The end


def test_closing_twice() -> None:
    llm = load(draft=None)
    llm.close()
    llm.close()
    with pytest.raises(AlulaError, match="this LLM was closed"):
        llm.generate([PROMPT])
    llm.close()


def test_what_a_cache_without_room_says() -> None:
    with pytest.raises(InvalidOption, match="a context of 96 tokens does not fit the KV cache"):
        load(draft=None, kv_memory_bytes=50_000)
    with pytest.raises(InvalidOption, match="holds no page"):
        load(draft=None, kv_memory_bytes=100)


def test_a_small_cache_shortens_the_context_where_none_was_asked_for() -> None:
    with load(draft=None, kv_memory_bytes=100_000, context_tokens=None) as llm:
        (completion,) = llm.generate([PROMPT], SamplingParams(max_tokens=1000, ignore_eos=True))
        assert 9 < llm.context_tokens < 96
        assert completion.finish_reason == "length"
        assert len(PROMPT) + len(completion.token_ids) == llm.context_tokens


def test_a_context_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(InvalidOption, match="made for 640 tokens at most"):
        LLM(str(tiny_models.checkpoint("plain")), config=EngineConfig(context_tokens=641, threads=1))


def test_an_architecture_that_cannot_run_is_named_before_a_missing_tokenizer(tmp_path: Path) -> None:
    source = tiny_models.checkpoint("plain")
    config = json.loads((source / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "model.safetensors", tmp_path)
    with pytest.raises(UnsupportedModel, match="Qwen3ForCausalLM.*LlamaForCausalLM"):
        LLM(str(tmp_path))
