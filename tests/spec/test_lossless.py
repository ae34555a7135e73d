"""Speculation changes no token: plain and speculative decoding give the same tokens in fp32, whatever is drafted.

Three grounds: the toy target under random schedules, tiny models of every family, and the real SmolLM2 with its head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
import tiny_heads
from decoding import Outcome, answer, decode, drafts_from, oracle, request, tiny_parts, with_head
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import VOCAB_SIZE, Toy, build, draft_table, random_table, run

import tiny_models
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine
from alula.engine.request import RequestSpec
from alula.engine.setup import Parts

# ---- the toy, under random schedules

TABLE = random_table(9)


@st.composite
def samplings(draw: st.DrawFn, max_tokens: int = 14) -> SamplingParams:
    greedy = draw(st.booleans())
    penalised = draw(st.integers(0, 3)) == 0
    return SamplingParams(
        temperature=0.0 if greedy else draw(st.sampled_from([0.3, 0.8, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 3, 7])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(0, 2**40)),
        sample_index=draw(st.integers(0, 3)),
        repetition_penalty=draw(st.sampled_from([0.8, 1.3])) if penalised else 1.0,
        presence_penalty=0.4 if penalised else 0.0,
        frequency_penalty=draw(st.sampled_from([-0.3, 0.2])) if penalised else 0.0,
        max_tokens=draw(st.integers(1, max_tokens)),
        stop=draw(st.sampled_from([(), (), ("ab",), ("cd", "h"), ("eee", "fg")])),
        stop_token_ids=draw(st.sampled_from([(), (), (3,), (0, 5)])),
    )


@dataclass(frozen=True)
class Job:
    spec: RequestSpec
    arrival: int


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    found = []
    for i in range(draw(st.integers(1, 6))):
        prompt = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9))
        spec = RequestSpec(
            request_id=str(i), prompt_ids=tuple(prompt), sampling=draw(samplings()), steps=draw(st.integers(0, 8))
        )
        found.append(Job(spec, draw(st.integers(0, 6))))
    return found


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    kind = draw(st.sampled_from(["near", "random", "biased", "adversarial", "oracle"]))
    page_tokens = draw(st.sampled_from([1, 2, 3, 5, 16]))
    context_tokens = draw(st.sampled_from([12, 17, 40]))
    one_request = -(-context_tokens // page_tokens)
    return Toy(
        TABLE,
        draft_table(kind, TABLE),
        hot_ids=draw(st.sampled_from([tuple(range(VOCAB_SIZE)), (0, 2, 3, 6), (5,)])),
        page_tokens=page_tokens,
        # From just enough for one request alone, so that others are preempted, to plenty.
        num_pages=1 + one_request * draw(st.sampled_from([1, 1, 2, 8])) + draw(st.integers(0, 3)),
        context_tokens=context_tokens,
        chunk_tokens=draw(st.sampled_from([1, 2, 5, 64])),
        max_batch=draw(st.sampled_from([1, 3, 8, 8])),
        argmax_drafts=draw(st.booleans()),
    )


@given(toys(), jobs(), st.lists(st.booleans(), min_size=1, max_size=24))
@settings(max_examples=160)
def test_no_schedule_changes_a_token(toy: Toy, work: list[Job], decisions: list[bool]) -> None:
    """Chunks, pages of any size, preemption, arrivals in mid-run, other requests, cycles that may draft and cycles that
    may not: each answer is that of plain decoding alone."""
    work = [job for job in work if len(job.spec.prompt_ids) < toy.context_tokens]
    engine = build(toy)
    specs = [job.spec for job in work]
    answers, records = run(engine, specs, toy, [job.arrival for job in work], decisions)
    for spec in specs:
        found = answers[spec.request_id]
        assert (found.token_ids, _ending(found.last)) == _plain(spec, toy.context_tokens)
    assert engine._scheduler.pages.num_free == toy.num_pages - 1
    _assert_identities(answers, records)


def _plain(spec: RequestSpec, context_tokens: int) -> tuple[list[int], Any]:
    toy = Toy(TABLE, TABLE, context_tokens=context_tokens)
    answers, _ = run(build(toy), [msgspec.structs.replace(spec, steps=0)], toy)
    found = answers[spec.request_id]
    return found.token_ids, _ending(found.last)


def _ending(last: Any) -> tuple[str, int]:
    return last.finish_reason, last.num_kept_tokens


def _assert_identities(answers: dict[str, Any], records: list[Any]) -> None:
    """Tokens emitted = drafts accepted + cycles, before a stop or a length cuts the last cycle."""
    for found in answers.values():
        record = found.last.record
        decoding = [c for c in found.cycles if not c[3]]
        assert record.num_cycles == len(decoding)
        assert record.drafted == sum(drafted for drafted, *_ in decoding) == sum(record.drafted_per_position)
        assert record.accepted == sum(c[1] for c in decoding) == sum(record.accepted_per_position)
        emitted = sum(c[2] for c in decoding)
        assert emitted <= record.accepted + record.num_cycles
        if not record.num_truncated_cycles:
            assert emitted == record.accepted + record.num_cycles
    assert all(part.width >= part.drafted + 1 for record in records for part in record.requests)


# ---- tiny models of every family

GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
MIXTURE = [
    GREEDY,
    SamplingParams(temperature=0.9, seed=11, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.7, top_k=12, seed=5, max_tokens=17, ignore_eos=True),
    SamplingParams(temperature=1.1, top_p=0.8, seed=6, max_tokens=20),
    SamplingParams(temperature=1.3, min_p=0.05, top_k=40, top_p=0.95, seed=7, max_tokens=20),
    SamplingParams(
        temperature=0.8,
        seed=8,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        max_tokens=20,
        ignore_eos=True,
    ),
    SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=9, stop=("e", "th"), max_tokens=20),
]
PROMPTS = [tiny_models.random_ids(2 + 3 * i, seed=20 + i) for i in range(len(MIXTURE))]
_plain_answers: dict[str, dict[str, Outcome]] = {}


def plain_answers(family: str) -> dict[str, Outcome]:
    """Each request alone, decoded plainly."""
    if family not in _plain_answers:
        parts = tiny_parts(family)
        _plain_answers[family] = {spec.request_id: answer(parts, spec) for spec in tiny_specs([0])}
    return _plain_answers[family]


def tiny_specs(steps: list[int]) -> list[RequestSpec]:
    return [
        request(prompt, steps[i % len(steps)], f"r{i}", sampling)
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, MIXTURE, strict=True))
    ]


def assert_same(found: dict[str, Outcome], wanted: dict[str, Outcome]) -> None:
    for name, outcome in wanted.items():
        assert found[name].token_ids == outcome.token_ids, name
        assert (found[name].text, found[name].kept) == (outcome.text, outcome.kept)
        assert found[name].finish_reason == outcome.finish_reason


@pytest.mark.parametrize("kind", ["bigram", "random", "adversarial"])
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_tiny_models_decode_the_same_with_any_head(family: str, kind: str) -> None:
    """Greedy, filtered, penalised and stopped requests side by side, with 1 to 8 drafts."""
    parts = tiny_parts(family, kind)
    assert parts.exactness.off is None
    found = decode(Engine(parts), tiny_specs([3, 1, 8, 2, 4, 5, 6, 7]), arrivals=[0, 0, 1, 1, 2, 3, 5, 8])
    assert_same(found, plain_answers(family))
    if kind == "bigram":
        assert sum(sum(outcome.accepted) for outcome in found.values()) > (10 if family == "plain" else 0)


@pytest.mark.parametrize("steps", range(1, 9))
def test_any_number_of_steps_decodes_the_same(steps: int) -> None:
    assert_same(decode(Engine(tiny_parts()), tiny_specs([steps])), plain_answers("plain"))


@pytest.mark.parametrize(("page_tokens", "chunk_tokens"), [(1, 512), (2, 3), (5, 1), (7, 16), (64, 512)])
def test_pages_and_chunks_of_any_size_decode_the_same(page_tokens: int, chunk_tokens: int) -> None:
    parts = tiny_parts(page_tokens=page_tokens, chunk_tokens=chunk_tokens)
    assert_same(decode(Engine(parts), tiny_specs([4, 2])), plain_answers("plain"))


@pytest.mark.parametrize("kind", ["bigram", "random"])
def test_preempted_requests_decode_the_same(kind: str) -> None:
    """Pages for about two of the eight requests."""
    parts = replace(tiny_parts(kind=kind, page_tokens=4), num_pages=24)
    found = decode(Engine(parts), tiny_specs([3, 5]))
    assert sum(outcome.record.num_preemptions for outcome in found.values() if outcome.record) > 0
    assert_same(found, plain_answers("plain"))


@given(wrong=st.sets(st.integers(0, 60), max_size=40), steps=st.lists(st.integers(1, 8), min_size=1, max_size=4))
@settings(max_examples=12)
def test_drafts_that_err_anywhere_change_no_token(wrong: set[int], steps: list[int]) -> None:
    """Ragged acceptance of every pattern, greedy and sampled, through an oracle that errs at chosen positions."""
    parts = tiny_parts()
    plain = plain_answers("plain")
    specs = tiny_specs(steps)
    known = {spec.request_id: [*spec.prompt_ids, *plain[spec.request_id].token_ids] for spec in specs}
    engine = Engine(parts)
    with drafts_from(oracle(known, lambda position: position in wrong), engine):
        assert_same(decode(engine, specs), plain)


def test_exact_bfloat16_decodes_the_same() -> None:
    """--exact: in bf16 too, where the machine's products allow it."""
    parts = tiny_parts("group3_tied", dtype="bfloat16", exact=True)
    if parts.exactness.off is not None:
        pytest.skip(f"not run: this machine cannot decode exactly in bf16 ({parts.exactness.off})")
    plain = {spec.request_id: answer(parts, spec) for spec in tiny_specs([0])}
    assert_same(decode(Engine(parts), tiny_specs([4, 2, 7])), plain)


def test_heads_of_every_form_decode_the_same(tmp_path: Any) -> None:
    forms = {
        "norm_output": tiny_heads.but(norm_output=True, fc_norm=True),
        "final_hidden_state": tiny_heads.but(boundaries=()),
        "shared_head": tiny_heads.but(own_lm_head=False, boundaries=(0, 4)),
        "own_size": tiny_heads.but(hidden_size=48, num_heads=6, num_kv_heads=3, head_dim=20, embedding=True),
    }
    for name, form in forms.items():
        parts = tiny_heads.parts("plain", tiny_heads.write_form(tmp_path / name, form))
        assert_same(decode(Engine(parts), tiny_specs([3, 1, 5])), plain_answers("plain"))


def test_a_head_of_nan_changes_no_token(tmp_path: Any) -> None:
    """Broken weights of the head are the head's trouble: it proposes rubbish, and its cache holds it."""
    form = tiny_heads.HeadForm()
    tensors = tiny_heads.tensors_of(form)
    tensors["fc.weight"][:] = float("nan")
    parts = tiny_heads.parts("plain", tiny_heads.write(tmp_path, tiny_heads.config_of(form), tensors))
    assert_same(decode(Engine(parts), tiny_specs([3, 1, 5])), plain_answers("plain"))


# ---- the real model

REAL_PROMPTS = (
    "Why is the sky blue?",
    "Write a haiku about rivers.",
    "What is the capital of France?",
)
REAL_SAMPLING = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=24)


def real_specs(parts: Parts, steps: int) -> list[RequestSpec]:
    return [
        request(
            parts.tokenizer.encode_chat([{"role": "user", "content": text}]),
            steps,
            f"{text} {sampling.temperature}",
            sampling,
        )
        for text in REAL_PROMPTS
        for sampling in (SamplingParams(max_tokens=24), REAL_SAMPLING)
    ]


@pytest.fixture(scope="module")
def real_plain(smollm2: Parts) -> dict[str, Outcome]:
    return decode(Engine(smollm2), real_specs(smollm2, 0))


@pytest.mark.parametrize(("weights", "steps"), [("trained", 5), ("random", 2), ("adversarial", 3)])
def test_the_real_model_decodes_the_same_with_any_head(
    smollm2: Parts, smollm2_source: Any, real_plain: dict[str, Outcome], weights: str, steps: int
) -> None:
    """SmolLM2-135M in fp32, greedy and sampled: no mismatched token."""
    parts = smollm2 if weights == "trained" else with_head(smollm2, weights, smollm2_source.builtin_head)
    found = decode(Engine(parts), real_specs(parts, steps))
    assert_same(found, real_plain)
    accepted = sum(sum(outcome.accepted) for outcome in found.values())
    assert accepted > 40 if weights == "trained" else accepted < 10
