"""The engine whose cycles stay on the device, on a CPU over torch's kernels: the host engine's tokens, whoever comes,
leaves or is preempted while cycles are under way, and records that say what was done."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import device_engines
import msgspec
import pytest
import torch
from device_engines import Told, device_parts, host_engine, run
from hypothesis import example, given, settings
from hypothesis import strategies as st

import engine_spy
import tiny_models
from alula.core.config import EngineConfig, GraphConfig
from alula.core.records import PHASES, CycleRecord, read_records
from alula.core.sampling import SamplingParams
from alula.engine import device_engine, device_phases, device_state
from alula.engine.device_engine import DeviceEngine
from alula.engine.device_phases import FEATURES_READ, Variant
from alula.engine.device_scheduler import DeviceScheduler
from alula.engine.llm import LLM
from alula.engine.request import Request, RequestSpec
from alula.engine.setup import Parts
from alula.kernels.reference import device_sampling
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels
from alula.layers.slot_table import SlotTable
from engine_spy import GREEDY, SAMPLINGS

LONG = SamplingParams(max_tokens=60, ignore_eos=True)
PROMPT = tiny_models.random_ids(9, seed=5)


def request(prompt: list[int], steps: int = 3, name: str = "r", sampling: SamplingParams = GREEDY) -> RequestSpec:
    return RequestSpec(request_id=name, prompt_ids=tuple(prompt), sampling=sampling, steps=steps)


def engine_of(
    head: str | None = "bigram", graphs: GraphConfig | None = None, family: str = "plain", **limits: int
) -> DeviceEngine:
    return DeviceEngine(device_parts(engine_spy.with_limits(device_engines.load(family, head), **limits), graphs))


def exact_parts() -> Parts:
    """With the promise that is held here, though nobody probed these products."""
    parts = device_parts(device_engines.load("plain", "bigram"))
    return replace(parts, exactness=msgspec.structs.replace(parts.exactness, off=None))


@functools.cache
def alone(
    prompt: tuple[int, ...], sampling: SamplingParams, num_pages: int | None = None, family: str = "plain"
) -> Told:
    """The host engine's plain answer."""
    engine = host_engine(family, "bigram", num_pages=num_pages)
    return run(engine, [request(list(prompt), 0, sampling=sampling)])[0]["r"]


@contextmanager
def features_kept(count: int) -> Iterator[None]:
    """Room for the features of so many positions; they are read when 8 are left."""
    with ExitStack() as stack:
        for module in (device_engine, device_phases, device_state):
            stack.enter_context(mock.patch.object(module, "KEPT_POSITIONS", count))
        yield


def check_accounts(engine: DeviceEngine, told: dict[str, Told]) -> None:
    """Nothing is held when all have ended, and each request's record adds up."""
    scheduler = engine._scheduler
    assert scheduler.pages.num_free == engine.parts.num_pages - 1
    assert sorted(scheduler._free) == list(range(1, engine.parts.config.max_batch + 1)) and not scheduler._seats
    assert not engine._flights and not engine.has_work and not engine._requests
    for one in told.values():
        assert one.last is not None and one.last.record is not None
        record, decoding = one.last.record, [c for c in one.cycles if not c.num_prefill and c.emitted]
        assert sum(c.emitted for c in one.cycles) == len(one.token_ids) == record.num_output_tokens
        assert (record.num_cycles, record.accepted) == (len(decoding), sum(c.accepted for c in decoding))
        assert record.num_truncated_cycles == sum(c.truncated for c in decoding)
        for cycle in decoding:
            assert cycle.accepted <= cycle.drafted < cycle.width
            assert cycle.emitted == cycle.accepted + 1 or cycle.truncated


# Tokens


@dataclass(frozen=True)
class Visitor:
    seed: int
    num_prompt: int
    kind: int
    steps: int
    max_tokens: int | None
    after: int  # steps behind the one before
    aborted_after: int | None


VISITORS = st.lists(
    st.builds(
        Visitor,
        seed=st.integers(0, 3),
        num_prompt=st.sampled_from([1, 2, 6, 20, 33]),
        kind=st.integers(0, len(SAMPLINGS) - 1),
        steps=st.sampled_from([0, 1, 3, 3, 8]),
        max_tokens=st.sampled_from([None, None, 1, 2, 20]),
        after=st.integers(0, 5),
        aborted_after=st.sampled_from([None, None, None, 0, 1, 2, 5]),
    ),
    min_size=1,
    max_size=6,
)


@given(
    visitors=VISITORS,
    decisions=st.lists(st.booleans(), min_size=1, max_size=12),
    chunk_tokens=st.sampled_from([3, 10, 512]),
    num_pages=st.sampled_from([16, 24, 200]),
    max_batch=st.sampled_from([2, 16]),
    batches=st.sampled_from([(1, 2, 4, 8, 16, 32), (1, 3)]),
    kept=st.sampled_from([16, 512]),
)
@settings(max_examples=35)
@example(  # short of pages: two are preempted
    visitors=[Visitor(i, 20, 0, 3, 20, 0, None) for i in range(3)],
    decisions=[True, False, False],
    chunk_tokens=10,
    num_pages=16,
    max_batch=16,
    batches=(1, 3),
    kept=16,
)
def test_the_host_engines_tokens_in_any_company(
    visitors: list[Visitor],
    decisions: list[bool],
    chunk_tokens: int,
    num_pages: int,
    max_batch: int,
    batches: tuple[int, ...],
    kept: int,
) -> None:
    """Requests join, leave, are aborted and preempted at random, cycles draft or do not, also beyond the largest batch
    that graphs are made for: each gets what the host engine gives it alone and without drafts."""
    specs, arrivals, aborts, now = [], [], {}, 0
    for index, visitor in enumerate(visitors):
        sampling = SAMPLINGS[visitor.kind]
        if visitor.max_tokens is not None:
            sampling = msgspec.structs.replace(sampling, max_tokens=visitor.max_tokens)
        prompt = tiny_models.random_ids(visitor.num_prompt, visitor.seed)
        specs.append(request(prompt, visitor.steps, f"r{index}", sampling))
        now += visitor.after
        arrivals.append(now)
        if visitor.aborted_after is not None:
            aborts[f"r{index}"] = visitor.aborted_after
    with features_kept(kept):
        engine = engine_of(
            graphs=GraphConfig(batches=batches), chunk_tokens=chunk_tokens, num_pages=num_pages, max_batch=max_batch
        )
        told, records = run(engine, specs, arrivals=arrivals, decisions=decisions, aborts=aborts)
    check_accounts(engine, told)
    for one in told.values():
        expected = alone(one.spec.prompt_ids, one.spec.sampling, num_pages)
        if one.end[0] == "abort":
            assert one.spec.request_id in aborts
            assert one.token_ids == expected.token_ids[: len(one.token_ids)]
        else:
            assert (one.token_ids, one.text, one.end) == (expected.token_ids, expected.text, expected.end)
    for record in records:
        assert sum(record.phases_ms.values()) == pytest.approx(record.wall_ms, abs=1e-6)
        assert all(outcome.replayed is False and outcome.reason for outcome in record.outcomes.values())


@pytest.mark.parametrize("family", ["group3_tied", "group4_llama3", "biases", "mistral"])
@pytest.mark.parametrize("head", ["bigram", "random"])
def test_families_and_heads(family: str, head: str) -> None:
    specs = [request(tiny_models.random_ids(5 + 13 * i, i), 3, f"r{i}", SAMPLINGS[i]) for i in range(3)]
    told, _ = run(engine_of(head, family=family), specs, decisions=[True, True, False])
    for one in told.values():
        assert one.token_ids == alone(one.spec.prompt_ids, one.spec.sampling, family=family).token_ids


@pytest.mark.parametrize("family", list(tiny_models.FAMILIES))
@pytest.mark.parametrize("num_prompt", [10, 70])
def test_logits_are_transformers(family: str, num_prompt: int) -> None:
    """Of a block of four rows behind a prompt, which is read with the kernels for few rows or for many."""
    engine = engine_of("bigram", family=family)
    prompt = tiny_models.random_ids(num_prompt, seed=1)
    run(engine, [request(prompt, 3, sampling=SamplingParams(max_tokens=1))])
    state, width = engine.cycle.state, 2
    assert int(state.seats.num_kv_S[1]) == num_prompt  # the seat is free, and still as it was left
    drafts = tiny_models.random_ids(1, seed=2)
    state.seats.drafts_SK[1, : width - 1] = torch.tensor(drafts)
    root = int(state.seats.root_S[1])
    state.seat_batch(2, (1,))
    logits_RV = engine.cycle.phases.verify(2, width, Variant(features=FEATURES_READ))()
    wanted_TV = tiny_models.reference_logits(family, [*prompt, root, *drafts])
    torch.testing.assert_close(logits_RV[:width], wanted_TV[-width:], rtol=0, atol=1e-4)


# How an answer ends


@pytest.mark.parametrize("num_prompt", [20, 36, 38, 39])
@pytest.mark.parametrize("steps", [0, 3, 8])
def test_the_context_ends_an_answer(num_prompt: int, steps: int) -> None:
    """Also where the cache holds not one position more than the context: drafts beyond it need no pages."""
    engine = engine_of(num_pages=11)
    told, _ = run(engine, [request(tiny_models.random_ids(num_prompt), steps, sampling=LONG)])
    check_accounts(engine, told)
    assert told["r"].end == ("length", 40 - num_prompt)
    assert (
        told["r"].token_ids == alone(tuple(tiny_models.random_ids(num_prompt)), LONG).token_ids[: 40 - num_prompt]
    )


@pytest.mark.parametrize("steps", [0, 3, 8])
def test_stops_inside_an_accepted_block(steps: int) -> None:
    """Stop tokens, the end of the text, stop strings: at every place, with the cycle behind under way already."""
    free = alone(tuple(PROMPT), GREEDY)
    base = device_parts(device_engines.load("plain", "bigram"))
    for at in range(1, 11, 3):
        stop = free.token_ids[at]
        first = free.token_ids.index(stop)
        asked = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(stop,))
        told, _ = run(DeviceEngine(base), [request(PROMPT, steps, sampling=asked)])
        assert (told["r"].token_ids, told["r"].end) == (free.token_ids[: first + 1], ("stop", first + 1))
        tokenizer = type(base.tokenizer)(base.tokenizer._inner, frozenset({stop}))
        engine = DeviceEngine(replace(base, tokenizer=tokenizer))
        told, _ = run(engine, [request(PROMPT, steps, sampling=SamplingParams(max_tokens=12))])
        assert (told["r"].token_ids, told["r"].end) == (free.token_ids[: first + 1], ("stop", first + 1))
        check_accounts(engine, told)
    for start in range(0, len(free.text) - 3, 4):
        asked = SamplingParams(max_tokens=12, ignore_eos=True, stop=(free.text[start : start + 3], "never seen"))
        told, _ = run(DeviceEngine(base), [request(PROMPT, steps, sampling=asked)])
        expected = alone(tuple(PROMPT), asked)
        assert (told["r"].text, told["r"].end) == (expected.text, expected.end)


def test_an_engine_with_other_steps_than_its_requests_preempts_in_time() -> None:
    """Pages are counted by each request's own drafts; nobody is preempted while a cycle of theirs is under way."""
    specs = [request(tiny_models.random_ids(9, i), 8, f"r{i}", LONG) for i in range(3)]
    engine = engine_of(num_pages=30)
    told, _ = run(engine, specs)
    check_accounts(engine, told)
    assert sum(one.last.record.num_preemptions for one in told.values() if one.last and one.last.record)
    for one in told.values():
        assert one.token_ids == alone(one.spec.prompt_ids, LONG).token_ids


def test_an_id_is_used_again_while_cycles_of_its_first_request_are_under_way() -> None:
    engine = engine_of()
    engine.add(request(PROMPT, 3, sampling=LONG))
    for _ in range(3):
        engine.step()
    assert engine._flights
    engine.abort("r")
    other = tiny_models.random_ids(6, seed=9)
    engine.add(request(other))
    found, reasons = [], []
    while engine.has_work:
        for update in engine.step().updates:
            found += update.token_ids
            reasons += [update.finish_reason] if update.finish_reason else []
        assert "r" in engine._requests or "length" in reasons
    assert reasons == ["abort", "length"]
    assert found == alone(tuple(other), GREEDY).token_ids


def test_nothing_is_left_under_way_when_all_have_ended() -> None:
    """Else the first cycle of the next answer would be timed from the end of the last one's."""
    engine = engine_of()
    stop = alone(tuple(PROMPT), LONG).token_ids[5]
    for _ in range(2):
        engine.add(request(PROMPT, 0, sampling=msgspec.structs.replace(LONG, stop_token_ids=(stop,))))
        ended, num_overlapping = False, 0
        while not ended:
            updates = engine.step().updates
            ended = any(update.finish_reason for update in updates)
            num_overlapping += bool(engine._flights)
        assert num_overlapping and not engine._flights and not engine.has_work


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_an_abort_is_told_though_no_cycle_follows(num_steps: int) -> None:
    engine = engine_of()
    engine.add(request(PROMPT, 3, sampling=LONG))
    for _ in range(num_steps):
        engine.step()
    engine.abort("r")
    outputs = [engine.step()]
    while engine.has_work:
        outputs.append(engine.step())
    assert [update.finish_reason for output in outputs for update in output.updates] == ["abort"]
    assert not any(output.record.requests for output in outputs)
    assert engine.step().record.num_rows == 0


# Seats


def _request(name: str, arrival: int, num_prompt: int = 6) -> Request:
    spec = request(list(range(4, 4 + num_prompt)), 3, name)
    return Request(spec, SlotTable(4), None, None, None, arrival)  # type: ignore[arg-type]


def test_who_is_preempted_gives_his_seat_back_at_once() -> None:
    """Though no cycle follows: at his next turn nothing may be known of the pages he had."""
    scheduler = DeviceScheduler(EngineConfig(max_batch=2, page_tokens=4), num_pages=5, context_tokens=16)
    first, second = _request("first", 1), _request("second", 2)
    for one in (first, second):
        scheduler.add(one)
    assert len(scheduler.schedule()) == 2
    assert {scheduler.seat(one).index for one in scheduler.seat_new()} == {1, 2}
    before = scheduler.seat(second)
    scheduler.start_over(second)
    assert not scheduler.has_seat(second) and scheduler.pages.num_free == 2
    scheduler.schedule()
    assert [one.spec.request_id for one in scheduler.seat_new()] == ["second"]
    after = scheduler.seat(second)
    assert after is not before and (after.num_pages, after.prefilled) == (0, False)


def test_pages_are_held_for_no_position_behind_an_answers_end() -> None:
    scheduler = DeviceScheduler(EngineConfig(max_batch=2, page_tokens=4), num_pages=20, context_tokens=40)
    one = _request("one", 1)  # 6 tokens, 12 to come
    scheduler.add(one)
    scheduler.schedule()
    list(scheduler.seat_new())
    seat = scheduler.seat(one)
    seat.prefilled, one.num_kv, seat.under_way = True, 6, 4
    scheduler.schedule()
    assert len(one.table.pages) == 4  # 6 + 4 under way + 4 rows
    one.num_kv = 15
    scheduler.schedule()
    assert len(one.table.pages) == 5  # 18, not 15 + 8


# Features that are kept while decoding plainly


@pytest.mark.parametrize("kept", [16, 512])
@given(decisions=st.lists(st.booleans(), min_size=1, max_size=30).filter(any), steps=st.sampled_from([1, 3, 8]))
@settings(max_examples=8)
def test_drafts_after_a_detour_are_those_without(kept: int, decisions: list[bool], steps: int) -> None:
    """Wherever both ways begin a cycle at the same position, they accept the same number of drafts."""
    with features_kept(kept):
        always, _ = run(engine_of(), [request(PROMPT, steps, sampling=LONG)])
        detour, _ = run(engine_of(), [request(PROMPT, steps, sampling=LONG)], decisions=decisions)
    assert detour["r"].token_ids == always["r"].token_ids == alone(tuple(PROMPT), LONG).token_ids
    one, other = always["r"].accepted_by_start, detour["r"].accepted_by_start
    both = one.keys() & other.keys()
    assert {start: one[start] for start in both} == {start: other[start] for start in both}


@pytest.mark.parametrize("kept", [16, 512])
def test_drafts_after_a_long_pause(kept: int) -> None:
    with features_kept(kept):
        always, _ = run(engine_of(), [request(PROMPT, 3, sampling=LONG)])
        plan = [True] * 4 + [False] * 25 + [True] * 100
        detour, records = run(engine_of(), [request(PROMPT, 3, sampling=LONG)], decisions=plan)
    one, other = always["r"].accepted_by_start, detour["r"].accepted_by_start
    both = [start for start in one.keys() & other.keys() if start > 40]
    assert len(both) > 3 and sum(one[start] for start in both) > 0
    assert [one[start] for start in both] == [other[start] for start in both]
    # Each kept row is read once, and said to be; none where the draft was not behind.
    plain = sum(not part.drafted and not part.num_prefill for record in records for part in record.requests)
    assert sum(record.num_caught_up for record in records) == plain
    for record in records:
        assert ("catch_up" in record.outcomes) == (record.num_caught_up > 0) == (
            record.phases_ms["extend"] > 0
        ) or (record.drafted or any(part.num_prefill for part in record.requests))


@pytest.mark.parametrize("head", [None, "bigram"])
def test_who_never_drafts_keeps_no_features(head: str | None) -> None:
    """However long the answer, and though the host draws, so that no cycle follows another under way."""
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
    with features_kept(16):
        told, records = run(engine_of(head), [request(PROMPT, 0, sampling=sampling)])
    assert told["r"].token_ids == alone(tuple(PROMPT), sampling).token_ids
    assert not any(record.num_caught_up for record in records)


# Numbers that are none


POISON = 300  # no answer here holds it


def _poisoned(parts: Parts, draws: object = device_sampling) -> Iterator[DeviceEngine]:
    """An engine in whose embedding one token is NaN."""
    weight_VH = parts.target.embedding.weight_VH
    sound_H = weight_VH[POISON].clone()
    weight_VH[POISON] = float("nan")
    assert parts.block is not None
    try:
        yield DeviceEngine(replace(parts, block=replace(parts.block, draws=draws)))
    finally:
        weight_VH[POISON] = sound_H


@pytest.mark.parametrize("chunk_tokens", [4, 512])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_prompt_of_nan_fails_alone(chunk_tokens: int, steps: int) -> None:
    sound = [token for token in tiny_models.random_ids(40) if token != POISON]
    limited = engine_spy.with_limits(
        device_engines.load("plain", "bigram"), chunk_tokens=chunk_tokens, num_pages=40
    )
    for engine in _poisoned(device_parts(limited)):
        for where in (0, 7, 14):
            prompts = [sound[:8], [*sound[:where], POISON, *sound[where:14]], sound[11:30]]
            specs = [request(prompt, steps, f"r{i}", SAMPLINGS[i]) for i, prompt in enumerate(prompts)]
            told, _ = run(engine, specs, arrivals=[0, 1, 2])
            check_accounts(engine, told)
            assert [told[f"r{i}"].end[0] for i in range(3)] == ["length", "error", "length"]
            assert told["r1"].last is not None and told["r1"].last.record is not None
            assert "NaN or infinity" in (told["r1"].last.record.error or "") and not told["r1"].token_ids
            for i in (0, 2):
                assert told[f"r{i}"].token_ids == alone(tuple(prompts[i]), SAMPLINGS[i]).token_ids


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLINGS[4]], ids=["device", "host"])
def test_a_draft_that_breaks_the_rows_before_it_changes_no_token(sampling: SamplingParams) -> None:
    """Its key and value are NaN, which reaches earlier rows through the mask; plain decoding would go on."""
    draws = SimpleNamespace(
        draw_tokens=device_sampling.draw_tokens,
        draw_draft_tokens=lambda logits, *_, **__: torch.full((logits.shape[0],), POISON),
    )
    expected = alone(tuple(PROMPT), sampling)
    assert POISON not in expected.token_ids
    for engine in _poisoned(exact_parts(), draws):
        specs = [request(PROMPT, 3, "drafts", sampling), request(PROMPT, 0, "plain", sampling)]
        told, records = run(engine, specs)
        check_accounts(engine, told)
    for one in told.values():
        assert (one.token_ids, one.end) == (expected.token_ids, expected.end)
    last = told["drafts"].last
    assert last is not None and last.record is not None and last.record.num_preemptions
    assert {record.exactness for record in records} == {None, "kv_written_again_after_preemption"}


# What is told


def test_records_say_what_was_decided() -> None:
    engine = engine_of()
    engine.add(request(PROMPT, 3, "a", LONG))
    said = [engine.step(*how).record for how in [(), (False, "why not"), (False, "why not"), (True, "trial")]]
    # A cycle is told one step after it was decided.
    assert [record.speculation for record in said] == [None, "drafted", "plain: why not", "plain: why not"]
    said += [engine.step(True, "trial").record, engine.step().record]
    assert [record.speculation for record in said[4:]] == ["drafted: trial", "drafted: trial"]
    assert [record.num_caught_up for record in said] == [0, 0, 0, 0, 2, 0]
    assert [record.index for record in said] == list(range(6))
    for record in said:
        assert tuple(record.phases_ms) == PHASES and all(value >= 0 for value in record.phases_ms.values())
    assert set(said[1].outcomes) == {"draft", "verify", "extend"} and set(said[2].outcomes) == {"verify"}
    assert set(said[4].outcomes) == {"draft", "verify", "extend", "catch_up"}
    for phase in ("draft", "verify", "extend"):
        assert said[1].outcomes[phase].reason == "device_has_no_graphs"


def test_a_chunk_tells_how_far_it_came_though_the_next_is_under_way() -> None:
    told, _ = run(engine_of(chunk_tokens=4), [request(PROMPT)])
    assert [part.kv_tokens for part in told["r"].cycles if part.num_prefill] == [4, 8, 9]


def test_forced_acceptance_says_that_nothing_is_exact() -> None:
    parts = exact_parts()
    speculation = msgspec.structs.replace(parts.config.speculation, forced_tokens_per_cycle=2.5)
    engine = DeviceEngine(replace(parts, config=msgspec.structs.replace(parts.config, speculation=speculation)))
    told, records = run(engine, [request(PROMPT, 3, sampling=SamplingParams(max_tokens=400, ignore_eos=True))])
    assert {record.exactness for record in records} == {"acceptance_forced"}
    assert told["r"].last is not None and told["r"].last.record is not None
    record = told["r"].last.record
    assert (record.accepted + record.num_cycles) / record.num_cycles == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize("batches", [(1, 2), (4,), (16,)])
def test_batches_of_any_size(batches: tuple[int, ...]) -> None:
    """Padded to a graph's, or larger than the largest."""
    specs = [request(tiny_models.random_ids(4 + i, i), [3, 0, 8][i % 3], f"r{i}") for i in range(5)]
    told, _ = run(engine_of(graphs=GraphConfig(batches=batches)), specs)
    for one in told.values():
        assert one.token_ids == alone(one.spec.prompt_ids, GREEDY).token_ids


def test_an_llm_over_it(tmp_path: Path) -> None:
    """`auto` decides from its records; a stream that is left goes on nowhere."""
    config = EngineConfig(dtype="float32", device="cpu", threads=1, context_tokens=256, max_batch=4)
    head = str(tiny_models.head("plain", "random"))
    with (
        mock.patch("alula.engine.setup.choose_kernels", lambda device, dtype: reference_kernels()),
        mock.patch("alula.engine.setup.choose_block_kernels", lambda *_: (reference_block_kernels(), None)),
    ):
        llm = LLM(
            str(tiny_models.checkpoint("plain")), draft=head, config=config, record=tmp_path / "records.jsonl"
        )
    with llm:
        plain = llm.generate([PROMPT], LONG, steps=0)[0]
        stream = llm.stream(PROMPT, LONG)
        first = [next(stream) for _ in range(3)]
        stream.close()
        assert [token for chunk in first for token in chunk.token_ids] == list(plain.token_ids[: len(first)])
        for _ in range(2):
            answers = llm.generate([PROMPT] * 3, LONG)
            assert [answer.token_ids for answer in answers] == [plain.token_ids] * 3
    cycles = [record for record in read_records(tmp_path / "records.jsonl") if isinstance(record, CycleRecord)]
    said = {(record.speculation or "none").split(":")[0] for record in cycles}
    assert said == {"none", "drafted", "plain"}
    assert [record.index for record in cycles] == list(range(len(cycles)))
