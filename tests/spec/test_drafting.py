"""Alignment (specs/eagle3.md section 2): which feature is paired with which token at which position, and that the
draft's keys and values are those of a teacher-forced pass after every cycle."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
import torch
from decoding import (
    answer,
    decode,
    draft_kv,
    drafts_from,
    oracle,
    request,
    running,
    target_kv,
    tiny_parts,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import Toy, ToyDraft, build, draft_table, random_table, run

import tiny_models
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine
from alula.engine.request import Request
from alula.engine.setup import Parts
from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable
from alula.spec.drafting import ChainStart, Drafter, DraftState, Extension, greedy_chooser
from alula.spec.teacher_forced import TeacherText, accepted_per_cycle, read_features

PROMPT = tiny_models.random_ids(11, seed=3)
TABLE = random_table(4)


def spied(
    toy: Toy, prompt: tuple[int, ...], steps: int, max_tokens: int
) -> tuple[list[int], list, list[CycleRecord]]:
    """(all tokens, what the draft saw, records) of one request."""
    engine = build(toy)
    draft = engine.parts.drafter.model
    assert isinstance(draft, ToyDraft)
    draft.seen = []
    spec = request(prompt, steps, sampling=SamplingParams(max_tokens=max_tokens))
    answers, records = run(engine, [spec], toy)
    return [*prompt, *answers["r"].token_ids], draft.seen, records


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 64])
@pytest.mark.parametrize("kind", ["near", "random", "oracle", "adversarial"])
def test_every_committed_pair_is_a_token_and_its_successor(kind: str, chunk_tokens: int) -> None:
    """Position i: the feature of token i with token i+1; at a chunk's end that is the next prompt token."""
    toy = Toy(TABLE, draft_table(kind, TABLE), chunk_tokens=chunk_tokens)
    tokens, seen, _ = spied(toy, (1, 6, 2, 2, 7), 3, 12)
    committed = []
    for phase, rows in seen:
        if phase == "extend":
            assert rows == [(i, tokens[i], tokens[i + 1]) for i, _, _ in rows]
            committed += [position for position, _, _ in rows]
    # Each position exactly once and in order, but those of the last cycle, after which nothing is drafted.
    assert committed == list(range(len(committed)))
    assert len(committed) >= len(tokens) - 1 - 4


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_the_first_draft_forward_is_at_the_first_position_that_is_not_committed(steps: int) -> None:
    """k drafts cost k-1 forwards, at L_kv, L_kv+1, ...; each takes the token drafted before."""
    toy = Toy(TABLE, draft_table("near", TABLE))
    _, seen, records = spied(toy, (1, 6, 2), steps, 40)
    cycles = [record.requests[0] for record in records]
    num_kv, i = cycles[0].kv_tokens, 1
    assert [phase for phase, _ in seen[:1]] == ["extend"]
    for cycle in cycles[1:]:
        forwards = seen[i : i + max(0, cycle.drafted - 1)]
        assert [(phase, rows[0][0]) for phase, rows in forwards] == [
            ("draft", num_kv + j) for j in range(len(forwards))
        ]
        for (_, before), (_, after) in pairwise(forwards):
            assert after[0][1] == before[0][2]  # the feedback of the toy is the token that it read
        i += len(forwards) + 1
        num_kv = cycle.kv_tokens
        assert seen[i - 1 : i] == [] or seen[i - 1][0] == "extend"


def test_the_last_cycle_is_not_extended() -> None:
    """Finished requests are dropped before the extend pass, and nothing after a stop is ever drafted upon."""
    toy = Toy(TABLE, draft_table("oracle", TABLE))
    tokens, seen, records = spied(toy, (1, 6, 2), 3, 9)
    assert len(tokens) == 3 + 9
    assert sum(phase == "extend" for phase, _ in seen) == len(records) - 1
    assert max(position for _, rows in seen for position, _, _ in rows) < len(tokens)


def teacher_forced(parts: Parts, tokens: list[int]) -> tuple[Geometry, torch.Tensor, DraftState]:
    """A draft cache filled by one pass over `tokens`, the last of which is the root, and the features."""
    drafter = parts.drafter
    assert drafter is not None
    own = _fresh(parts.geometry)
    table = SlotTable(16, list(range(1, own.cache.num_slots // 16)))
    features = read_features(parts.target, own, table, tokens[:-1], drafter.model.config.boundaries)
    other = Drafter(drafter.model, _fresh(drafter.geometry))
    (state,) = other.extend([Extension(Segment(table, 0, len(tokens) - 1), tokens[1:], True)], features)
    assert state is not None
    return other.geometry, features, state


def _fresh(geometry: Geometry) -> Geometry:
    num_layers, _, num_kv_heads, head_dim = geometry.cache.k_LSKD.shape
    cache = KVCache(num_layers, 1024, num_kv_heads, head_dim, geometry.dtype, geometry.device)
    return replace(geometry, cache=cache)


def assert_synchronous(parts: Parts, request: Request) -> None:
    """Draft KV, draft state and target KV of a running request are those of one pass over its tokens."""
    geometry, _, state = teacher_forced(parts, request.tokens)
    count = request.num_kv
    assert count == len(request.tokens) - 1
    for found, wanted in zip(draft_kv(parts, request), (geometry.cache.k_LSKD, geometry.cache.v_LSKD), strict=True):
        torch.testing.assert_close(found, wanted[:, 16 : 16 + count], atol=1e-4, rtol=1e-4)
    assert request.draft is not None
    torch.testing.assert_close(request.draft.logits_1D, state.logits_1D, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(request.draft.feedback_1H, state.feedback_1H, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("kind", ["bigram", "random"])
def test_after_every_cycle_the_draft_is_as_if_teacher_forced(kind: str, steps: int) -> None:
    """Extend overwrites what drafting wrote from the draft's own hidden states."""
    parts = tiny_parts(kind=kind)
    checked = []

    def check(engine: Engine, record: CycleRecord) -> None:
        for current in running(engine):
            assert_synchronous(parts, current)
            checked.append(current.num_kv)

    outcome = decode(Engine(parts), [request(PROMPT, steps)], after_step=check)["r"]
    assert len(checked) == len(outcome.cycles) - 1 > 1


def test_drafting_leaves_something_to_overwrite() -> None:
    """The control: without the extend pass the keys at accepted positions are others. No token changes for that."""
    parts = tiny_parts()
    spec = request(PROMPT, 3, sampling=SamplingParams(max_tokens=60, ignore_eos=True))
    whole = answer(parts, spec)
    original = Drafter.extend

    def lazy(self: Drafter, extensions: list[Extension], features: torch.Tensor) -> list[DraftState | None]:
        cache = self.geometry.cache
        kept = cache.k_LSKD.clone(), cache.v_LSKD.clone()
        states = original(self, extensions, features)
        if extensions[0].segment.first_position:  # a cycle, not the prompt
            cache.k_LSKD.copy_(kept[0])
            cache.v_LSKD.copy_(kept[1])
        return states

    differences = []

    def compare(engine: Engine, record: CycleRecord) -> None:
        for current in running(engine):
            geometry, _, _ = teacher_forced(parts, current.tokens)
            found = draft_kv(parts, current)[0]
            differences.append(float((found - geometry.cache.k_LSKD[:, 16 : 16 + current.num_kv]).abs().max()))

    with mock.patch.object(Drafter, "extend", lazy):
        stale = decode(Engine(parts), [spec], after_step=compare)["r"]
    assert max(differences[1:]) > 0.01
    assert stale.token_ids == whole.token_ids


@pytest.mark.parametrize("chunk_tokens", [1, 4, 7])
def test_chunked_prefill_leaves_the_same_draft_state(chunk_tokens: int) -> None:
    parts = tiny_parts(chunk_tokens=chunk_tokens)
    seen = []

    def check(engine: Engine, record: CycleRecord) -> None:
        for current in running(engine):
            (part,) = record.requests
            if current.num_kv < len(PROMPT):
                assert (part.drafted, part.emitted, current.draft) == (0, 0, None)
            else:
                assert_synchronous(parts, current)
                seen.append(current.num_kv)

    outcome = decode(Engine(parts), [request(PROMPT, 2)], after_step=check)["r"]
    assert seen
    assert outcome.token_ids == answer(tiny_parts(), request(PROMPT, 2)).token_ids


def test_ragged_acceptance_keeps_every_request_synchronous() -> None:
    """Requests of one batch accept different numbers of drafts in the same cycle; each is as if it were alone."""
    parts = tiny_parts()
    steps = [1, 3, 8, 4, 0, 2]
    specs = [
        request(
            tiny_models.random_ids(3 + 5 * i, seed=i), k, f"r{i}", SamplingParams(max_tokens=20, ignore_eos=True)
        )
        for i, k in enumerate(steps)
    ]
    ragged = []

    def check(engine: Engine, record: CycleRecord) -> None:
        ragged.append({part.accepted for part in record.requests if part.drafted})
        for current in running(engine):
            if current.spec.steps:
                assert_synchronous(parts, current)

    together = decode(Engine(parts), specs, after_step=check)
    assert max(map(len, ragged)) > 1
    for spec in specs:
        alone = answer(parts, spec)
        assert together[spec.request_id].token_ids == alone.token_ids
        assert together[spec.request_id].accepted == alone.accepted


def test_steps_are_each_requests_own() -> None:
    parts = tiny_parts()
    specs = [request(PROMPT, k, f"k{k}", SamplingParams(max_tokens=30, ignore_eos=True)) for k in (0, 1, 2, 5, 8)]
    for name, outcome in decode(Engine(parts), specs).items():
        steps = int(name[1:])
        drafted = [cycle.drafted for cycle in outcome.cycles if not cycle.num_prefill]
        assert max(drafted) == steps
        # Never more than asked for, and fewer only where the answer ends.
        assert all(count == steps for count in drafted[:-1][: len(drafted) - steps - 1])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
@settings(max_examples=10)
def test_a_chain_of_many_requests_is_the_chains_of_each(steps: list[int]) -> None:
    """`Drafter.chain` over requests that stop drafting at different steps."""
    parts = tiny_parts()
    assert parts.drafter is not None
    model = parts.drafter.model
    together, starts = _started(parts, steps)
    (alone, single_starts) = _started(parts, steps)
    with torch.no_grad():
        found = together.chain(starts, greedy_chooser)
        singly = [alone.chain([start], greedy_chooser)[0] for start in single_starts]
    assert found == singly
    assert [len(drafts) for drafts in found] == steps
    assert {token for drafts in found for token in drafts} <= set(model.hot_D.tolist())


def _started(parts: Parts, steps: list[int]) -> tuple[Drafter, list[ChainStart]]:
    assert parts.drafter is not None
    drafter = Drafter(parts.drafter.model, _fresh(parts.drafter.geometry))
    starts = []
    generator = torch.Generator().manual_seed(2)
    for i, k in enumerate(steps):
        count = 3 + 2 * i
        features = torch.randn(count, drafter.model.config.num_features, generator=generator)
        table = SlotTable(16, [1 + 2 * i, 2 + 2 * i])
        successors = tiny_models.random_ids(count, seed=i)
        with torch.no_grad():
            (state,) = drafter.extend([Extension(Segment(table, 0, count), successors, True)], features)
        assert state is not None
        starts.append(ChainStart(table, count, k, state))
    return drafter, starts


def test_extend_reads_a_distribution_only_where_it_is_wanted() -> None:
    """A middle chunk has no use for one; the others' states do not move."""
    parts = tiny_parts()
    assert parts.drafter is not None
    drafter = Drafter(parts.drafter.model, _fresh(parts.drafter.geometry))
    tables = [SlotTable(16, [1]), SlotTable(16, [2]), SlotTable(16, [3])]
    features = torch.randn(9, drafter.model.config.num_features, generator=torch.Generator().manual_seed(0))
    extensions = [
        Extension(Segment(tables[0], 0, 4), [5, 6, 7, 8], True),
        Extension(Segment(tables[1], 0, 3), [5, 6, 7], False),
        Extension(Segment(tables[2], 0, 2), [9, 9], True),
    ]
    with torch.no_grad():
        states = drafter.extend(extensions, features)
        alone = drafter.extend(extensions[2:], features[7:])
    assert states[1] is None
    assert states[0] is not None
    assert states[2] is not None
    assert alone[0] is not None
    torch.testing.assert_close(states[2].logits_1D, alone[0].logits_1D, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_an_oracle_draft_gives_steps_and_one_tokens_a_cycle(steps: int) -> None:
    parts = tiny_parts()
    sampling = SamplingParams(max_tokens=1 + 4 * (steps + 1), ignore_eos=True)
    plain = answer(parts, request(PROMPT, 0, sampling=sampling))
    engine = Engine(parts)
    with drafts_from(oracle({"r": [*PROMPT, *plain.token_ids]}), engine):
        fast = decode(engine, [request(PROMPT, steps, sampling=sampling)])["r"]
    assert fast.token_ids == plain.token_ids
    assert fast.accepted == [steps] * 4
    assert fast.record is not None
    assert fast.record.accepted_per_position == (4,) * steps


@given(wrong=st.sets(st.integers(0, 60), max_size=30), steps=st.integers(1, 8))
@settings(max_examples=15)
def test_a_cycle_ends_at_the_first_wrong_draft(wrong: set[int], steps: int) -> None:
    """An oracle that errs at chosen positions: the accepted drafts are exactly those before its first error."""
    parts = tiny_parts()
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = answer(parts, request(PROMPT, 0, sampling=sampling))
    engine = Engine(parts)
    known = [*PROMPT, *plain.token_ids]
    with drafts_from(oracle({"r": known}, lambda position: position in wrong), engine):
        fast = decode(engine, [request(PROMPT, steps, sampling=sampling)])["r"]
    assert fast.token_ids == plain.token_ids
    root = len(PROMPT)
    for cycle in (c for c in fast.cycles if not c.num_prefill):
        expected = next((j for j in range(cycle.drafted) if root + 1 + j in wrong), cycle.drafted)
        assert cycle.accepted == expected
        root += expected + 1


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_the_engine_accepts_what_the_teacher_forced_count_says(steps: int) -> None:
    """Two ways to the same number: the engine's cycles, and spec/teacher_forced.py along the finished text."""
    parts = tiny_parts()
    assert parts.drafter is not None
    spec = request(PROMPT, steps, sampling=SamplingParams(max_tokens=48, ignore_eos=True))
    outcome = answer(parts, spec)
    geometry, features, _ = teacher_forced(parts, [*PROMPT, *outcome.token_ids, 0])
    drafter = Drafter(parts.drafter.model, _fresh(geometry))
    table = SlotTable(16, list(range(1, 60)))
    text = TeacherText(tuple(PROMPT), tuple(outcome.token_ids), features)
    counted = accepted_per_cycle(drafter, table, text, steps)
    # The last cycles are cut by the answer's end, each in its own way.
    comparable = max(0, len(outcome.accepted) - steps - 1)
    assert comparable > 3
    assert counted[:comparable] == outcome.accepted[:comparable]
    assert sum(outcome.accepted) > 0


def test_rejected_drafts_leave_no_trace_in_the_targets_cache() -> None:
    """After cycles of rejections the target's keys are those of one pass over the emitted tokens."""
    parts = tiny_parts(kind="adversarial")

    def check(engine: Engine, record: CycleRecord) -> None:
        for current in running(engine):
            own = _fresh(parts.geometry)
            table = SlotTable(16, list(range(1, 60)))
            count = current.num_kv
            with torch.no_grad():
                parts.target(build_forward(own, [Segment(table, 0, count)], current.tokens[:count], "other"))
            for found, wanted in zip(target_kv(parts, current), (own.cache.k_LSKD, own.cache.v_LSKD), strict=True):
                torch.testing.assert_close(found, wanted[:, 16 : 16 + count], atol=1e-4, rtol=1e-4)

    outcome = decode(Engine(parts), [request(PROMPT, 4)], after_step=check)["r"]
    assert outcome.record is not None
    assert outcome.record.drafted > outcome.record.accepted


def test_positions_may_be_shifted_but_not_moved_against_each_other() -> None:
    """Why the first draft forward must be at L_kv: rope is relative, so only the distance to the committed keys counts.

    One position too high (as an engine once had it) changes the drafts' logits.
    """
    drafter, (start,) = _started(tiny_parts(), [3])
    logits: dict[int, list[torch.Tensor]] = {}
    for offset in (0, 1):
        logits[offset] = []

        def choose(step: int, active: list[int], found: torch.Tensor, kept: list = logits[offset]) -> torch.Tensor:
            kept.append(found.clone())
            return greedy_chooser(step, active, found)

        with torch.no_grad():
            drafter.chain([replace(start, num_kv=start.num_kv + offset)], choose)
    assert torch.equal(logits[0][0], logits[1][0])
    assert not torch.allclose(logits[0][1], logits[1][1])
