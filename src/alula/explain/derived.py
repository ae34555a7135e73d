"""Further arithmetic from a case: rows, message sizes, expert union, floors. Each figure shows its inputs.

Only what built-in tables (shapes, bandwidths) and the case's own facts carry; nothing here is a judgement.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from alula.explain.case import Case
from alula.explain.figures import Figure, derived, shown
from alula.explain.hypotheses.support import cited, hidden_size, message_bytes, reductions, shape_of, verify_rows
from alula.plan.experts import expected_union
from alula.plan.gpus import find_gpu
from alula.plan.served import ServedShape, forward_bytes
from alula.profile.quantities import Quantity


def further_figures(case: Case) -> tuple[Figure, ...]:
    """In the order in which a reader wants them."""
    groups = (_shares, _measured_floors, _alone, _rows, _messages, _experts, _floors)
    return tuple(figure for group in groups for figure in group(case))


def _shares(case: Case) -> Iterator[Figure]:
    cycle = case.sums.cycle_ms
    for name, phase in (
        ("verify", case.sums.verify_ms),
        ("draft", case.sums.draft_ms),
        ("extend", case.sums.extend_ms),
    ):
        if cycle is not None and phase is not None:
            text = f"{shown(phase.value)} ms / {shown(cycle.value)} ms"
            yield derived(f"{name}'s share of a cycle", 100 * phase.value / cycle.value, "%", text, phase, cycle)


def _measured_floors(case: Case) -> Iterator[Figure]:
    """How far each phase is from the time that its bytes need over the bandwidth that was measured here."""
    floors = {one.scope.phase: one for one in case.both(Quantity.FLOOR_MS) if one.number}
    phases = (
        ("plain step", "decode", case.sums.plain_ms),
        ("verify", "verify", case.sums.verify_ms),
        ("draft", "draft", case.sums.draft_ms),
        ("extend", "extend", case.sums.extend_ms),
    )
    for name, phase, time in phases:
        floor = floors.get(phase)
        if floor is not None and time is not None and floor.number:
            text = f"{shown(time.value)} ms / {shown(floor.number)} ms that its bytes need ({floor.source})"
            found = derived(f"{name} over its floor", time.value / floor.number, "x", text, time)
            yield msgspec.structs.replace(found, evidence=cited(found.evidence, floor))


def _alone(case: Case) -> Iterator[Figure]:
    """Verify served against the same forward alone."""
    time, width = case.sums.verify_ms, case.sums.width
    alone = case.spec.first(Quantity.FORWARD_MS, width=width, phase="verify") if width else None
    if time is not None and alone is not None and alone.number and case.sums.batch == 1 and case.tp in (None, 1):
        text = f"{shown(time.value)} ms served / {shown(alone.number)} ms alone"
        yield derived("verify served over alone", time.value / alone.number, "x", text, time)


def _rows(case: Case) -> Iterator[Figure]:
    rows, width = verify_rows(case), case.sums.width
    if rows is None or width is None:
        return
    text = f"{shown(case.sums.batch)} requests x {width} rows"
    yield Figure(name="rows of a verify", value=float(rows), unit="rows", formula=text)
    for quantity, needed, unit in (
        (Quantity.GRAPH_MAX_TOKENS, float(rows), "rows"),
        (Quantity.GRAPH_MAX_REQUESTS, case.sums.batch, "requests"),
    ):
        limit = case.spec.first(quantity)
        if limit is not None and limit.number:
            text = f"{shown(needed)} needed of {shown(limit.number)} captured"
            value = needed / limit.number
            yield Figure(
                name=f"share of the largest graph ({unit})", value=value, unit="", formula=text, evidence=(limit,)
            )


def _messages(case: Case) -> Iterator[Figure]:
    if case.tp == 1 or (case.tp is None and not case.both(Quantity.NCCL_VERSION)):
        return
    hidden, rows = hidden_size(case), verify_rows(case)
    for name, count in (("decode", round(case.sums.batch)), ("verify", rows)):
        size = message_bytes(case, count)
        if size is not None:
            text = f"{count} rows x {hidden} x 2 bytes"
            yield Figure(name=f"all-reduce message at {name}", value=size / 1024, unit="KiB", formula=text)
    number = reductions(case)
    if number is not None:
        yield Figure(
            name="all-reduces of a forward", value=float(number), unit="", formula="2 a layer and the embedding's"
        )


def _experts(case: Case) -> Iterator[Figure]:
    shape, rows = shape_of(case), verify_rows(case)
    experts = case.number(Quantity.NUM_EXPERTS) or (shape.num_experts if shape else 0)
    each = case.number(Quantity.EXPERTS_PER_TOKEN) or (shape.experts_per_token if shape else 0)
    if rows is None or not 1 <= each <= experts:
        return
    union = expected_union(int(experts), int(each), rows)
    text = f"{experts:.0f} x (1 - (1 - {each:.0f}/{experts:.0f})^{rows})"
    yield Figure(name="experts that a verify touches in a layer", value=union, unit="", formula=text)


def _floors(case: Case) -> Iterator[Figure]:
    shape, name = shape_of(case), case.text(Quantity.GPU)
    gpu = find_gpu(name) if name else None
    if shape is None or gpu is None:
        return
    tp = case.tp or 1
    for phase, rows in (("plain step", round(case.sums.batch)), ("verify", verify_rows(case))):
        if rows:
            read = forward_bytes(shape, rows=rows, tp=tp).total
            yield Figure(
                name=f"memory floor of a {phase}",
                value=1000.0 * read / gpu.memory_bytes_per_s,
                unit="ms",
                formula=_bytes(shape, read, tp) + f" / {shown(gpu.memory_bytes_per_s / 1e12)} TB/s ({gpu.source})",
                evidence=cited(case.both(Quantity.MODEL), case.both(Quantity.GPU)),
            )


def _bytes(shape: ServedShape, read: float, tp: int) -> str:
    return f"{shown(read / 1e9)} GB of {shape.name}'s weights on each of {tp} GPU(s)"
