"""What collectives cost in served cycles, rank by rank, against what the same calls take alone.

Every rank serves the same requests and listens (lab/listening.py). In each phase of a cycle the least total over ranks
is what the collectives cost: the rank that always comes last waits for nobody, and where all come late in turn, that is
the collectives' own doing. What a rank spends in them beyond that, it waits for a slower one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from alula.comm.table import MeasuredTable
from alula.core.records import CycleRecord
from alula.explain.hypotheses.collectives_slow import ALONE, OF_RANK_0
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.listening import Heard
from alula.lab.second_engine import Served, serve
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity

FEWEST_TOKENS, MOST_TOKENS = 16, 96
WARM_UP_CYCLES = 3
_PHASES = ("draft", "verify", "extend")


class Collectives(Experiment):
    name = "collectives"
    share = 0.2
    least_s = 2.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if laboratory.described.tp == 1:
            return "there is one rank"
        if laboratory.device_resident and laboratory.on_gpu:
            return "calls inside of graphs cannot be timed one by one; the measured table has their times"
        return None

    def run(self, laboratory: Laboratory, share: Share) -> None:
        """Plain cycles, then drafted ones."""
        sides = [(0, Label.BASELINE), *([(laboratory.steps, Label.SPECULATIVE)] if laboratory.has_draft else [])]
        each_ms = (laboratory.cycle_ms() or laboratory.plain_ms() or 50.0) * len(sides)
        tokens = max(FEWEST_TOKENS, min(MOST_TOKENS, int(500.0 * share.left_s / each_ms)))
        for steps, label in sides:
            specs = laboratory.specs(f"collectives-{steps}", 1, tokens, steps)
            ranks: list[Served] = laboratory.llm.experiment(partial(serve, specs=specs, listen=True))
            _tell(laboratory, self.name, ranks, label)


class CycleCosts(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle's collectives: their ms and the calls (operation, bytes) by phase, ms waited by rank."""

    transfer_ms: dict[str, float]
    calls: dict[str, list[tuple[str, int]]]
    waited_ms: tuple[float, ...]
    waited_in_ms: dict[str, float]  # of rank 0, by phase


def costs_by_cycle(ranks: Sequence[Served]) -> Iterator[CycleCosts]:
    """Of the decode cycles behind the first few. Raises ValueError where the ranks did not make the same calls."""
    calls = list(zip(*(rank.heard for rank in ranks), strict=True))
    decoding = {index for index, cycle in enumerate(ranks[0].cycles) if _decodes(cycle)}
    by_cycle: dict[int, list[tuple[Heard, ...]]] = {}
    for call in calls:
        if call[0].cycle in decoding and call[0].phase in _PHASES:
            by_cycle.setdefault(call[0].cycle, []).append(call)
    for index in sorted(by_cycle)[WARM_UP_CYCLES:]:
        yield _costs(by_cycle[index], len(ranks))


def _costs(calls: Sequence[tuple[Heard, ...]], num_ranks: int) -> CycleCosts:
    """Of one cycle's calls, each as every rank heard it."""
    made: dict[str, list[tuple[str, int]]] = {}
    totals: dict[str, list[float]] = {}
    for call in calls:
        first = call[0]
        made.setdefault(first.phase, []).append((first.op, first.num_bytes))
        spent = totals.setdefault(first.phase, [0.0] * num_ranks)
        for rank, one in enumerate(call):
            spent[rank] += one.ms
    whole = [sum(spent[rank] for spent in totals.values()) for rank in range(num_ranks)]
    return CycleCosts(
        transfer_ms={phase: min(spent) for phase, spent in totals.items()},
        calls=made,
        waited_ms=tuple(ms - min(whole) for ms in whole),
        waited_in_ms={phase: spent[0] - min(spent) for phase, spent in totals.items()},
    )


def _decodes(cycle: CycleRecord) -> bool:
    return bool(cycle.requests) and not any(request.num_prefill for request in cycle.requests)


def _tell(laboratory: Laboratory, name: str, ranks: Sequence[Served], label: Label) -> None:
    plain = label is Label.BASELINE
    table = _table(laboratory)
    for cost in costs_by_cycle(ranks):
        if not plain and "draft" not in cost.transfer_ms and laboratory.steps > 1 and not _whole_draft(laboratory):
            continue  # the last cycle of an answer may draft nothing
        for phase, ms in cost.transfer_ms.items():
            scope = {"phase": "decode" if plain and phase == "verify" else phase}
            laboratory.times(name, Quantity.COLLECTIVE_MS, [ms], label=label, **scope)
            alone = _alone_ms(table, cost.calls[phase])
            if alone is not None:
                laboratory.times(name, Quantity.COLLECTIVE_MS, [alone], label=label, variant=ALONE, **scope)
        for phase, ms in cost.waited_in_ms.items():
            if not plain:
                laboratory.times(name, Quantity.COLLECTIVE_WAIT_MS, [ms], label=label, phase=phase, name=OF_RANK_0)
        for rank, ms in enumerate(cost.waited_ms):
            laboratory.times(name, Quantity.COLLECTIVE_WAIT_MS, [ms], label=label, rank=rank)
    for served in ranks:
        cycles = [cycle for cycle in served.cycles if _decodes(cycle) and cycle.drafted is not plain]
        for phase in cycles[0].phases_ms if cycles else ():
            times = [cycle.phases_ms[phase] for cycle in cycles[WARM_UP_CYCLES:]]
            laboratory.times(name, Quantity.RANK_PHASE_MS, times, label=label, phase=phase, rank=served.rank)


def _whole_draft(laboratory: Laboratory) -> bool:
    """Whether each rank holds the whole head, so that drafting has no collectives."""
    return laboratory.described.draft_placement == "replicated"


def _table(laboratory: Laboratory) -> MeasuredTable | None:
    found: dict[str, Any] | None = laboratory.described.facts.get("collectives", {}).get("table")
    return None if found is None else msgspec.convert(found, MeasuredTable)


def _alone_ms(table: MeasuredTable | None, calls: Sequence[tuple[str, int]]) -> float | None:
    """What the quickest backend took for each of these calls when nothing else ran."""
    if table is None:
        return None
    total = 0.0
    for op, num_bytes in calls:
        names = {timing.backend for timing in table.timings if timing.op == op}
        times = [us for name in names if (us := table.us(name, op, num_bytes)) is not None]
        if not times:
            return None
        total += min(times) / 1e3
    return total
