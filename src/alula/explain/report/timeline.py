"""One cycle of each rank as a row of phases, from what every rank recorded; inline SVG, no script.

Phases are laid end to end in the order in which a cycle runs them, each as long as its median. Whoever waits for
another rank waits inside of a phase, so the wait is told beside the row.
"""

from __future__ import annotations

from html import escape

from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.profile.quantities import Quantity

ORDER = ("schedule", "draft", "verify", "accept", "emit", "extend", "other")
_COLOURS = (
    "#7f7f7f",
    "#d55e00",
    "#0072b2",
    "#cc79a7",
    "#8c8c00",
    "#009e73",
    "#aaaaaa",
)  # told apart without red-green
_WIDTH, _ROW, _BAR, _LEGEND = 460, 46, 18, 22
_FEWEST_MS = 1e-6

Row = tuple[str, tuple[tuple[str, float], ...], str]  # name, phases in ms, a remark


def timeline_rows(case: Case) -> tuple[Row, ...]:
    """A plain step and a drafted cycle of every rank; of rank 0 alone where only its records were read."""
    rows: list[Row] = []
    for run, word in ((case.plain, "plain step"), (case.spec, "cycle")):
        ranks = sorted({one.scope.rank for one in run.all(Quantity.RANK_PHASE_MS) if one.scope.rank is not None})
        for rank in ranks:
            phases = _of_rank(run, rank)
            waited = run.number(Quantity.COLLECTIVE_WAIT_MS, rank=rank)
            remark = f"waits {shown(waited)} ms" if waited else ""
            rows.append((f"{word}, rank {rank}", phases, remark))
        if not ranks and (phases := _of_records(case, run)):
            rows.append((word, phases, ""))
    return tuple(row for row in rows if sum(ms for _, ms in row[1]) > _FEWEST_MS)


def _of_rank(run: RunFacts, rank: int) -> tuple[tuple[str, float], ...]:
    found = {one.scope.phase: one.number for one in run.all(Quantity.RANK_PHASE_MS, rank=rank)}
    return tuple((phase, found[phase] or 0.0) for phase in ORDER if found.get(phase))


def _of_records(case: Case, run: RunFacts) -> tuple[tuple[str, float], ...]:
    """From the phases of one process; what the host does stands at the beginning."""
    batch = round(case.sums.batch)
    named = {
        "other": run.number(Quantity.HOST_MS, batch=batch),
        "draft": run.number(Quantity.DRAFT_MS, batch=batch),
        "verify": run.number(Quantity.VERIFY_MS, batch=batch)
        or run.number(Quantity.PHASE_MS, phase="decode", batch=batch),
        "accept": run.number(Quantity.PHASE_MS, phase="accept", batch=batch),
        "extend": run.number(Quantity.EXTEND_MS, batch=batch),
    }
    if not named["verify"]:
        return ()
    return tuple((phase, named[phase] or 0.0) for phase in ORDER if named.get(phase))


def timeline_picture(rows: tuple[Row, ...]) -> str:
    """The rows on one axis of milliseconds."""
    if not rows:
        return ""
    longest = max(sum(ms for _, ms in phases) for _, phases, _ in rows)
    scale = (_WIDTH - 4) / longest
    drawn = [_legend({phase for _, phases, _ in rows for phase, _ in phases})]
    for index, (name, phases, remark) in enumerate(rows):
        top, at = _LEGEND + index * _ROW, 2.0
        total = sum(ms for _, ms in phases)
        label = f"{name}: {shown(total)} ms{f', {remark}' if remark else ''}"
        drawn.append(f'<text x="2" y="{top + 16}">{escape(label)}</text>')
        for phase, ms in phases:
            tip = f"{phase} {shown(ms)} ms"
            drawn.append(
                f'<rect fill="{_COLOURS[ORDER.index(phase)]}" x="{at:.1f}" y="{top + 22}" '
                f'width="{max(0.5, ms * scale):.1f}" height="{_BAR}"><title>{escape(tip)}</title></rect>'
            )
            at += ms * scale
    height = _LEGEND + _ROW * len(rows)
    return (
        f'<svg role="img" aria-label="Phases of one cycle by rank" viewBox="0 0 {_WIDTH} {height}">'
        f"{''.join(drawn)}</svg>"
    )


def _legend(phases: set[str]) -> str:
    drawn, at = [], 2
    for phase, colour in zip(ORDER, _COLOURS, strict=True):
        if phase in phases:
            drawn.append(f'<rect fill="{colour}" x="{at}" y="3" width="10" height="10"/>')
            drawn.append(f'<text class="small" x="{at + 13}" y="13">{phase}</text>')
            at += 19 + 7 * len(phase)
    return "".join(drawn)
