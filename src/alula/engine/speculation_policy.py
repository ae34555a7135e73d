"""Whether the next cycle drafts: what a drafted cycle costs here in plain steps, against the tokens that it brings.

Decides where the driver is, from cycle records alone: no clock, no randomness, so equal records give equal decisions.
What it decides changes what tokens cost, not the tokens. docs/speculation.md tells the story; the constants are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from alula.core.records import CycleRecord
from alula.engine.step_costs import WINDOW, Place, StepCost, StepCosts, place

# A drafted cycle holds a plain step and a pass of the head, so it cannot cost less than this many plain steps. Where a
# cycle brings fewer tokens, no measurement is needed to know that drafting loses.
LEAST_BREAK_EVEN = 1.05
# Drafting is taken up again only where it wins by this factor; it is left where it loses at all.
RESUME_GAIN = 1.05
# Tokens per cycle are a mean over about this many recent drafted cycles (half-life).
MEMORY_CYCLES = 64
# Drafted cycles before the first judgement, and from when on the mean is taken at its word.
FIRST_JUDGEMENT, CERTAIN = 6, 48
# Plain steps asked for to learn what one costs, the first of which is not timed (it follows another kind of cycle).
MEASURE_STEPS = 4
# Drafted cycles between two such measurements, doubled each time that one changes nothing.
MEASURE_EVERY, MEASURE_EVERY_AT_MOST = 256, 2048
# A plain step's cost as old as this (in cycles) is taken again before drafting is given up because of it.
FRESH_CYCLES = 32
# Drafted cycles of a trial: the fewest, and the most where it stays undecided.
TRIAL_CYCLES, TRIAL_CYCLES_AT_MOST = 4, 16
# What earlier drafted cycles weigh in a trial, in cycles.
TRIAL_MEMORY = 2.0
# Plain steps before the first trial, doubled with each that fails; and 200 for each plain step that a trial lost, so
# that trials cost half a percent whatever the machine.
RETRY_AFTER, RETRY_AFTER_AT_MOST, RETRY_PER_LOST_STEP, RETRY_LIMIT = 64, 512, 200, 8192
# Where costs have changed so that drafting would pay, a trial is due after this share of the wait.
EARLY_RETRY = 8
# Drafted cycles after which a trial's success is believed, and the wait for the next one starts small again.
SETTLED_CYCLES = 64


class Decision(msgspec.Struct, frozen=True):
    """For the next cycle. reason: for the record; empty where drafting is simply what is done."""

    speculate: bool
    reason: str = ""


class Policy(Protocol):
    """What the driver asks before each cycle, and tells after it."""

    def decide(self) -> Decision: ...

    def observe(self, record: CycleRecord) -> None: ...


class FixedPolicy:
    """The same for every cycle."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def decide(self) -> Decision:
        return self._decision

    def observe(self, record: CycleRecord) -> None:
        """Nothing that happens changes it."""


class _State(Enum):
    DRAFTING = "drafting"
    MEASURING = "measuring"  # a few plain steps, while drafting
    PLAIN = "plain"
    TRIAL = "trial"  # a few drafted cycles, while decoding plainly


class SpeculationPolicy:
    """Drafts while that is the faster way, and finds out what is: see the module."""

    def __init__(self, measured: Sequence[StepCost] = ()) -> None:
        self._costs = StepCosts(measured)
        self._tokens = TokensPerCycle()
        self._state = _State.DRAFTING
        self._in_state = 0  # cycles of the state's own kind that were seen in it
        self._measure_every = MEASURE_EVERY
        self._num_failed = 0
        self._retry_after = RETRY_AFTER
        self._now = 0
        self._at: Place | None = None
        self._last_kind: bool | None = None

    def decide(self) -> Decision:
        if self._state is _State.DRAFTING:
            return Decision(True)
        if self._state is _State.TRIAL:
            return Decision(True, "trial")
        if self._state is _State.MEASURING:
            return Decision(False, "measuring a plain step")
        needed = self._break_even()
        return Decision(False, f"unprofitable ({self._tokens.mean:.2f} tokens per cycle, break-even {needed:.2f})")

    def observe(self, record: CycleRecord) -> None:
        """Takes in a cycle. Those that read prompts, or nothing, say nothing of what decoding costs."""
        if not record.requests or any(part.num_prefill for part in record.requests):
            return
        self._now += 1
        drafted = record.drafted
        self._at = place(len(record.requests), sum(part.kv_tokens for part in record.requests))
        steady = drafted == self._last_kind and not record.num_caught_up
        self._costs.add(self._at, drafted, record.wall_ms, self._now, steady=steady)
        self._last_kind = drafted
        if drafted:
            self._tokens.add(sum(part.emitted for part in record.requests) / len(record.requests))
            self._saw_drafted(self._at)
        elif record.speculation is not None:
            self._saw_plain(self._at)

    def _saw_drafted(self, at: Place) -> None:
        if self._state is _State.DRAFTING:
            self._in_state += 1
            if self._in_state == SETTLED_CYCLES:
                self._num_failed = 0
            if self._loses():
                self._doubt(at)
            elif self._measurement_due(at):
                self._measure(at)
        elif self._state is _State.TRIAL:
            self._in_state += 1
            if self._in_state >= TRIAL_CYCLES:
                self._judge_trial()

    def _saw_plain(self, at: Place) -> None:
        if self._state is _State.MEASURING:
            self._in_state += 1
            if self._in_state >= MEASURE_STEPS:
                self._judge_measurement()
        elif self._state is _State.PLAIN:
            self._in_state += 1
            early = self._in_state >= self._retry_after // EARLY_RETRY and self._promising(at)
            if early or self._in_state >= self._retry_after:
                self._try(at)

    def _break_even(self) -> float:
        """The known one, or the least possible where nothing is known."""
        known = None if self._at is None else self._costs.break_even(self._at)
        return max(LEAST_BREAK_EVEN, known or 0.0)

    def _loses(self) -> bool:
        return self._tokens.weight >= FIRST_JUDGEMENT and self._tokens.upper < self._break_even()

    def _doubt(self, at: Place) -> None:
        """Drafting seems to lose: believe it, or look at plain steps again where their cost is old."""
        plain = self._costs.of(at, drafted=False)
        old = self._now - plain.last_taken > FRESH_CYCLES
        if old and self._tokens.upper >= LEAST_BREAK_EVEN:
            self._measure(at)
        else:
            self._stop()

    def _measurement_due(self, at: Place) -> bool:
        enough = len(self._costs.of(at, drafted=True)) >= WINDOW - 2  # else it is a place that is only passed by
        if not self._costs.plain_known(at):
            return enough
        return enough and self._now - self._costs.of(at, drafted=False).last_taken >= self._measure_every

    def _measure(self, at: Place) -> None:
        self._costs.renew(at, drafted=False)
        self._enter(_State.MEASURING)

    def _judge_measurement(self) -> None:
        if self._loses():
            self._stop()
            return
        self._measure_every = min(2 * self._measure_every, MEASURE_EVERY_AT_MOST)
        self._enter(_State.DRAFTING)

    def _stop(self) -> None:
        """Decodes plainly until the next trial."""
        lost = 0.0
        if self._state is _State.TRIAL:
            lost = self._in_state * max(0.0, self._break_even() - self._tokens.mean)
        doubled = min(RETRY_AFTER << min(self._num_failed, 16), RETRY_AFTER_AT_MOST)
        self._retry_after = min(max(doubled, math.ceil(RETRY_PER_LOST_STEP * lost)), RETRY_LIMIT)
        self._num_failed += 1
        self._measure_every = MEASURE_EVERY
        self._enter(_State.PLAIN)

    def _promising(self, at: Place) -> bool:
        """Whether drafting would pay by what is known, or might at a place where its cost is not."""
        known = self._costs.break_even(at)
        return self._tokens.mean > RESUME_GAIN * max(LEAST_BREAK_EVEN, known or 0.0)

    def _try(self, at: Place) -> None:
        self._costs.renew(at, drafted=True)
        self._tokens.fade(TRIAL_MEMORY)
        self._enter(_State.TRIAL)

    def _judge_trial(self) -> None:
        break_even = self._break_even()
        if self._tokens.mean > RESUME_GAIN * break_even:
            self._enter(_State.DRAFTING)
        elif self._tokens.upper < break_even or self._in_state >= TRIAL_CYCLES_AT_MOST:
            self._stop()

    def _enter(self, state: _State) -> None:
        self._state, self._in_state = state, 0


class TokensPerCycle:
    """Tokens that a drafted cycle brings each request: a mean in which the past fades, and how sure it is."""

    _FADE = 0.5 ** (1 / MEMORY_CYCLES)

    def __init__(self) -> None:
        self.weight = 0.0  # in cycles
        self._sum = 0.0
        self._sum_of_squares = 0.0

    def add(self, tokens: float) -> None:
        self.fade(self.weight * self._FADE)
        self.weight += 1.0
        self._sum += tokens
        self._sum_of_squares += tokens * tokens

    def fade(self, weight: float) -> None:
        """All that was seen counts as `weight` cycles from now on, or as fewer."""
        share = min(1.0, weight / self.weight) if self.weight else 1.0
        self.weight *= share
        self._sum *= share
        self._sum_of_squares *= share

    @property
    def mean(self) -> float:
        return self._sum / self.weight if self.weight else 1.0

    @property
    def upper(self) -> float:
        """What the mean may well be in truth: well above it after few cycles, the mean itself after enough of them.

        1.5 standard errors, and 1.5 in `weight` cycles for what was not seen yet (no draft accepted so far does not
        mean that none ever is).
        """
        if self.weight >= CERTAIN or not self.weight:
            return self.mean
        variance = max(0.0, self._sum_of_squares / self.weight - self.mean**2)
        return self.mean + 1.5 * (math.sqrt(variance / self.weight) + 1.0 / self.weight)


def make_policy(mode: str, measured: Sequence[StepCost] = ()) -> Policy:
    """For a mode of SpeculationConfig.speculate. measured: costs that the engine timed at its start, if it did."""
    if mode == "auto":
        return SpeculationPolicy(measured)
    return FixedPolicy(Decision(mode == "always", "" if mode == "always" else "never"))
