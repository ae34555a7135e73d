"""A table of all-reduce latencies against the messages of decode and verify. Judges nothing."""

from __future__ import annotations

import itertools

import msgspec

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.hypotheses.support import cited, kilobytes, message_bytes, reductions, verify_rows
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity


class LatencySlope(msgspec.Struct, frozen=True, kw_only=True):
    """Measured latency at decode's and at verify's message size; ms: the difference over a forward."""

    name: str
    decode_bytes: int
    verify_bytes: int
    decode_us: float
    verify_us: float
    ms: float | None
    evidence: tuple[Evidence, ...]


def latency_slope(case: Case) -> LatencySlope | None:
    """From a table of one backend's latencies that spans both sizes; None where it does not, or they are unknown."""
    few, many = message_bytes(case, round(case.sums.batch)), message_bytes(case, verify_rows(case))
    if few is None or many is None or many <= few:
        return None
    tables: dict[str, dict[int, Evidence]] = {}
    for one in case.both(Quantity.ALLREDUCE_US):
        if one.scope.num_bytes and one.number:
            tables.setdefault(one.scope.name or "all-reduce", {})[one.scope.num_bytes] = one
    name = next((name for name in tables if "nccl" in name.lower()), next(iter(tables), None))
    table = tables.get(name or "", {})
    if name is None or len(table) < 2 or not min(table) <= 2 * few or not max(table) >= many / 2:
        return None
    decode_us, verify_us = _latency(table, few), _latency(table, many)
    count = reductions(case)
    return LatencySlope(
        name=name,
        decode_bytes=few,
        verify_bytes=many,
        decode_us=decode_us,
        verify_us=verify_us,
        ms=max(0.0, verify_us - decode_us) * count / 1000.0 if count else None,
        evidence=cited(tuple(table[size] for size in sorted(table))),
    )


def _latency(table: dict[int, Evidence], size: int) -> float:
    """Between two measured sizes on a straight line; beyond them the nearest."""
    known = sorted((at, one.number or 0.0) for at, one in table.items())
    if size <= known[0][0]:
        return known[0][1]
    for (left, left_us), (right, right_us) in itertools.pairwise(known):
        if size <= right:
            return left_us + (right_us - left_us) * (size - left) / (right - left)
    return known[-1][1]


def range_of(table: tuple[Evidence, ...]) -> str:
    known = sorted((one.scope.num_bytes, one.number) for one in table if one.scope.num_bytes and one.number)
    if len(known) < 2:
        return ""
    (low, low_us), (high, high_us) = known[0], known[-1]
    return (
        f" One all-reduce takes {shown(low_us)} µs at {kilobytes(low)} and {shown(high_us)} µs at "
        f"{kilobytes(high)}; a hundred a "
        f"forward take {shown(low_us / 10)} to {shown(high_us / 10)} ms."
    )
