"""Medians with intervals from order statistics, and samples in bounded memory."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.profile.samples import MAX_KEPT, Samples, median_interval


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = median_interval(values)
    assert min(values) <= found.median <= max(values)
    if len(values) < 6:
        assert found.low is None and found.high is None
    else:
        assert found.low is not None and found.high is not None and found.low <= found.median <= found.high


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize("count", [6, 15, 40, 61, 200])
def test_the_interval_covers_the_true_median_often_enough(count: int) -> None:
    source = random.Random(count)
    inside = 0
    for _ in range(600):
        found = median_interval([source.expovariate(1.0) for _ in range(count)])
        assert found.low is not None and found.high is not None
        inside += found.low <= math.log(2) <= found.high
    assert inside / 600 > 0.92


def test_samples_stay_few_and_in_order() -> None:
    samples = Samples()
    for value in range(100_000):
        samples.add(float(value))
    samples.add(float("nan"))
    assert samples.num_seen == 100_000 and len(samples.kept) < MAX_KEPT
    assert list(samples.kept) == sorted(samples.kept)
    assert samples.interval().median == pytest.approx(50_000, rel=0.02)
    assert samples.interval().num_samples == 100_000
    early, late = samples.trend() or (0.0, 0.0)
    assert early < 20_000 and late > 80_000


def test_a_short_series_has_no_trend() -> None:
    samples = Samples()
    for value in range(8):
        samples.add(float(value))
    assert samples.trend() is None
