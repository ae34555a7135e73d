"""The policy against simulated engines: what it costs to learn, what it finds out, and how it follows changes.

A simulated engine costs what its parameters say, in plain steps; nothing here is timed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.records import DRAFTED, PLAIN, CycleRecord, RequestCycle
from alula.engine.speculation_policy import (
    FIRST_JUDGEMENT,
    MEASURE_STEPS,
    RETRY_AFTER,
    TRIAL_CYCLES,
    Decision,
    FixedPolicy,
    Policy,
    SpeculationPolicy,
    TokensPerCycle,
    make_policy,
)
from alula.engine.step_costs import StepCost, StepCosts, place

STEPS = 3
PLAIN_MS = 10.0
# Chance that a draft is right, given those before it: about 2.3 and 2.8 tokens per cycle at three drafts.
GOOD, BETTER, HOPELESS = 0.62, 0.76, 0.0


@dataclass(kw_only=True)
class Machine:
    """What cycles cost, in milliseconds: a plain step, a drafted cycle over it, catching up a row; and how much times
    vary. `accept` is the chance of each draft. hiccup: chance of a cycle that takes three times as long."""

    plain_ms: float = PLAIN_MS
    ratio: float = 1.25
    accept: float = GOOD
    noise: float = 0.03
    hiccup: float = 0.0
    catch_up_ms: float = 0.02
    batch: int = 1


@dataclass
class Run:
    """Serves answers with a policy, and adds up what that took. The machine may be changed in between."""

    machine: Machine
    policy: Policy
    seed: int = 0
    total_ms: float = 0.0
    num_tokens: int = 0
    records: list[CycleRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._behind = 0

    def answer(self, num_tokens: int, num_prompt: int = 40) -> None:
        """One answer for each request of the batch, after a cycle that reads the prompts."""
        lengths = [0] * self.machine.batch
        self._behind = 0
        self._tell(self._record([(0, 1)] * len(lengths), 5 * PLAIN_MS, None, 0, num_prefill=num_prompt))
        while lengths and min(lengths) < num_tokens:
            for i, emitted in enumerate(self.cycle(num_prompt + max(lengths))):
                lengths[i] += emitted

    def cycle(self, kv_tokens: int = 100) -> list[int]:
        """One decode cycle; tokens of each request."""
        machine, decision = self.machine, self.policy.decide()
        caught_up = 0
        if decision.speculate:
            wall_ms, caught_up, self._behind = machine.plain_ms * machine.ratio, self._behind, 0
            parts = [(STEPS, self._accepted()) for _ in range(machine.batch)]
            said = DRAFTED
        else:
            wall_ms, parts, said = machine.plain_ms, [(0, 0)] * machine.batch, f"{PLAIN}: {decision.reason}"
            self._behind += 1
        wall_ms += caught_up * machine.catch_up_ms
        wall_ms *= 1 + machine.noise * abs(self._random.gauss(0, 1))
        if self._random.random() < machine.hiccup:
            wall_ms *= 3
        self._tell(self._record(parts, wall_ms, said, caught_up, kv_tokens=kv_tokens))
        self.total_ms += wall_ms
        emitted = [accepted + 1 for _, accepted in parts]
        self.num_tokens += sum(emitted)
        return emitted

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.num_tokens / self.total_ms

    @property
    def decisions(self) -> list[bool]:
        """Of each decode cycle: whether it drafted."""
        decoding = [r for r in self.records if r.requests and not any(part.num_prefill for part in r.requests)]
        return [record.drafted for record in decoding]

    def _accepted(self) -> int:
        accepted = 0
        while accepted < STEPS and self._random.random() < self.machine.accept:
            accepted += 1
        return accepted

    def _tell(self, record: CycleRecord) -> None:
        self.records.append(record)
        self.policy.observe(record)

    def _record(
        self,
        parts: list[tuple[int, int]],
        wall_ms: float,
        said: str | None,
        caught_up: int,
        *,
        num_prefill: int = 0,
        kv_tokens: int = 40,
    ) -> CycleRecord:
        requests = tuple(
            RequestCycle(
                request_id=str(i),
                width=max(drafted + 1, num_prefill),
                num_prefill=num_prefill,
                drafted=drafted,
                accepted=0 if num_prefill else accepted,
                emitted=1 if num_prefill else accepted + 1,
                truncated=False,
                kv_tokens=kv_tokens,
            )
            for i, (drafted, accepted) in enumerate(parts)
        )
        return CycleRecord(
            index=len(self.records),
            wall_ms=wall_ms,
            phases_ms={},
            requests=requests,
            outcomes={},
            num_rows=sum(request.width for request in requests),
            speculation=said,
            num_caught_up=caught_up,
        )


def served(machine: Machine, policy: Policy, answers: int = 24, tokens: int = 256, seed: int = 0) -> Run:
    run = Run(replace(machine), policy, seed)
    for _ in range(answers):
        run.answer(tokens)
    return run


def always() -> Policy:
    return make_policy("always")


def plainly() -> Policy:
    return FixedPolicy(Decision(False, "never"))


# What learning costs


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.15])
@pytest.mark.parametrize("ratio", [1.1, 1.25, 1.5, 2.5])
@pytest.mark.parametrize("batch", [1, 16])
def test_a_random_head_costs_less_than_two_percent(ratio: float, noise: float, batch: int, seed: int) -> None:
    """All of it: the first cycles, the trials, and catching up for them."""
    machine = Machine(ratio=ratio, accept=HOPELESS, noise=noise, batch=batch)
    found = served(machine, SpeculationPolicy(), seed=seed).tokens_per_s
    assert found >= 0.98 * served(machine, plainly(), seed=seed).tokens_per_s


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.15])
@pytest.mark.parametrize("accept", [GOOD, BETTER])
@pytest.mark.parametrize("ratio", [1.15, 1.25, 1.5])
def test_a_good_head_loses_less_than_one_percent(ratio: float, accept: float, noise: float, seed: int) -> None:
    machine = Machine(ratio=ratio, accept=accept, noise=noise)
    run = served(machine, SpeculationPolicy(), seed=seed)
    # Against the cycles of this very run, so that luck with drafts plays no part.
    mean = sum(r.emitted for c in run.records if c.drafted for r in c.requests) / sum(run.decisions)
    kept_ms = run.num_tokens / mean * _mean_ms(run, drafted=True)
    assert kept_ms >= 0.99 * run.total_ms


def _mean_ms(run: Run, drafted: bool) -> float:
    own = [c.wall_ms for c in run.records if c.drafted == drafted and not c.requests[0].num_prefill]
    return sum(own) / len(own)


@pytest.mark.parametrize("seed", range(3))
def test_one_answer_alone_is_soon_decoded_plainly(seed: int) -> None:
    machine = Machine(accept=HOPELESS)
    run = served(machine, SpeculationPolicy(), answers=1, seed=seed)
    assert sum(run.decisions) < 30
    assert run.tokens_per_s >= 0.95 * served(machine, plainly(), answers=1, seed=seed).tokens_per_s


@pytest.mark.parametrize("accept", [HOPELESS, GOOD])
def test_hiccups_do_not_lead_it_astray(accept: float) -> None:
    """One cycle in twelve takes three times as long: medians do not mind."""
    machine = Machine(accept=accept, hiccup=1 / 12)
    run = served(machine, SpeculationPolicy(), answers=40)
    drafted = sum(run.decisions) / len(run.decisions)
    assert drafted < 0.05 if accept == HOPELESS else drafted > 0.9


def test_measured_costs_spare_the_first_measurement() -> None:
    costs = [StepCost(batch=1, plain_ms=10.0, cycle_ms=12.5), StepCost(batch=8, plain_ms=11.0, cycle_ms=30.0)]
    good = served(Machine(), SpeculationPolicy(costs), answers=1)
    assert all(good.decisions)
    random_head = served(Machine(accept=HOPELESS), SpeculationPolicy(costs), answers=1, tokens=60)
    first_plain = random_head.decisions.index(False)
    assert FIRST_JUDGEMENT <= first_plain <= 2 * FIRST_JUDGEMENT
    assert random_head.decisions[first_plain:] == [False] * (len(random_head.decisions) - first_plain)


# What it decides


def test_it_settles_on_the_faster_way() -> None:
    """Whichever that is, from clearly worse to clearly better."""
    for ratio in (1.15, 1.6, 2.0, 2.6, 3.2):
        for accept in (0.0, 0.3, 0.62, 0.76):
            machine = Machine(ratio=ratio, accept=accept)
            gain = sum(accept**i for i in range(STEPS + 1)) / ratio
            run = served(machine, SpeculationPolicy(), answers=30)
            best = max(served(machine, policy, answers=30).tokens_per_s for policy in (always(), plainly()))
            assert run.tokens_per_s >= 0.96 * best, f"ratio {ratio}, acceptance {accept}, gain {gain:.2f}"


def test_traffic_that_turns_good_is_noticed() -> None:
    run = served(Machine(accept=HOPELESS), SpeculationPolicy(), answers=6)
    assert not any(run.decisions[-50:])
    run.machine.accept = GOOD
    run.answer(1200)
    assert sum(run.decisions[-100:]) > 90


def test_traffic_that_turns_bad_is_noticed() -> None:
    run = served(Machine(accept=GOOD), SpeculationPolicy(), answers=6)
    assert all(run.decisions[-20:])
    run.machine.accept = HOPELESS
    before = len(run.decisions)
    run.answer(400)
    assert sum(run.decisions[before:]) < 200
    assert not any(run.decisions[-50:])


def test_a_batch_that_makes_drafting_dear_is_decoded_plainly_and_a_small_one_is_not() -> None:
    """Costs are known by batch: coming back to one that was drafted before takes no second lesson."""
    policy = SpeculationPolicy()
    run = Run(Machine(), policy)
    run.answer(400)
    run.machine.batch, run.machine.ratio = 16, 3.0
    run.answer(500)
    assert not any(run.decisions[-100:])
    run.machine.batch, run.machine.ratio = 1, 1.25
    run.answer(200)
    assert all(run.decisions[-40:])


def test_a_slower_machine_changes_nothing() -> None:
    """Plain steps and cycles slow down together; the stale one of the two is measured again before anything is done."""
    run = served(Machine(), SpeculationPolicy(), answers=4)
    run.machine.plain_ms *= 3
    before = len(run.decisions)
    run.answer(600)
    assert sum(run.decisions[before:]) / len(run.decisions[before:]) > 0.95


def test_trials_grow_rarer_and_stay_short() -> None:
    run = served(Machine(accept=HOPELESS, noise=0.0), SpeculationPolicy(), answers=20)
    starts = [i for i, (a, b) in enumerate(itertools.pairwise(run.decisions)) if b and not a]
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert starts[1] >= RETRY_AFTER and gaps[1:] == sorted(gaps[1:]) and gaps[-1] >= 4 * RETRY_AFTER
    drafted_after = sum(run.decisions[starts[1] :])
    assert drafted_after <= 3 * TRIAL_CYCLES * len(starts)


def test_what_it_says() -> None:
    policy = SpeculationPolicy()
    assert policy.decide() == Decision(True)
    run = Run(Machine(accept=HOPELESS, noise=0.0), policy)
    run.answer(200)
    said = list(dict.fromkeys(r.speculation for r in run.records))
    assert said == [
        None,
        "drafted",
        "plain: measuring a plain step",
        "plain: unprofitable (1.00 tokens per cycle, break-even 1.25)",
    ]
    assert sum(r.speculation == "plain: measuring a plain step" for r in run.records) == MEASURE_STEPS
    assert make_policy("never").decide() == Decision(False, "never")
    assert make_policy("always").decide() == Decision(True)


def test_cycles_that_read_prompts_and_requests_that_never_draft_teach_nothing_of_drafting() -> None:
    """Plain requests tell what a plain step costs, so that nobody else has to find out."""
    policy = SpeculationPolicy()
    run = Run(Machine(noise=0.0), policy)
    for _ in range(300):
        run._tell(run._record([(0, 1)], 500.0, None, 0, num_prefill=30))
        run._tell(run._record([(STEPS, 0)], 500.0, "drafted", 0, num_prefill=30))
        run._tell(run._record([], 5.0, None, 0))
    for _ in range(40):
        run._tell(run._record([(0, 0)], PLAIN_MS, None, 0))
    assert policy.decide() == Decision(True)
    before = len(run.decisions)
    for _ in range(100):
        run.cycle()
    assert all(run.decisions[before:])


# For any records


@st.composite
def _any_record(draw: st.DrawFn) -> CycleRecord:
    parts = []
    for i in range(draw(st.integers(0, 4))):
        prefill = draw(st.sampled_from([0, 0, 0, 5]))
        drafted = 0 if prefill else draw(st.integers(0, 3))
        accepted = draw(st.integers(0, drafted))
        emitted = draw(st.integers(0, accepted + 1))
        parts.append(
            RequestCycle(
                request_id=str(i),
                width=drafted + 1,
                num_prefill=prefill,
                drafted=drafted,
                accepted=accepted,
                emitted=emitted,
                truncated=emitted <= accepted,
                kv_tokens=draw(st.sampled_from([0, 3, 1500, 100_000])),
            )
        )
    return CycleRecord(
        index=0,
        wall_ms=draw(st.sampled_from([0.0, 1.0, 7.0, 1e4])),
        phases_ms={},
        requests=tuple(parts),
        outcomes={},
        num_rows=len(parts),
        speculation=draw(st.sampled_from([None, "drafted", "plain: x"])),
        num_caught_up=draw(st.sampled_from([0, 0, 4])),
    )


@given(st.lists(_any_record(), max_size=300))
def test_equal_records_give_equal_decisions(records: list[CycleRecord]) -> None:
    """Whatever they say, in whatever order (an engine may tell late): no error, and no memory but the records."""
    one, other = SpeculationPolicy(), SpeculationPolicy()
    for record in records:
        one.observe(record)
        other.observe(record)
        assert one.decide() == other.decide() == one.decide()


@pytest.mark.parametrize("lag", [1, 2])
def test_records_may_come_late(lag: int) -> None:
    """An engine that works ahead tells of a cycle only after the next ones were decided."""

    class Late:
        def __init__(self) -> None:
            self.inner = SpeculationPolicy()
            self.waiting: list[CycleRecord] = []
            self.decide: Callable[[], Decision] = self.inner.decide

        def observe(self, record: CycleRecord) -> None:
            self.waiting.append(record)
            if len(self.waiting) > lag:
                self.inner.observe(self.waiting.pop(0))

    machine = Machine(accept=HOPELESS)
    assert served(machine, Late()).tokens_per_s >= 0.98 * served(machine, plainly()).tokens_per_s
    good = served(Machine(), Late())
    assert sum(good.decisions) / len(good.decisions) > 0.98


# The parts


def test_tokens_per_cycle_fade_and_are_doubted_at_first() -> None:
    tokens = TokensPerCycle()
    assert (tokens.mean, tokens.upper) == (1.0, 1.0)
    for _ in range(6):
        tokens.add(1.0)
    assert tokens.mean == pytest.approx(1.0) and tokens.upper == pytest.approx(1.25, abs=0.01)
    for _ in range(400):
        tokens.add(3.0)
    assert tokens.mean == tokens.upper == pytest.approx(3.0, abs=0.05)
    tokens.fade(2.0)
    assert (tokens.weight, tokens.mean) == (pytest.approx(2.0), pytest.approx(3.0, abs=0.05))


def _known(values: Iterator[float], drafted: bool, costs: StepCosts) -> None:
    for now, ms in enumerate(values):
        costs.add(place(1, 10), drafted, ms, now, steady=True)


def test_costs_are_medians_by_place() -> None:
    costs = StepCosts(
        [StepCost(batch=4, plain_ms=1.0, cycle_ms=1.5), StepCost(batch=8, plain_ms=1.0, cycle_ms=2.0)]
    )
    assert [costs.break_even(place(n, n)) for n in (1, 4, 5, 8, 64)] == [1.5, 1.5, 2.0, 2.0, 2.0]
    _known(iter([900.0, 10.0, 10.0, 70.0]), False, costs)  # the first is never counted
    assert costs.break_even(place(1, 10)) == 1.5, "one side alone is not compared with other times"
    _known(iter([900.0, 12.0, 12.0, 90.0]), True, costs)
    assert costs.break_even(place(1, 10)) == pytest.approx(1.2)
    assert costs.break_even(place(1, 5000)) == 1.5, "longer texts are another place"
    costs.renew(place(1, 10), True)
    assert costs.break_even(place(1, 10)) == pytest.approx(1.2), "until there is something new"
    costs.add(place(1, 10), True, 30.0, 9, steady=False)
    costs.add(place(1, 10), True, 20.0, 9, steady=True)
    assert costs.break_even(place(1, 10)) == pytest.approx(2.0)
