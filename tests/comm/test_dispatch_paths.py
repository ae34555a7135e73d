"""Paths of decode and verify, their differences, and the rank that others wait for: pure functions over records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.dispatch_paths import Collectives, late_ranks, path_differences, paths_of
from alula.core.records import DispatchRecord, RankWaitRecord, Refusal

FIELDS = {"op": "all_reduce", "dtype": "bfloat16", "num_ranks": 2, "phase": "verify"}


def record(work: str, num_bytes: int, backend: str, **changes: object) -> DispatchRecord:
    fields = {**FIELDS, "work": work, "num_bytes": num_bytes, "backend": backend, "num_calls": 1, **changes}
    return DispatchRecord(**fields)  # type: ignore[arg-type]


def refusing(backend: str, reason: str) -> tuple[Refusal, ...]:
    return (Refusal(backend=backend, reason=reason),)


def test_a_difference_has_sizes_and_both_reasons() -> None:
    (found,) = path_differences(
        [
            record("decode", 14336, "one_shot", refused=refusing("nccl", "30.0 us, one_shot 9.0 us")),
            record("verify", 57344, "nccl", refused=refusing("one_shot", "57344 bytes exceed 16384")),
            record("verify", 28672, "nccl", refused=refusing("one_shot", "28672 bytes exceed 16384")),
            record("prefill", 1 << 20, "nccl"),
            record("verify", 14336, "other", phase="draft"),
        ]
    )
    assert (found.decode_backend, found.decode_bytes) == ("one_shot", (14336,))
    assert (found.verify_backend, found.verify_bytes) == ("nccl", (28672, 57344))
    assert found.decode_because == "30.0 us, one_shot 9.0 us"
    assert found.verify_because == ("28672 bytes: 28672 bytes exceed 16384; 57344 bytes: 57344 bytes exceed 16384")


def test_without_a_table_the_order_is_the_reason() -> None:
    (found,) = path_differences(
        [record("decode", 64, "a"), record("verify", 256, "b", refused=refusing("a", "256 bytes exceed 64"))]
    )
    assert found.decode_because == "a comes before b and takes it"


def test_larger_batches_beyond_the_crossover_are_no_difference_of_their_own() -> None:
    """Of batches 1 and 8: decode takes a and b, verify of width 4 takes b; the pair (b, b) is none."""
    found = path_differences(
        [
            record("decode", 64, "a"),
            record("decode", 512, "b"),
            record("verify", 256, "b"),
            record("verify", 16, "a"),
        ]
    )
    assert [(one.decode_backend, one.verify_backend) for one in found] == [("a", "b")]


def test_operations_and_dtypes_are_compared_with_their_own() -> None:
    assert not path_differences(
        [
            record("decode", 64, "a"),
            record("verify", 256, "b", op="all_gather"),
            record("verify", 9, "c", dtype="int64"),
        ]
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(("decode", "verify", "prefill", "")), st.integers(1, 9), st.sampled_from("ab"))
    )
)
def test_a_difference_is_of_two_backends_that_were_taken(calls: list[tuple[str, int, str]]) -> None:
    records = [record(work, size, backend) for work, size, backend in calls]
    for found in path_differences(records):
        assert found.decode_backend != found.verify_backend
        for size in found.decode_bytes:
            assert ("decode", size, found.decode_backend) in calls
        for size in found.verify_bytes:
            assert ("verify", size, found.verify_backend) in calls
    taken = {work: {backend for of, _, backend in calls if of == work} for work in ("decode", "verify")}
    if len(taken["decode"] | taken["verify"]) < 2:
        assert not path_differences(records)


def test_paths_count_replays_where_calls_were_captured() -> None:
    records = [
        record("verify", 64, "a", captured=True, num_calls=3, num_replays=100),
        record("verify", 64, "a", num_calls=2, measured_us=1.5),
        record("verify", 64, "a", num_calls=5, measured_us=1.5),
        record("decode", 16, "a"),
    ]
    assert [(path.captured, path.times) for path in paths_of(records, "verify")] == [(False, 7), (True, 100)]
    assert [(path.num_bytes, path.times) for path in paths_of(records, "decode")] == [(16, 1)]
    assert paths_of(records, "prefill") == ()


def wait(rank: int, share: float) -> RankWaitRecord:
    return RankWaitRecord(rank=rank, num_calls=10, waited_ms=share * 100, share=share)


@pytest.mark.parametrize(
    ("shares", "late"),
    [
        ((), ()),
        ((0.5,), ()),
        ((0.3, 0.05), (1,)),
        ((0.3, 0.2), ()),  # both wait: an uneven machine
        ((0.08, 0.01), ()),  # too short to matter
        ((0.01, 0.4, 0.5), (0,)),
        ((0.01, 0.02, 0.5), ()),  # two are early, one waits
    ],
)
def test_the_late_rank_waits_much_less_than_all_others(shares: tuple[float, ...], late: tuple[int, ...]) -> None:
    assert late_ranks([wait(rank, share) for rank, share in enumerate(shares)]) == late


def test_a_file_has_decisions_then_differences_then_waits() -> None:
    dispatched = (record("decode", 64, "a"), record("verify", 256, "b"))
    told = Collectives(dispatched=dispatched, waits=(wait(0, 0.1), wait(1, 0.2)))
    assert list(told.records()) == [*dispatched, *path_differences(dispatched), *told.waits]
