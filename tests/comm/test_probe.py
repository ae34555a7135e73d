"""The probe's judgement, against sums in float64: rounding is allowed, an element off is not."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from alula.comm.backends.reduction import sum_in_rank_order
from alula.comm.call import CollectiveCall
from alula.comm.probe import find_error, probe_input

dtypes = st.sampled_from(["bfloat16", "float16", "float32", "float64"])
ranks = st.integers(2, 8)
counts = st.integers(1, 700)


def make_call(dtype: str, count: int, num_ranks: int, op: str = "all_reduce") -> CollectiveCall:
    num_bytes = count * getattr(torch, dtype).itemsize
    return CollectiveCall(
        op=op, num_bytes=num_bytes, dtype=dtype, aligned=True, num_ranks=num_ranks, phase="verify", device="cpu"
    )


def inputs_of(call: CollectiveCall) -> list[torch.Tensor]:
    return [probe_input(call, rank) for rank in range(call.num_ranks)]


@given(dtypes, counts, ranks)
def test_sums_in_any_order_of_rounding_are_right(dtype: str, count: int, num_ranks: int) -> None:
    call = make_call(dtype, count, num_ranks)
    parts = inputs_of(call)
    out = torch.empty_like(parts[0])
    sum_in_rank_order(parts, out)
    assert find_error(out, call, num_ranks) is None
    backwards = parts[-1].clone()  # rounded after every addition, from the last rank on
    for part in reversed(parts[:-1]):
        backwards += part
    assert find_error(backwards, call, num_ranks) is None


@given(dtypes, counts, ranks, st.data())
def test_a_missing_rank_or_element_is_wrong(dtype: str, count: int, num_ranks: int, data: st.DataObject) -> None:
    call = make_call(dtype, count, num_ranks)
    exact = torch.cat([x.to(torch.float64) for x in inputs_of(call)]).sum(0).to(getattr(torch, dtype))
    place = data.draw(st.integers(0, count - 1))
    for value in (float("nan"), float(exact[place]) + 8.0 * num_ranks, float("inf")):
        broken = exact.clone()
        broken[place] = value
        found = find_error(broken, call, num_ranks)
        assert found is not None and f"at element {place}" in found


@given(dtypes, counts, ranks)
def test_what_is_only_moved_must_be_the_same_bits(dtype: str, count: int, num_ranks: int) -> None:
    gather = make_call(dtype, count, num_ranks, "all_gather")
    joined = torch.cat(inputs_of(gather), -1)
    assert find_error(joined, gather, num_ranks) is None
    assert find_error(joined.flip(0) + 1, gather, num_ranks) is not None
    sent = make_call(dtype, count, num_ranks, "broadcast")
    assert find_error(probe_input(sent, 0), sent, num_ranks) is None
    assert find_error(probe_input(sent, 1), sent, num_ranks) is not None
