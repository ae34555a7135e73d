"""The decision: pure, by admission, then by the table, then by what keeps bits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.comm.backends.protocol import SUM_ONTO, YES, Narrowed, Verdict, no
from alula.comm.call import CollectiveCall
from alula.comm.rules import FASTEST, Rules, choose, choose_families, needs_order, order_refusal
from alula.comm.table import MeasuredTable, Timing, crossovers
from alula.core.errors import InvalidOption
from alula.core.records import Refusal

SIZES = (8192, 57344)


@dataclass
class Plain:
    name: str
    fixed_order: bool = False
    capturable: bool = True
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "broadcast")
    most_bytes: int = 1 << 40

    def admits(self, call: CollectiveCall) -> Verdict:
        return YES if call.num_bytes <= self.most_bytes else no("too large")


def make_call(num_bytes: int, num_ranks: int = 2, op: str = "all_reduce", captured: bool = True) -> CollectiveCall:
    return CollectiveCall(
        op=op,
        num_bytes=num_bytes,
        dtype="bfloat16",
        aligned=True,
        num_ranks=num_ranks,
        phase="verify",
        device="cuda",
        captured=captured,
    )


def table(**us: tuple[float, float]) -> MeasuredTable:
    return MeasuredTable(
        timings=tuple(
            Timing(op="all_reduce", num_bytes=size, backend=name, us=value)
            for name, values in us.items()
            for size, value in zip(SIZES, values, strict=True)
        )
    )


# One is faster for decode's message, the other for verify's.
CROSSING = table(small=(5.0, 30.0), large=(12.0, 14.0))
BACKENDS = (Plain("small"), Plain("large"))


def test_decode_and_verify_fall_on_two_sides_of_a_crossover() -> None:
    rules = Rules(table=CROSSING)
    decode, verify = (choose(make_call(size), BACKENDS, rules) for size in SIZES)
    assert [BACKENDS[d.index].name for d in (decode, verify)] == ["small", "large"]
    assert decode.refused == (Refusal(backend="large", reason="12.0 us, small 5.0 us"),)
    assert verify.refused == (Refusal(backend="small", reason="30.0 us, large 14.0 us"),)
    (crossing,) = crossovers(CROSSING)
    assert (crossing.below, crossing.above) == ("small", "large") and SIZES[0] < crossing.num_bytes < SIZES[1]


def test_from_three_ranks_on_one_backend_of_fixed_order_takes_every_width() -> None:
    backends = (Plain("small", fixed_order=True), Plain("large", fixed_order=True), Plain("loose"))
    times = table(small=(5.0, 30.0), large=(12.0, 14.0), loose=(1.0, 1.0))
    calls = [make_call(size, 3) for size in SIZES]
    bare = Rules(table=times)
    families = choose_families(calls, backends, bare)
    assert families == {"all_reduce": "large"}  # 26 us for both, the other 35
    rules = Rules(table=times, families=families)
    decisions = [choose(call, backends, rules) for call in calls]
    assert [backends[d.index].name for d in decisions] == ["large", "large"]
    assert {d.rule for d in decisions} == {"one backend of fixed rank order for every width"}
    reasons = {r.backend: r.reason for r in decisions[0].refused}
    assert "all widths of a graph family use one backend" in reasons["small"]
    assert "its order of adding may change with the size" in reasons["loose"]
    assert order_refusal(calls, backends, rules) is None
    fastest = Rules(mode=FASTEST, table=times)
    assert choose_families(calls, backends, fastest) == {}
    assert [backends[choose(call, backends, fastest).index].name for call in calls] == ["loose", "loose"]
    assert "no_fixed_order: loose" in str(order_refusal(calls, backends, fastest))


def test_where_nobody_keeps_the_order_the_record_says_so() -> None:
    calls = [make_call(size, 4) for size in SIZES]
    rules = Rules(table=CROSSING)
    assert choose_families(calls, BACKENDS, rules) == {}
    decision = choose(calls[0], BACKENDS, rules)
    assert decision.rule == "no backend of fixed rank order takes it: its bits may depend on the size"
    assert "change_with_the_size" in str(order_refusal(calls, BACKENDS, rules))


def test_the_fused_sum_is_one_choice_for_all_widths_at_two_ranks_too() -> None:
    backends = (Plain("fused", True, ops=(SUM_ONTO,)), Plain("apart", True, ops=(SUM_ONTO,)), Plain("nccl"))
    calls = [make_call(size, 2, SUM_ONTO) for size in SIZES]
    assert all(map(needs_order, calls)) and not needs_order(make_call(8192, 2))
    times = MeasuredTable(
        timings=tuple(
            Timing(op=SUM_ONTO, num_bytes=size, backend=name, us=us)
            for name, values in {"fused": (6.0, 9.0), "apart": (8.0, 8.5)}.items()
            for size, us in zip(SIZES, values, strict=True)
        )
    )
    families = choose_families(calls, backends, Rules(table=times))
    assert families == {SUM_ONTO: "fused"}
    rules = Rules(table=times, families=families)
    assert {backends[choose(call, backends, rules).index].name for call in calls} == {"fused"}
    assert {r.backend: r.reason for r in choose(calls[0], backends, rules).refused}["nccl"] == "has no sum_onto"


def test_what_waits_for_the_host_is_never_captured() -> None:
    backends = (Plain("waits", capturable=False), Plain("goes"))
    assert choose(make_call(64), backends).index == 1
    assert choose(make_call(64, captured=False), backends).index == 0
    assert "a graph cannot" in choose(make_call(64), backends).refused[0].reason


def test_a_backend_that_was_not_asked_for_takes_only_what_the_named_one_has_not() -> None:
    narrowed = Narrowed(Plain("nccl"), ("all_gather",), ("cpu",), "--collectives own")
    assert narrowed.admits(make_call(64, op="all_gather")).admitted
    assert narrowed.admits(make_call(64)).reason == "not asked for: --collectives own"
    limited = Narrowed(Plain("nccl", most_bytes=8), ("all_reduce",), (), "x")
    assert limited.admits(make_call(64)).reason == "too large"


names = st.sampled_from(["a", "b", "c"])
verdicts = st.lists(st.tuples(st.integers(0, 1 << 20), st.booleans(), st.booleans()), min_size=1, max_size=3)


@given(verdicts, st.integers(1, 1 << 20), st.integers(2, 8), st.booleans(), st.lists(names, max_size=2))
def test_decisions_are_pure_and_account_for_every_backend(
    kinds: list[tuple[int, bool, bool]], num_bytes: int, num_ranks: int, captured: bool, unusable: list[str]
) -> None:
    backends = tuple(
        Plain(name, fixed, capturable, most_bytes=most)
        for name, (most, fixed, capturable) in zip("abc", kinds, strict=False)
    )
    refused = tuple(Refusal(backend=name, reason="failed its probe") for name in set(unusable))
    rules = Rules(table=MeasuredTable(timings=()), unusable=refused)
    call = make_call(num_bytes, num_ranks, captured=captured)
    able = [
        b
        for b in backends
        if num_bytes <= b.most_bytes and b.name not in unusable and (b.capturable or not captured)
    ]
    if not able:
        with pytest.raises(InvalidOption, match="no collective backend takes all_reduce"):
            choose(call, backends, rules)
        return
    first, second = (choose(call, backends, rules) for _ in range(2))
    assert first == second
    chosen = backends[first.index]
    assert chosen in able
    assert {r.backend for r in first.refused} == {b.name for b in backends} - {chosen.name}
    if num_ranks > 2 and any(b.fixed_order for b in able):
        assert chosen.fixed_order
