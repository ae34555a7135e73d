"""The edge cases of specs/eagle3.md section 8, by their numbers there: 1 to 8, 10 to 12, 14, 16 and 17.

9 and 13 are not built; 15 (ranks hold equal bits) is tested with the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding import (
    Outcome,
    answer,
    decode,
    draft_kv,
    drafts_from,
    oracle,
    request,
    running,
    tiny_parts,
)
from safetensors.torch import load_file
from toy_engine import Toy, ToyDraft, ToyTokenizer, build, draft_table, random_table, run

import tiny_models
from alula.comm.group import single_group
from alula.core.config import EngineConfig
from alula.core.errors import PromptTooLong
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine
from alula.engine.request import LENGTH, STOP, Request
from alula.engine.setup import EngineSpec, load_parts
from alula.models.source import resolve_source
from alula.spec.drafting import DraftState

TABLE = random_table(21)
TOY = Toy(TABLE, draft_table("near", TABLE))
PROMPT = tiny_models.random_ids(9, seed=5)
FREE = SamplingParams(max_tokens=40, ignore_eos=True)


def toy_tokens(sampling: SamplingParams, prompt: tuple[int, ...] = (1, 4, 2)) -> list[int]:
    """The toy's plain answer."""
    answers, _ = run(build(TOY), [request(prompt, 0, sampling=sampling)], TOY)
    return answers["r"].token_ids


class Foretold:
    """An engine over tiny models whose drafts are its own plain answer, but for chosen replacements."""

    def __init__(self, sampling: SamplingParams, steps: int, family: str = "plain") -> None:
        self.parts = tiny_parts(family)
        self.steps = steps
        self.plain = answer(self.parts, request(PROMPT, 0, sampling=sampling))
        self.free = answer(self.parts, request(PROMPT, 0, sampling=FREE))

    def run(self, sampling: SamplingParams, replaced: dict[int, int] | None = None) -> Outcome:
        known = [*PROMPT, *self.free.token_ids]
        for position, token in (replaced or {}).items():
            known[position] = token
        engine = Engine(self.parts)
        with drafts_from(oracle({"r": known}), engine):
            return decode(engine, [request(PROMPT, self.steps, sampling=sampling)])["r"]


# ---- 1 and 2: stops inside an accepted run


@pytest.mark.parametrize("at", range(1, 10))
def test_1_a_stop_inside_the_accepted_run_cuts_the_rest(at: int) -> None:
    """Wherever the stop falls in a cycle of four drafts: nothing after it is emitted, the bonus token neither."""
    tokens = toy_tokens(SamplingParams(max_tokens=12))
    stop = tokens[at]
    first = tokens.index(stop)
    sampling = SamplingParams(max_tokens=12, stop_token_ids=(stop,))
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    engine = build(toy)
    draft = engine.parts.drafter.model if engine.parts.drafter else None
    assert isinstance(draft, ToyDraft)
    draft.seen = []
    answers, records = run(engine, [request((1, 4, 2), 4, sampling=sampling)], toy)
    found = answers["r"]
    assert found.token_ids == tokens[: first + 1]
    assert found.last is not None
    assert (found.last.finish_reason, found.last.num_kept_tokens) == (STOP, first + 1)
    # What was dropped was never fed to the draft, and the last cycle counts its drafts as they were.
    committed = [row for phase, rows in draft.seen if phase == "extend" for row in rows]
    assert all(position < 3 + first for position, _, _ in committed)
    assert found.last.record is not None
    assert found.last.record.num_truncated_cycles == int(records[-1].requests[0].truncated)


def test_1_the_models_own_end_of_sequence_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = toy_tokens(SamplingParams(max_tokens=12))
    monkeypatch.setattr(ToyTokenizer, "eos_token_ids", frozenset({tokens[4]}))
    first = tokens.index(tokens[4])
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    for steps in (0, 2, 8):
        answers, _ = run(build(toy), [request((1, 4, 2), steps, sampling=SamplingParams(max_tokens=12))], toy)
        assert answers["r"].token_ids == tokens[: first + 1]
    ignoring = SamplingParams(max_tokens=12, ignore_eos=True)
    answers, _ = run(build(toy), [request((1, 4, 2), 8, sampling=ignoring)], toy)
    assert answers["r"].token_ids == tokens


def test_1_a_drafted_stop_that_is_rejected_finishes_nothing() -> None:
    stop = tiny_models.VOCAB_SIZE - 1
    sampling = SamplingParams(max_tokens=20, stop_token_ids=(stop,), ignore_eos=True)
    foretold = Foretold(sampling, steps=3)
    assert stop not in foretold.free.token_ids[:20]
    every_other = dict.fromkeys(range(len(PROMPT) + 2, len(PROMPT) + 30, 2), stop)
    found = foretold.run(sampling, every_other)
    assert found.token_ids == foretold.plain.token_ids
    assert (found.finish_reason, len(found.token_ids)) == (LENGTH, 20)


@pytest.mark.parametrize("budget", range(1, 12))
def test_2_a_stop_within_the_budget_wins_and_one_beyond_it_is_not_seen(budget: int) -> None:
    tokens = toy_tokens(SamplingParams(max_tokens=12))
    stop = tokens[5]
    first = tokens.index(stop)
    sampling = SamplingParams(max_tokens=budget, stop_token_ids=(stop,))
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    answers, _ = run(build(toy), [request((1, 4, 2), 8, sampling=sampling)], toy)
    found = answers["r"]
    assert found.token_ids == tokens[: min(budget, first + 1)]
    assert found.last is not None
    assert found.last.finish_reason == (STOP if first < budget else LENGTH)


# ---- 3: the budget


@pytest.mark.parametrize("steps", [1, 4, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 16])
def test_3_max_tokens_is_met_exactly(max_tokens: int, steps: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    foretold = Foretold(sampling, steps)
    found = foretold.run(sampling)
    assert found.token_ids == foretold.plain.token_ids
    assert (len(found.token_ids), found.finish_reason) == (max_tokens, LENGTH)
    emitted = 1
    for cycle in (c for c in found.cycles if not c.num_prefill):
        assert cycle.drafted == min(steps, max_tokens - emitted - 1)
        assert not cycle.truncated
        emitted += cycle.emitted


# ---- 4: stop strings


@pytest.mark.parametrize("length", [1, 2, 4])
def test_4_stop_strings_cut_at_the_character_and_roll_tokens_back(length: int) -> None:
    """At every place of the answer, so within a cycle, across two and over three; with partial matches before it."""
    text = "".join(chr(ord("a") + token) for token in toy_tokens(SamplingParams(max_tokens=12)))
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    for at in range(len(text) - length):
        stop = text[at : at + length]
        first = text.index(stop)
        sampling = SamplingParams(max_tokens=12, stop=(stop, text[at : at + length] + "z"))
        endings = set()
        for steps in (0, 1, 2, 5):
            engine = build(toy)
            engine.add(request((1, 4, 2), steps, sampling=sampling))
            updates = []
            while engine.has_work:
                updates += engine.step().updates
            assert "".join(update.text for update in updates) == text[:first]
            endings.add((updates[-1].finish_reason, updates[-1].num_kept_tokens))
        assert endings == {(STOP, first)}


def test_4_what_may_become_a_stop_is_held_back_and_comes_at_the_end() -> None:
    text = "".join(chr(ord("a") + token) for token in toy_tokens(SamplingParams(max_tokens=12)))
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    sampling = SamplingParams(max_tokens=12, stop=(text[8:12] + "x",))
    engine = build(toy)
    engine.add(request((1, 4, 2), 3, sampling=sampling))
    shown = ""
    while engine.has_work:
        for update in engine.step().updates:
            shown += update.text
            assert update.finish_reason or len(shown) <= 12
    assert shown == text


# ---- 5: the end of the context


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_5_the_context_is_filled_to_its_last_token_and_never_beyond(steps: int) -> None:
    """The draft shrinks near the end; a write behind the page table would raise."""
    for context_tokens in (7, 12, 13):
        toy = Toy(
            TABLE,
            draft_table("oracle", TABLE),
            context_tokens=context_tokens,
            page_tokens=3,
            num_pages=1 + -(-context_tokens // 3),
        )
        engine = build(toy)
        draft = engine.parts.drafter.model if engine.parts.drafter else None
        assert isinstance(draft, ToyDraft)
        draft.seen = []
        answers, records = run(engine, [request((1, 4, 2), steps, sampling=SamplingParams(max_tokens=99))], toy)
        assert len(answers["r"].token_ids) == context_tokens - 3
        assert answers["r"].last is not None
        assert answers["r"].last.finish_reason == LENGTH
        assert max([position for _, rows in draft.seen for position, _, _ in rows], default=0) < context_tokens
        num_tokens = 4
        for record in records[1:]:
            (part,) = record.requests
            assert part.drafted == min(steps, context_tokens - num_tokens)
            num_tokens += part.emitted


def test_5_a_prompt_needs_room_for_one_token() -> None:
    toy = Toy(TABLE, TABLE, context_tokens=6)
    engine = build(toy)
    with pytest.raises(PromptTooLong, match="6 tokens and the context 6"):
        engine.add(request((1, 2, 3, 4, 5, 6), 2))
    engine.add(request((1, 2, 3, 4, 5), 2))
    (update,) = engine.step().updates
    assert (len(update.token_ids), update.finish_reason) == (1, LENGTH)


def test_5_the_drafts_rope_reaches_the_engines_context() -> None:
    """tiny_models' heads say max_position_embeddings 64; the target's context is 640."""
    parts = tiny_parts()
    prompt = tiny_models.random_ids(600, seed=8)
    found = decode(Engine(parts), [request(prompt, 4, sampling=FREE)])["r"]
    assert found.token_ids == answer(parts, request(prompt, 0, sampling=FREE)).token_ids
    assert (len(found.token_ids), found.finish_reason) == (40, LENGTH)
    assert sum(found.accepted) > 0


# ---- 6: rollback


@pytest.mark.parametrize("page_tokens", [1, 2, 5])
def test_6_pages_of_rejected_drafts_go_back_whole(page_tokens: int) -> None:
    toy = Toy(TABLE, draft_table("adversarial", TABLE), page_tokens=page_tokens, num_pages=40)
    engine = build(toy)
    engine.add(request((1, 4, 2), 8, sampling=SamplingParams(max_tokens=10)))
    while engine.has_work:
        engine.step()
        held = sum(len(current.table.pages) for current in running(engine))
        assert engine._scheduler.pages.num_free == 39 - held
        for current in running(engine):
            # A page for the root is there at most, never one for what was rejected.
            assert -(-current.num_kv // page_tokens) <= held <= -(-(current.num_kv + 1) // page_tokens)
    assert engine._scheduler.pages.num_free == 39


# ---- 7 and 8: mixed batches


def test_7_a_tokens_draw_depends_on_its_position_not_on_its_row() -> None:
    """The same requests in another order, beside others, with other widths: the same tokens."""
    parts = tiny_parts()
    sampled = [
        request(
            tiny_models.random_ids(4 + i, seed=i),
            3,
            f"r{i}",
            SamplingParams(temperature=0.9, seed=i, presence_penalty=0.5, max_tokens=15, ignore_eos=True),
        )
        for i in range(5)
    ]
    forwards = decode(Engine(parts), sampled)
    backwards = decode(Engine(parts), [*reversed(sampled), request(PROMPT, 8, "other", FREE)])
    for spec in sampled:
        assert forwards[spec.request_id].token_ids == backwards[spec.request_id].token_ids
        assert forwards[spec.request_id].accepted == backwards[spec.request_id].accepted


def test_8_requests_join_while_others_verify() -> None:
    """Prefill rows and verify rows in one forward; a request drafts from the cycle after its prefill on."""
    parts = tiny_parts(chunk_tokens=6)
    specs = [request(tiny_models.random_ids(13, seed=i), 3, f"r{i}", FREE) for i in range(3)]
    mixed = []

    def check(engine: Engine, record: CycleRecord) -> None:
        mixed.append({bool(part.num_prefill) for part in record.requests})
        for part in record.requests:
            if part.num_prefill:
                assert (part.drafted, part.width) == (0, part.num_prefill)

    together = decode(Engine(parts), specs, arrivals=[0, 4, 5], after_step=check)
    assert {True, False} in mixed
    for spec in specs:
        alone = answer(tiny_parts(), spec)
        assert together[spec.request_id].token_ids == alone.token_ids
        assert together[spec.request_id].accepted == alone.accepted


def test_8_a_request_without_draft_state_decodes_one_token() -> None:
    """However it lost it: the next cycle is plain for this request, and the one after drafts again."""
    parts = tiny_parts()
    engine = Engine(parts)
    for name in ("a", "b"):
        engine.add(request(PROMPT, 3, name, FREE))
    for _ in range(3):
        engine.step()
    (first, _) = running(engine)
    first.draft = None
    widths = {part.request_id: part.width for part in engine.step().record.requests}
    assert widths == {"a": 1, "b": 4}
    widths = {part.request_id: part.width for part in engine.step().record.requests}
    assert widths == {"a": 4, "b": 4}
    plain = answer(parts, request(PROMPT, 0, "a", FREE)).token_ids
    assert first.tokens[len(PROMPT) :] == plain[: first.num_output]


# ---- 10 and 11: chunks and preemption


@pytest.mark.parametrize("chunk_tokens", [1, 2, 4])
def test_10_middle_chunks_draft_nothing_and_know_the_next_prompt_token(chunk_tokens: int) -> None:
    toy = Toy(TABLE, draft_table("near", TABLE), chunk_tokens=chunk_tokens)
    engine = build(toy)
    draft = engine.parts.drafter.model if engine.parts.drafter else None
    assert isinstance(draft, ToyDraft)
    draft.seen = []
    prompt = (1, 4, 2, 7, 7, 0, 3)
    answers, records = run(engine, [request(prompt, 2, sampling=SamplingParams(max_tokens=5))], toy)
    chunks = [record.requests[0] for record in records if record.requests[0].num_prefill]
    assert [chunk.num_prefill for chunk in chunks] == _chunks(7, chunk_tokens)
    assert [chunk.emitted for chunk in chunks] == [0] * (len(chunks) - 1) + [1]
    assert all(chunk.drafted == 0 for chunk in chunks)
    tokens = [*prompt, *answers["r"].token_ids]
    pairs = [row for _, rows in draft.seen[: len(chunks)] for row in rows]
    assert pairs == [(i, tokens[i], tokens[i + 1]) for i in range(7)]


def _chunks(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


@pytest.mark.parametrize("chunk_tokens", [6, 64])
def test_11_a_resumed_request_refills_target_and_draft(chunk_tokens: int) -> None:
    """After preemption the prompt is the prompt and the output so far; the draft is filled again with the target."""
    toy = Toy(
        TABLE, draft_table("near", TABLE), page_tokens=2, num_pages=10, context_tokens=18, chunk_tokens=chunk_tokens
    )
    engine = build(toy)
    draft = engine.parts.drafter.model if engine.parts.drafter else None
    assert isinstance(draft, ToyDraft)
    draft.seen = []
    sampling = SamplingParams(max_tokens=14)
    specs = [request((1, 4, 2), 2, "first", sampling), request((5, 3), 2, "second", sampling)]
    answers, _ = run(engine, specs, toy)
    assert answers["second"].last is not None
    assert answers["second"].last.record is not None
    assert answers["second"].last.record.num_preemptions > 0
    tokens = {spec.request_id: [*spec.prompt_ids, *answers[spec.request_id].token_ids] for spec in specs}
    # Every committed pair belongs to one of the two texts, and the second's first pair was fed more than once.
    pairs = [row for phase, rows in draft.seen if phase == "extend" for row in rows]
    texts = {(i, t[i], t[i + 1]) for t in tokens.values() for i in range(len(t) - 1)}
    assert set(pairs) <= texts
    assert pairs.count((0, 5, 3)) == 1 + answers["second"].last.record.num_preemptions
    for spec in specs:
        assert answers[spec.request_id].token_ids == toy_tokens(sampling, spec.prompt_ids)


def test_11_the_draft_state_goes_with_the_cache() -> None:
    """With real layers: after each cycle between preemptions, the draft's keys are as many as the target's."""
    parts = replace(tiny_parts(page_tokens=4), num_pages=18)
    engine = Engine(parts)
    specs = [request(tiny_models.random_ids(9, seed=i), 3, f"r{i}", FREE) for i in range(3)]
    preempted = set()

    def check(engine: Engine, record: CycleRecord) -> None:
        for waiting in engine._scheduler.waiting:
            if waiting.num_preemptions:
                preempted.add(waiting.spec.request_id)
                assert (waiting.draft, waiting.num_kv, waiting.table.pages) == (None, 0, [])
        for current in running(engine):
            if current.num_pending == 1:
                assert isinstance(current.draft, DraftState)
                assert draft_kv(parts, current)[0].abs().sum(dim=(0, 2, 3)).min() > 0

    found = decode(engine, specs, after_step=check)
    assert preempted
    for spec in specs:
        assert found[spec.request_id].token_ids == answer(tiny_parts(), spec).token_ids


# ---- 12: logprobs


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=12, logprobs=4, ignore_eos=True),
        SamplingParams(
            temperature=0.8, top_k=9, seed=4, presence_penalty=0.7, max_tokens=12, logprobs=2, ignore_eos=True
        ),
    ],
    ids=["greedy", "sampled"],
)
def test_12_logprobs_are_those_of_plain_decoding(sampling: SamplingParams) -> None:
    """At every node, the target's raw ones, and one for each emitted token."""
    parts = tiny_parts()
    plain = answer(parts, request(PROMPT, 0, sampling=sampling))
    fast = answer(parts, request(PROMPT, 5, sampling=sampling))
    assert sum(fast.accepted) > 0
    assert [entry.token_id for entry in fast.logprobs] == fast.token_ids == plain.token_ids
    for found, wanted in zip(fast.logprobs, plain.logprobs, strict=True):
        assert found.logprob == pytest.approx(wanted.logprob, abs=1e-4)
        assert [token for token, _ in found.top] == [token for token, _ in wanted.top]
        assert [value for _, value in found.top] == pytest.approx([value for _, value in wanted.top], abs=1e-4)
        assert len(found.top) == sampling.logprobs
    # Raw, so they are transformers' own, whatever the sampling does to the distribution.
    logits = tiny_models.reference_logits("plain", [*PROMPT, *plain.token_ids])
    exact = logits.log_softmax(-1)[len(PROMPT) - 1 : -1].gather(1, torch.tensor(plain.token_ids)[:, None])
    torch.testing.assert_close(torch.tensor([e.logprob for e in fast.logprobs]), exact[:, 0], atol=1e-3, rtol=1e-3)


# ---- 14: broken numbers


def test_14_a_draft_that_breaks_its_row_breaks_no_request(tmp_path: Path) -> None:
    """A token that the text never holds has no number for an embedding. Plain decoding would not notice, so neither
    must a request that is drafted this token: the cycle runs again without its drafts. (What else becomes of NaN:
    tests/engine/test_nan.py.)"""
    poison = 200
    embedding = load_file(tiny_models.checkpoint("plain") / "model.safetensors")["model.embed_tokens.weight"]
    embedding[poison] = float("nan")
    tiny_models.copy_with(
        tiny_models.checkpoint("plain"), {"model.embed_tokens.weight": embedding}, tmp_path / "target"
    )
    config = EngineConfig(dtype="float32", device="cpu", kv_memory_bytes=2**21, max_batch=8)
    source = resolve_source(str(tmp_path / "target"))
    parts = load_parts(EngineSpec(source=source, head=tiny_models.head("plain"), config=config), single_group())
    for count in (1, 2):
        specs = [request(tiny_models.random_ids(5 + i, seed=30 + i), 4, f"r{i}", FREE) for i in range(count)]
        plain = {spec.request_id: answer(tiny_parts(), spec) for spec in specs}
        assert all(poison not in (*spec.prompt_ids, *plain[spec.request_id].token_ids) for spec in specs)
        engine = Engine(parts)
        with drafts_from(lambda current, first, steps: [poison] * steps, engine):
            found = decode(engine, specs)
        for spec in specs:
            assert found[spec.request_id].finish_reason == LENGTH
            assert found[spec.request_id].token_ids == plain[spec.request_id].token_ids


# ---- 16: no drafts


def test_16_requests_without_speculation_run_beside_those_with() -> None:
    parts = tiny_parts()
    specs = [request(PROMPT, steps, f"k{steps}", FREE) for steps in (0, 3)]
    seen: list[Request] = []

    def check(engine: Engine, record: CycleRecord) -> None:
        seen.extend(current for current in running(engine) if current.spec.steps == 0)
        assert all(current.draft is None for current in seen)

    found = decode(Engine(parts), specs, after_step=check)
    assert found["k0"].token_ids == found["k3"].token_ids
    assert {cycle.width for cycle in found["k0"].cycles if not cycle.num_prefill} == {1}
    assert found["k0"].record is not None
    assert (found["k0"].record.drafted, found["k0"].record.accepted) == (0, 0)
    assert found["k0"].record.num_cycles == 39


def test_16_a_cycle_without_drafts_still_extends() -> None:
    """Where k is 0 for a cycle, the draft keeps up, and drafts again in the next."""
    parts = tiny_parts()
    engine = Engine(parts)
    engine.add(request(PROMPT, 3, "a", FREE))
    for _ in range(2):
        engine.step()
    (current,) = running(engine)
    current.draft = None
    before = current.num_kv
    engine.step()
    assert current.num_kv == before + 1
    assert isinstance(current.draft, DraftState)
    assert draft_kv(parts, current)[0].shape[1] == before + 1


# ---- 17: dtypes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_17_the_draft_has_the_targets_dtype_and_decisions_are_fp32(dtype: str) -> None:
    parts = tiny_parts(dtype=dtype)
    assert parts.drafter is not None
    wanted: torch.dtype = getattr(torch, dtype)
    assert parts.drafter.geometry.dtype == parts.geometry.dtype == wanted
    assert parts.drafter.model.hot_D.dtype == torch.int64
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=12, logprobs=1, ignore_eos=True)
    found = answer(parts, request(PROMPT, 4, sampling=sampling))
    assert len(found.token_ids) == 12
    # A log-probability of 16 bits would be a multiple of its last place; fp32 ones are finer.
    finer = [e.logprob for e in found.logprobs if torch.tensor(e.logprob).to(wanted).item() != e.logprob]
    assert bool(finer) == (dtype != "float32")
