"""The choice of threads, with a clock that only the step moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from alula.engine import threads
from alula.engine.threads import choose_threads


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def costs(monkeypatch: pytest.MonkeyPatch, ms_by_threads: dict[int, float]) -> list[int]:
    """A step that takes as long as its number of threads says; the list gets the number of each call."""
    now, calls = [0.0], []

    def step() -> None:
        calls.append(torch.get_num_threads())
        now[0] += ms_by_threads[calls[-1]] / 1e3

    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    torch.set_num_threads(max(ms_by_threads))
    choice = choose_threads(step)
    assert choice.num_threads == torch.get_num_threads()
    assert choice.step_ms == {str(count): ms for count, ms in ms_by_threads.items() if len(ms_by_threads) > 1}
    return calls


def test_more_threads_are_kept_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(costs(monkeypatch, {2: 14.0, 1: 26.0})) == {1, 2}
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("with_two", [400.0, 26.0, 25.0])
def test_one_thread_is_taken_where_more_are_slower_or_hardly_faster(
    monkeypatch: pytest.MonkeyPatch, with_two: float
) -> None:
    costs(monkeypatch, {2: with_two, 1: 26.0})
    assert torch.get_num_threads() == 1


def test_a_single_thread_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert costs(monkeypatch, {1: 26.0}) == []
