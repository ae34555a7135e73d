"""Requests that go back and forth between plain and drafted cycles: the same tokens, and drafts as good as before.

The draft's own keys, its next distribution and its tokens per cycle are those of a request that always drafted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from decoding import Outcome, answer, decode, draft_kv, request, running, tiny_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import Toy, ToyDraft, build, draft_table, random_table, run

import tiny_models
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams
from alula.engine import cycle
from alula.engine.engine import Engine
from alula.engine.request import Request
from alula.spec.backlog import CATCH_UP_TOKENS, Backlog
from alula.spec.drafting import Drafter, DraftState, Extension

PROMPT = tiny_models.random_ids(9, seed=5)
FREE = SamplingParams(max_tokens=40, ignore_eos=True)
LONG = SamplingParams(max_tokens=CATCH_UP_TOKENS + 60, ignore_eos=True)
TABLE = random_table(33)


# Tokens


@given(decisions=st.lists(st.booleans(), min_size=1, max_size=30), steps=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=15)
@pytest.mark.parametrize("exact_bf16", [False, True])
def test_no_decision_changes_a_token(decisions: list[bool], steps: int, seed: int, exact_bf16: bool) -> None:
    """Exact engines: fp32, and bf16 where it was asked for."""
    parts = tiny_parts(dtype="bfloat16", exact=True) if exact_bf16 else tiny_parts()
    specs = [
        request(tiny_models.random_ids(5 + i, seed=seed + i), steps, f"r{i}", sampling)
        for i, sampling in enumerate([FREE, SamplingParams(temperature=0.9, seed=seed, max_tokens=30)])
    ]
    found = decode(Engine(parts), specs, arrivals=[0, 3], decisions=decisions)
    for spec in specs:
        plain = answer(parts, request(spec.prompt_ids, 0, spec.request_id, spec.sampling))
        assert found[spec.request_id].token_ids == plain.token_ids
        assert found[spec.request_id].finish_reason == plain.finish_reason


def test_a_cycle_that_may_not_draft_has_one_row_a_request() -> None:
    records: list[CycleRecord] = []
    found = decode(
        Engine(tiny_parts()),
        [request(PROMPT, 3, f"r{i}", FREE) for i in range(3)],
        decisions=[False, True, False],
        after_step=lambda engine, record: records.append(record),
    )
    decoding = records[1:]
    for i, record in enumerate(decoding, 1):
        if i % 3 == 1:
            continue
        assert {part.width for part in record.requests} == {1} and not record.drafted
        assert "draft" not in record.outcomes and record.speculation == "plain"
    assert any(record.drafted for record in decoding)
    for outcome in found.values():
        record = outcome.record
        assert record is not None
        assert record.num_cycles + record.accepted - (record.num_truncated_cycles > 0) <= 40


# The draft after a detour


def _compare(
    parts_of: Callable[[], Engine], prompt: list[int], steps: int, decisions: list[bool], sampling: SamplingParams
) -> tuple[Outcome, Outcome, int]:
    """(always drafting, with detours, lengths at which both drafts had read everything and were compared)."""
    outcomes, kept = [], []
    for plan in ([True], decisions):
        seen: dict[int, tuple[DraftState, torch.Tensor]] = {}

        def keep(engine: Engine, record: CycleRecord, seen: dict = seen) -> None:
            for current in running(engine):
                if isinstance(current.draft, DraftState):
                    seen[current.num_kv] = (current.draft, draft_kv(engine.parts, current)[0])

        outcomes.append(
            decode(parts_of(), [request(prompt, steps, sampling=sampling)], decisions=plan, after_step=keep)["r"]
        )
        kept.append(seen)
    both = kept[0].keys() & kept[1].keys()
    for length in both:
        (one, keys), (other, other_keys) = kept[0][length], kept[1][length]
        torch.testing.assert_close(one.logits_1D, other.logits_1D, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.feedback_1H, other.feedback_1H, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(keys, other_keys, atol=1e-4, rtol=1e-4)
    return outcomes[0], outcomes[1], len(both)


@pytest.mark.parametrize("kind", ["bigram", "random"])
@pytest.mark.parametrize(
    "decisions",
    [
        [False, True],
        [False] * 7 + [True] * 3,
        [True, True, False, False, False],
        [False] * (CATCH_UP_TOKENS + 9) + [True],
    ],
    ids=["every other", "sevens", "a pause", "longer than is kept"],
)
def test_states_and_keys_are_those_without_the_detour(kind: str, decisions: list[bool]) -> None:
    """At every length that both reach. Chunks of prompts count as cycles too."""
    for chunk_tokens in (4, 512):
        parts = tiny_parts(kind=kind, chunk_tokens=chunk_tokens)
        direct, detour, compared = _compare(lambda p=parts: Engine(p), list(PROMPT), 3, decisions, LONG)
        assert direct.token_ids == detour.token_ids
        assert compared >= 1


@given(data=st.data())
@settings(max_examples=15)
def test_any_detour(data: st.DataObject) -> None:
    decisions = data.draw(st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
    parts = tiny_parts(
        page_tokens=data.draw(st.sampled_from([1, 4, 16])), chunk_tokens=data.draw(st.sampled_from([3, 64]))
    )
    limit = data.draw(st.sampled_from([1, 2, 5, CATCH_UP_TOKENS]))
    with mock.patch.object(cycle, "CATCH_UP_TOKENS", limit):
        direct, detour, _ = _compare(lambda: Engine(parts), list(PROMPT), 4, decisions, FREE)
    assert direct.token_ids == detour.token_ids


def test_tokens_per_cycle_after_a_detour_are_those_without() -> None:
    """A head that is right now and then: from the cycle after the pause on, the same drafts are accepted, one by one.

    Accepted drafts depend on where a cycle begins, so the two are compared at equal beginnings.
    """
    parts = tiny_parts()
    compared = 0
    for pause in (1, 3, 20, CATCH_UP_TOKENS + 5):
        for seed in range(4):
            prompt = tiny_models.random_ids(8, seed=seed)
            by_start: list[dict[int, int]] = []
            for decisions in ([True], [True] * 4 + [False] * pause + [True] * 400):
                outcome = decode(Engine(parts), [request(prompt, 3, sampling=LONG)], decisions=decisions)["r"]
                own = [c for c in outcome.cycles if c.drafted == 3]
                by_start.append({c.kv_tokens - c.accepted: c.accepted for c in own})
            both = by_start[0].keys() & by_start[1].keys()
            assert {k: by_start[0][k] for k in both} == {k: by_start[1][k] for k in both}
            compared += sum(k > len(prompt) + 4 + pause for k in both)
    assert compared > 60


# What a plain cycle costs the draft


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_draft_rests_in_plain_cycles_but_for_what_is_too_much_to_keep(limit: int) -> None:
    """It reads each position once, the last of a backlog with the next drafted cycle, and never more than it must."""
    toy = Toy(TABLE, draft_table("near", TABLE), context_tokens=64)
    engine = build(toy)
    draft = engine.parts.drafter.model if engine.parts.drafter else None
    assert isinstance(draft, ToyDraft)
    draft.seen = []
    plan = [True] * 3 + [False] * 20 + [True] * 3 + [False] * 100
    with mock.patch.object(cycle, "CATCH_UP_TOKENS", limit):
        spec = request((1, 4, 2), 2, sampling=SamplingParams(max_tokens=45))
        answers, records = run(engine, [spec], toy, decisions=plan)
    tokens = [1, 4, 2, *answers["r"].token_ids]
    extends = [rows for phase, rows in draft.seen if phase == "extend"]
    pairs = [row for rows in extends for row in rows]
    assert pairs == [(i, tokens[i], tokens[i + 1]) for i in range(len(pairs))]
    assert len(pairs) >= len(tokens) - 3 - limit
    resting = [record for record in records[3:23] if "extend" in record.outcomes]
    assert [record.num_caught_up for record in resting] == [limit] * (20 // limit if limit > 1 else 19)
    back = records[23]
    assert back.drafted and 1 <= back.num_caught_up <= limit and "extend" in back.outcomes
    assert [record.num_caught_up for record in records[24:26]] == [0, 0]


def test_a_plain_cycle_asks_for_no_draft_distribution() -> None:
    parts = tiny_parts()
    asked: list[bool] = []
    extend = Drafter.extend

    def spy(self: Drafter, extensions: list[Extension], features_RF: torch.Tensor) -> list[DraftState | None]:
        asked.extend(extension.wants_state for extension in extensions)
        return extend(self, extensions, features_RF)

    with mock.patch.object(Drafter, "extend", spy), mock.patch.object(cycle, "CATCH_UP_TOKENS", 4):
        decode(Engine(parts), [request(PROMPT, 3, sampling=FREE)], decisions=[False])
    assert asked and not any(asked)


def test_kept_features_do_not_keep_other_rows_in_memory() -> None:
    """A prompt of many rows beside one that decodes plainly: what stays is one row, not a view of all."""
    engine = Engine(tiny_parts(chunk_tokens=512))
    engine.add(request(PROMPT, 3, "first", FREE))
    engine.step(False)
    engine.add(request(tiny_models.random_ids(300, seed=1), 3, "second", FREE))
    engine.step(False)
    for current in running(engine):
        for piece in current.backlog._pieces:
            assert piece.untyped_storage().nbytes() == piece.numel() * piece.element_size()
    first, second = running(engine)
    assert (first.backlog.num_rows, second.backlog.num_rows) == (len(PROMPT) + 1, 1)


# Where requests end, break off, or begin anew


def test_preemption_drops_what_was_kept() -> None:
    """The rows belong to positions that are no longer in the cache."""
    toy = Toy(TABLE, draft_table("near", TABLE), page_tokens=2, num_pages=10, context_tokens=18, chunk_tokens=6)
    engine = build(toy)
    sampling = SamplingParams(max_tokens=14)
    specs = [request((1, 4, 2), 2, "first", sampling), request((5, 3), 2, "second", sampling)]
    kept_before, kept_after = [], []
    reset = Request.reset_cache

    def spy(self: Request) -> None:
        kept_before.append(self.backlog.num_rows)
        reset(self)
        kept_after.append(self.backlog.num_rows)
        assert not self.can_draft

    with mock.patch.object(Request, "reset_cache", spy):
        answers, _ = run(engine, specs, toy, decisions=[False, False, False, True])
    assert any(kept_before) and not any(kept_after)
    for spec in specs:
        plain, _ = run(build(Toy(TABLE, TABLE)), [request(spec.prompt_ids, 0, sampling=sampling)], toy)
        assert answers[spec.request_id].token_ids == plain["r"].token_ids


def test_a_finished_request_keeps_nothing() -> None:
    engine = Engine(tiny_parts())
    engine.add(request(PROMPT, 3, sampling=SamplingParams(max_tokens=5, ignore_eos=True)))
    (current,) = [*engine._requests.values()]
    while engine.has_work:
        engine.step(False)
    assert current.finished and current.backlog.num_rows == 0 and not current.can_draft


def test_records_say_what_was_decided() -> None:
    engine = Engine(tiny_parts())
    engine.add(request(PROMPT, 3, "a", SamplingParams(max_tokens=4, ignore_eos=True)))
    engine.add(request(PROMPT, 0, "b", SamplingParams(max_tokens=9, ignore_eos=True)))
    said = [
        engine.step(*how).record.speculation for how in [(), (False, "why not"), (True, "trial"), (True,), (True,)]
    ]
    assert said[:3] == [None, "plain: why not", "drafted: trial"]
    # The last token of an answer is not drafted, and what never drafts has no say.
    assert said[3:] in (["plain: nothing to draft", None], [None, None])
    assert engine.step().record.speculation is None


def test_a_backlog_is_taken_in_order() -> None:
    rows = torch.arange(12.0).view(6, 2)
    backlog = Backlog()
    generator = random.Random(1)
    added = taken = 0
    seen = []
    while taken < 6:
        if added < 6 and generator.random() < 0.6:
            count = generator.randint(1, 6 - added)
            backlog.add(rows[added : added + count])
            added += count
        elif backlog.num_rows:
            count = generator.randint(1, backlog.num_rows)
            seen.append(backlog.take(count))
            taken += count
        assert backlog.num_rows == added - taken
    assert torch.equal(torch.cat(seen), rows)
