"""The engine's promises to a request: the same tokens in any company, an end for the right reason, no page lost."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engine_spy
import tiny_models
from alula.core.errors import InvalidOption, PromptTooLong
from alula.core.records import PHASES
from alula.core.sampling import SamplingParams
from alula.engine.request import RequestSpec
from engine_spy import GREEDY, SAMPLINGS, SpiedEngine, Told, with_limits


def parts(**limits: int) -> engine_spy.Parts:
    return with_limits(engine_spy.load("plain", "bigram"), **limits)


def answer(prompt: list[int], sampling: SamplingParams, steps: int = 0, **limits: int) -> Told:
    """One request, alone in its engine."""
    spied = SpiedEngine(parts(**limits))
    told = spied.add(prompt, sampling, steps)
    spied.run()
    return told


@functools.cache
def alone(seed: int, num_prompt: int, kind: int) -> list[int]:
    return answer(tiny_models.random_ids(num_prompt, seed), SAMPLINGS[kind]).token_ids


def num_free_pages(spied: SpiedEngine) -> int:
    return spied.engine._scheduler.pages.num_free


# Who comes when


@dataclass(frozen=True)
class Visitor:
    seed: int
    num_prompt: int
    kind: int
    steps: int
    cycles_before_next: int
    aborted: bool


VISITORS = st.lists(
    st.builds(
        Visitor,
        seed=st.integers(0, 3),
        num_prompt=st.sampled_from([1, 2, 6, 15, 33]),
        kind=st.integers(0, len(SAMPLINGS) - 1),
        steps=st.sampled_from([0, 0, 1, 3, 8]),
        cycles_before_next=st.integers(0, 5),
        aborted=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=7,
)


@given(
    visitors=VISITORS,
    chunk_tokens=st.sampled_from([3, 10, 512]),
    num_pages=st.sampled_from([16, 30, 200]),
    max_batch=st.sampled_from([2, 16]),
)
@settings(max_examples=40)
def test_the_same_tokens_in_any_company(
    visitors: list[Visitor], chunk_tokens: int, num_pages: int, max_batch: int
) -> None:
    """Requests join, leave and are preempted at random; each gets what it gets alone and without drafts."""
    spied = SpiedEngine(parts(chunk_tokens=chunk_tokens, num_pages=num_pages, max_batch=max_batch))
    told = []
    for visitor in visitors:
        prompt = tiny_models.random_ids(visitor.num_prompt, visitor.seed)
        told.append(spied.add(prompt, SAMPLINGS[visitor.kind], visitor.steps))
        for _ in range(visitor.cycles_before_next):
            spied.step()
        if visitor.aborted:
            spied.engine.abort(told[-1].spec.request_id)
    spied.run()
    assert num_free_pages(spied) == num_pages - 1
    for one, visitor in zip(told, visitors, strict=True):
        assert one.last is not None and one.last.record is not None
        expected = alone(visitor.seed, visitor.num_prompt, visitor.kind)
        if one.last.finish_reason == "abort":
            assert visitor.aborted and one.token_ids == expected[: len(one.token_ids)]
        else:
            assert one.last.finish_reason == "length" and one.token_ids == expected
        assert_counts(one)


def assert_counts(told: Told) -> None:
    """Emitted tokens = accepted + cycles before truncation, the prefill's token apart, and the record says so."""
    assert told.last is not None and told.last.record is not None
    record = told.last.record
    assert record.num_prompt_tokens == len(told.spec.prompt_ids)
    assert record.num_output_tokens == len(told.token_ids)
    assert sum(record.accepted_per_position) == record.accepted
    assert sum(record.drafted_per_position) == record.drafted
    assert list(record.drafted_per_position) == sorted(record.drafted_per_position, reverse=True)
    assert list(record.accepted_per_position) == sorted(record.accepted_per_position, reverse=True)
    if told.last.finish_reason == "length" and record.num_preemptions == 0:
        assert record.num_truncated_cycles == 0  # drafts end where the answer does
        assert record.num_output_tokens == 1 + record.accepted + record.num_cycles


@pytest.mark.parametrize("cycles", [0, 1, 3, 8])
def test_an_abort_frees_the_pages_and_tells_the_caller(cycles: int) -> None:
    spied = SpiedEngine(parts(chunk_tokens=10, num_pages=40))
    one = spied.add(tiny_models.random_ids(25), SamplingParams(max_tokens=100, ignore_eos=True), steps=4)
    for _ in range(cycles):
        spied.step()
    spied.engine.abort(one.spec.request_id)
    assert num_free_pages(spied) == 39
    spied.run()
    assert one.last is not None and one.last.finish_reason == "abort"
    spied.engine.abort(one.spec.request_id)  # it may just have ended: nothing happens
    spied.engine.abort("nobody")
    assert not spied.engine.has_work


def test_a_preempted_request_starts_over_and_continues_its_answer() -> None:
    spied = SpiedEngine(parts(num_pages=12))
    told = [spied.add(tiny_models.random_ids(12, seed), SAMPLINGS[0], steps=3) for seed in range(3)]
    spied.run()
    preemptions = [one.last.record.num_preemptions for one in told if one.last and one.last.record]
    assert preemptions[0] == 0 and sum(preemptions) >= 1
    assert [one.token_ids for one in told] == [alone(seed, 12, 0) for seed in range(3)]


def test_a_request_that_the_cache_cannot_hold_says_so() -> None:
    """Only where the context promises more than the cache holds; the engine's own set-up never does."""
    spied = SpiedEngine(replace(parts(), num_pages=8))
    small = spied.add(tiny_models.random_ids(5), GREEDY)
    large = spied.add(tiny_models.random_ids(60), GREEDY)
    later = spied.add(tiny_models.random_ids(6), GREEDY)
    spied.run()
    assert large.last is not None and large.last.record is not None
    assert large.last.finish_reason == "error"
    assert "60 tokens do not fit the KV cache, which holds 28" in (large.last.record.error or "")
    assert [one.last.finish_reason for one in (small, later) if one.last] == ["length", "length"]
    assert num_free_pages(spied) == 7


# How an answer ends


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens(max_tokens: int, steps: int) -> None:
    told = answer(tiny_models.random_ids(6), SamplingParams(max_tokens=max_tokens, ignore_eos=True), steps)
    assert told.last is not None and told.last.finish_reason == "length"
    assert told.token_ids == alone(0, 6, 0)[:max_tokens]


@pytest.mark.parametrize("steps", [0, 1, 8])
def test_a_stop_token_ends_the_answer_and_belongs_to_it(steps: int) -> None:
    free = alone(0, 6, 0)
    for stop in sorted(set(free)):
        told = answer(
            tiny_models.random_ids(6), SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(stop,)), steps
        )
        end = free.index(stop) + 1
        assert told.last is not None and told.last.finish_reason == "stop"
        assert told.token_ids == free[:end]
        assert told.last.num_kept_tokens == end
        assert told.text == decoded_after(told, end - 1)


@pytest.mark.parametrize("steps", [0, 4])
def test_the_end_of_sequence(steps: int) -> None:
    """A token that the tokenizer calls the end, unless it is to be ignored."""
    free = alone(0, 6, 0)
    eos = free[5]
    base = parts()
    tokenizer = type(base.tokenizer)(base.tokenizer._inner, frozenset({eos}))
    for ignore in (False, True):
        spied = SpiedEngine(replace(base, tokenizer=tokenizer))
        told = spied.add(tiny_models.random_ids(6), SamplingParams(max_tokens=12, ignore_eos=ignore), steps)
        spied.run()
        assert told.last is not None
        assert told.token_ids == (free if ignore else free[: free.index(eos) + 1])
        assert told.last.finish_reason == ("length" if ignore else "stop")


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("family", ["plain", "eight_heads"])
def test_stop_strings(family: str, steps: int) -> None:
    """The text ends before the first stop; tokens behind it are dropped."""
    base = engine_spy.load(family, "bigram")
    prompt = tiny_models.random_ids(6, seed=2)
    free = SpiedEngine(base)
    whole = free.add(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    free.run()
    for start in range(0, len(whole.text) - 3, 4):
        stop = whole.text[start : start + 3]
        spied = SpiedEngine(base)
        sampling = SamplingParams(max_tokens=30, ignore_eos=True, stop=(stop, "never to be seen"))
        told = spied.add(prompt, sampling, steps)
        spied.run()
        assert told.last is not None and told.last.finish_reason == "stop"
        assert told.text == whole.text[: whole.text.index(stop)]
        kept = told.last.num_kept_tokens
        assert kept is not None and kept <= len(told.token_ids)
        assert told.token_ids == whole.token_ids[: len(told.token_ids)]


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("num_prompt", [20, 35, 38, 39])
def test_the_context_ends_an_answer(num_prompt: int, steps: int) -> None:
    told = answer(
        tiny_models.random_ids(num_prompt), SamplingParams(max_tokens=100, ignore_eos=True), steps, num_pages=11
    )
    assert told.last is not None and told.last.finish_reason == "length"
    assert len(told.ids) == 40
    longer = answer(tiny_models.random_ids(num_prompt), SamplingParams(max_tokens=40, ignore_eos=True))
    assert told.token_ids == longer.token_ids[: 40 - num_prompt]


def decoded_after(told: Told, count: int) -> str:
    """The text of the first tokens of an answer, as the tokenizer alone would have it."""
    decode = parts().tokenizer.decode
    prompt = list(told.spec.prompt_ids)
    return decode([*prompt, *told.token_ids[:count]])[len(decode(prompt)) :]


# What an answer consists of


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs_are_the_raw_distribution(temperature: float, steps: int) -> None:
    sampling = SamplingParams(
        max_tokens=15,
        ignore_eos=True,
        temperature=temperature,
        top_k=30,
        repetition_penalty=1.2,
        logprobs=5,
        seed=1,
    )
    spied = SpiedEngine(parts())
    told = spied.add(tiny_models.random_ids(10), sampling, steps)
    found = []
    while spied.engine.has_work:
        found += [entry for update in spied.step().updates for entry in update.logprobs]
    expected_TV = tiny_models.reference_logits("plain", told.ids).log_softmax(-1)[9:-1]
    assert [entry.token_id for entry in found] == told.token_ids
    for entry, row_V in zip(found, expected_TV, strict=True):
        assert entry.logprob == pytest.approx(float(row_V[entry.token_id]), abs=1e-4)
        values, ids = row_V.topk(5)
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("steps", [0, 4])
def test_penalties_against_their_formula(steps: int) -> None:
    """Greedy tokens are the largest of transformers' logits after the penalties, written out naively."""
    penalties = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    prompt = tiny_models.random_ids(8)
    told = answer(prompt, SamplingParams(max_tokens=40, ignore_eos=True, **penalties), steps)
    logits_TV = tiny_models.reference_logits("plain", told.ids)
    for index, token in enumerate(told.token_ids):
        position = len(told.spec.prompt_ids) + index
        row_V = logits_TV[position - 1].clone()
        for seen in set(told.ids[:position]):
            row_V[seen] = row_V[seen] / 1.4 if row_V[seen] > 0 else row_V[seen] * 1.4
        for output in set(told.token_ids[:index]):
            row_V[output] -= 0.5 + 0.3 * told.token_ids[:index].count(output)
        assert token == int(row_V.argmax())
    assert told.token_ids != answer(prompt, SamplingParams(max_tokens=40, ignore_eos=True)).token_ids


def test_seeds_and_samples() -> None:
    def drawn(seed: int, sample: int) -> list[int]:
        sampling = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=seed, sample_index=sample)
        return answer(tiny_models.random_ids(6), sampling, steps=2).token_ids

    answers = {(seed, sample): drawn(seed, sample) for seed in (0, 1, 2**63 - 1) for sample in (0, 1)}
    assert len({tuple(tokens) for tokens in answers.values()}) == 6
    assert all(drawn(*key) == tokens for key, tokens in answers.items())


def test_text_grows_by_whole_characters() -> None:
    spied = SpiedEngine(parts())
    told = spied.add(tiny_models.random_ids(6), SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.5), 3)
    pieces = []
    while spied.engine.has_work:
        pieces += [update.text for update in spied.step().updates]
    assert "".join(pieces) == told.text == decoded_after(told, 40)


# What is refused


def refused(prompt: list[int], steps: int = 0) -> RequestSpec:
    return RequestSpec(request_id="one", prompt_ids=tuple(prompt), sampling=GREEDY, steps=steps)


def test_prompts_that_cannot_be_served() -> None:
    engine = SpiedEngine(parts(num_pages=11)).engine
    with pytest.raises(InvalidOption, match="the prompt is empty"):
        engine.add(refused([]))
    with pytest.raises(PromptTooLong, match="the prompt has 40 tokens and the context 40"):
        engine.add(refused([5] * 40))
    with pytest.raises(InvalidOption, match=f"token id {tiny_models.VOCAB_SIZE} is outside the vocabulary"):
        engine.add(refused([5, tiny_models.VOCAB_SIZE]))
    with pytest.raises(InvalidOption, match="token id -1 is outside the vocabulary"):
        engine.add(refused([-1]))
    assert not engine.has_work
    engine.add(refused([5, 6]))
    with pytest.raises(InvalidOption, match="request id 'one' is in use"):
        engine.add(refused([7]))


def test_drafts_without_a_head() -> None:
    engine = SpiedEngine(engine_spy.load("plain")).engine
    with pytest.raises(InvalidOption, match="no EAGLE-3 head is loaded"):
        engine.add(refused([5], steps=2))


def test_an_id_can_be_used_again_once_its_request_has_ended() -> None:
    engine = SpiedEngine(parts()).engine
    for _ in range(2):
        engine.add(refused([5, 6]))
        while engine.has_work:
            engine.step()


# What a cycle tells


def test_cycles_account_for_their_time_and_rows() -> None:
    spied = SpiedEngine(parts(chunk_tokens=10))
    for seed, steps in enumerate((0, 4, 2)):
        spied.add(tiny_models.random_ids(15, seed), GREEDY, steps)
    spied.run()
    assert [cycle.index for cycle in spied.cycles] == list(range(len(spied.cycles)))
    for cycle in spied.cycles:
        assert tuple(cycle.phases_ms) == PHASES
        assert sum(cycle.phases_ms.values()) == pytest.approx(cycle.wall_ms, rel=1e-6)
        assert all(value >= 0 for value in cycle.phases_ms.values())
        assert cycle.num_rows == sum(part.width for part in cycle.requests)
        assert cycle.outcomes["verify"].reason == "graphs_not_built"
        assert ("draft" in cycle.outcomes) == any(part.drafted for part in cycle.requests)
        for part in cycle.requests:
            assert part.accepted <= part.drafted < part.width
            if not part.num_prefill:
                assert part.emitted == part.accepted + 1 or part.truncated


def test_a_step_without_work_is_harmless() -> None:
    output = SpiedEngine(parts()).step()
    assert output.updates == () and output.record.requests == () and output.record.num_rows == 0


def test_no_gradients_are_kept() -> None:
    told = answer([5, 6, 7], GREEDY)
    assert not any(row.logits_V.requires_grad for row in told.true_rows)
    assert torch.is_grad_enabled() is False
