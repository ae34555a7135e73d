"""`alula check MODEL --head HEAD`: whether an EAGLE-3 head fits its target, and which reading of its config fits best.

Prints what engine/head_check.py found; judges nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from alula.cli.options import parse_boundaries
from alula.cli.output import Output
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.environment import bind_threads
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.spec.head_check import HeadReport


def check_head(
    model: str, head: str, aux_boundaries: str | None, feedback: str | None, output: Output
) -> dict[str, Any]:
    """Runs the check and prints it; the report as a dict, for the document."""
    speculation = SpeculationConfig(aux_boundaries=parse_boundaries(aux_boundaries), feedback=feedback)
    bind_threads()
    from msgspec import to_builtins

    from alula.engine.head_check import run_head_check
    from alula.engine.setup import EngineSpec
    from alula.models.source import resolve_source

    with output.loading() as say:
        source = resolve_source(model, say)
        path = source.builtin_head if head == "auto" else resolve_source(head, say, "head").path
        if path is None:
            raise InvalidOption(f"{model} brings no head of its own; name one with --head")
        spec = EngineSpec(source=source, head=path, config=EngineConfig(speculation=speculation))
        report = run_head_check(spec, say)
    output.human.print(_table(report))
    for warning in report.warnings or (_all_well(report),):
        output.human.print(warning, markup=False, soft_wrap=True)
    found: dict[str, Any] = to_builtins(report)
    return {"path": str(path), **found}


def _all_well(report: HeadReport) -> str:
    """The head fits, with a word on a neighbour that came out slightly better."""
    from alula.spec.head_check import MARGIN_POINTS

    scores = {offset: percent or 0.0 for offset, percent in report.agreement_percent.items()}
    best = max(scores, key=lambda offset: scores[offset])
    if scores[best] <= scores["+0"]:
        return "the head fits this target"
    lead = scores[best] - scores["+0"]
    return (
        f"no reading is clearly better: offset {best} leads by {lead:.1f} points, and fewer than {MARGIN_POINTS:.0f} "
        "may be chance; try it with --aux-boundaries"
    )


def _table(report: HeadReport) -> Table:
    table = Table(
        "reading",
        "value",
        "result",
        title=f"Head against target, along {report.num_tokens} of the target's own tokens",
        title_justify="left",
    )
    for offset, percent in report.agreement_percent.items():
        boundaries = [b + int(offset) for b in report.boundaries]
        shown = "outside the target" if percent is None else f"{percent:.1f} % first drafts right"
        table.add_row("boundaries" + (" (in use)" if int(offset) == 0 else ""), str(boundaries), shown)
    for feedback, tokens in report.tokens_per_cycle.items():
        in_use = " (in use)" if feedback == report.feedback else ""
        table.add_row(f"feedback{in_use}", feedback, f"{tokens:.3f} tokens per cycle")
    return table
