"""Arithmetic of experiments, and budgets, without an engine."""

from __future__ import annotations

import pytest
from fake_engine import BOUNDARIES, HEAD, TARGET, FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from alula.explain.hypotheses.registry import HYPOTHESES
from alula.lab.budget import Budget
from alula.lab.experiments.collectives import costs_by_cycle
from alula.lab.experiments.draft_alone import expected_ms
from alula.lab.experiments.other_layers import STRETCH, gains
from alula.lab.laboratory import Sizes
from alula.lab.listening import Heard
from alula.lab.registry import EXPERIMENTS
from alula.lab.second_engine import Served

SIZES = Sizes(target=TARGET, head=HEAD, boundaries=BOUNDARIES)
# What a hypothesis calls an experiment whose evidence comes out of another one.
PART_OF = {"served_against_isolated": "served_cycles", "ranks": "collectives"}


def test_every_experiment_that_a_hypothesis_names_exists() -> None:
    names = {one.name for one in EXPERIMENTS}
    assert len(names) == len(EXPERIMENTS)
    wanted = {
        need.removeprefix("experiment:")
        for hypothesis in HYPOTHESES
        for need in hypothesis.needs
        if need.startswith("experiment:")
    }
    later = {"rows_that_route_alike"}  # needs a mixture of experts to run
    assert {PART_OF.get(name, name) for name in wanted} - later <= names


@given(st.floats(2.0, 500.0), st.floats(0.1, 1.0), st.floats(0.0, 0.5))
def test_a_draft_costs_what_its_weights_cost_in_the_target(target: float, logits: float, frame: float) -> None:
    step, extend = expected_ms(SIZES, target, logits, frame)
    layer = (target - logits - frame) / TARGET.num_layers
    assert (
        frame + layer < step < frame + 1.5 * layer + logits
    )  # a layer over twice the input, a quarter of the head
    assert step < extend < step + layer  # and the fusion of three features


def test_gains_are_by_stretch() -> None:
    in_use = [[False] * 50, [True] * 10]
    better = [[True] * STRETCH + [False] * 26, [True] * 10]
    assert gains(better, in_use) == [1.0, 0.0]


def test_a_share_is_no_more_than_what_is_left() -> None:
    now = [0.0]
    budget = Budget(10.0, lambda: now[0])
    share = budget.share(0.4)
    now[0] = 3.0
    assert (share.left_s, budget.left_s) == (pytest.approx(1.0), pytest.approx(7.0))
    now[0] = 9.0
    assert budget.share(0.4).left_s == pytest.approx(1.0)
    now[0] = 11.0
    assert budget.left_s == share.left_s == budget.share(1.0).left_s == 0.0


def test_a_late_rank_is_waited_for_and_jitter_belongs_to_the_collectives() -> None:
    cycles = tuple(FakeEngine().cycle(0, 0) for _ in range(6))
    calls = [tuple(one for index in range(6) for one in two_calls(index, rank)) for rank in range(2)]
    ranks = [Served(rank=rank, cycles=cycles, heard=calls[rank]) for rank in range(2)]
    costs = list(costs_by_cycle(ranks))
    assert len(costs) == 3  # behind the warm-up
    for cost in costs:
        # Rank 0 spends 1 + 3 ms, rank 1 2 + 1: one of them comes late to each call, rank 1 more often.
        assert cost.transfer_ms == {"verify": 3.0} and cost.waited_ms == (1.0, 0.0)
        assert cost.calls == {"verify": [("all_reduce", 64), ("all_reduce", 64)]}


def two_calls(cycle: int, rank: int) -> list[Heard]:
    times = ((1.0, 3.0), (2.0, 1.0))[rank]
    return [Heard(cycle, "all_reduce", "verify", 64, ms) for ms in times]
