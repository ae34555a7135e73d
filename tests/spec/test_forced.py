"""Forced acceptance: the right mean over the table and over any stretch of it, seeded, within what is possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.config import SpeculationConfig
from alula.core.errors import InvalidOption
from alula.spec.forced import TABLE_SIZE, forced_acceptance, forced_count, forced_place


@given(st.data())
def test_the_mean_is_what_was_asked_for(data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, 8))
    wanted = data.draw(st.floats(1.0, steps + 1.0))
    table = forced_acceptance(wanted, steps, seed=data.draw(st.integers(0, 2**63 - 1)))
    assert len(table) == TABLE_SIZE
    assert sum(table) / TABLE_SIZE == pytest.approx(wanted - 1, abs=0.5 / TABLE_SIZE + 1e-9)
    assert {count - int(wanted - 1) for count in table} <= {0, 1}
    assert all(0 <= count <= steps for count in table)


@given(st.integers(0, TABLE_SIZE), st.integers(8, 300), st.floats(1.0, 4.0))
def test_every_stretch_is_near_the_mean(start: int, length: int, wanted: float) -> None:
    table = forced_acceptance(wanted, 3, seed=5)
    stretch = [table[(start + i) % TABLE_SIZE] for i in range(length)]
    assert abs(sum(stretch) - length * (wanted - 1)) <= 8


def test_the_seed_decides_the_order() -> None:
    table = forced_acceptance(2.8, 3, seed=1)
    assert table == forced_acceptance(2.8, 3, seed=1) != forced_acceptance(2.8, 3, seed=2)
    assert len({table[i : i + 16] for i in range(0, TABLE_SIZE, 16)}) > 10  # no fixed pattern


def test_whole_numbers_are_constant() -> None:
    assert set(forced_acceptance(1, 3, 0)) == {0} and set(forced_acceptance(4.0, 3, 0)) == {3}


@pytest.mark.parametrize("wanted", [0.99, 4.01, float("nan"), float("inf"), -1.0])
def test_the_impossible_is_refused(wanted: float) -> None:
    for ask in (
        lambda: forced_acceptance(wanted, 3, 0),
        lambda: SpeculationConfig(steps=3, forced_tokens_per_cycle=wanted),
    ):
        with pytest.raises(InvalidOption, match=r"--tokens-per-cycle .* expected 1 to 4"):
            ask()


def test_no_more_than_there_are_drafts() -> None:
    table = forced_acceptance(4.0, 3, 0)
    assert [forced_count(table, 0, 0, num_drafts) for num_drafts in range(5)] == [0, 1, 2, 3, 3]


def test_requests_begin_apart() -> None:
    assert len({forced_place(arrival, 0) for arrival in range(TABLE_SIZE)}) == TABLE_SIZE
    assert forced_place(3, 7) == forced_place(3, 6) + 1
