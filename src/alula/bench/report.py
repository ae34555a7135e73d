"""A bench result as one table and a few sentences for people. Formats figures; computes none."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from alula.bench.compare import Measurement
from alula.bench.results import Figures, SideFigures, Speculation
from alula.core.records import PHASES, RunRecord

ABSENT = "-"


def number(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}x"


def title(run: RunRecord, num_prompts: int) -> str:
    """One line that names what ran: model, head, device, dtype, ranks, drafts a cycle."""
    draft = Path(run.draft).name if run.draft else "none"  # the whole path stands in the JSON
    parts = [run.model, f"draft {draft}", f"{run.device} {run.dtype}"]
    if run.tp > 1:
        parts.append(f"tp {run.tp} (draft {run.draft_placement})")
    if run.draft:
        parts.append(f"{run.steps} drafts a cycle")
    if forced := run.facts.get("forced_tokens_per_cycle"):
        parts.append(f"ACCEPTANCE FORCED to {forced:g} tokens per cycle")
    return ", ".join([*parts, f"{num_prompts} prompts"])


def rows(figures: Figures) -> list[tuple[str, str, str, str]]:
    """(figure, plain, EAGLE-3, note) of every line of the table; shared by terminal and HTML."""
    plain, eagle3 = figures.plain, figures.eagle3
    lines = [
        (
            "tokens/s",
            number(plain.tokens_per_s, 1),
            _of(eagle3, "tokens_per_s", 1),
            f"speed-up {ratio(figures.speedup)}",
        ),
        (
            "tokens per cycle",
            number(plain.tokens_per_cycle),
            _of(eagle3, "tokens_per_cycle"),
            f"break-even {number(figures.break_even_tokens_per_cycle)}, "
            f"ceiling {figures.ceiling_tokens_per_cycle or ABSENT}",
        ),
        ("ms a cycle", number(plain.cycle_ms), _of(eagle3, "cycle_ms"), _plain_share(eagle3)),
    ]
    for phase in PHASES:
        note = f"{ratio(figures.verify_over_plain_step)} plain" if phase == "verify" else ""
        lines.append((f"  {phase}", _phase(plain, phase), _phase(eagle3, phase), note))
    return [(name, left, right, note if eagle3 else "") for name, left, right, note in lines]


def table(run: RunRecord, figures: Figures) -> Table:
    result = Table(title=title(run, figures.num_prompts), title_justify="left", title_style="bold")
    result.add_column("")
    result.add_column("plain", justify="right")
    result.add_column("EAGLE-3", justify="right")
    result.add_column("")
    for index, row in enumerate(rows(figures)):
        result.add_row(*row, style="dim" if index >= 3 else None, end_section=index == 1)
    return result


def sentences(figures: Figures, measurement: Measurement) -> list[str]:
    """What the table leaves open, a sentence each."""
    said = [_verdict(figures)]
    if forced := figures.forced_tokens_per_cycle:
        said.insert(
            0,
            f"ACCEPTANCE IS FORCED to {forced:g} tokens per cycle: what cycles cost is measured, how many tokens they "
            "bring is not. The text is meaningless, and mismatched tokens are not counted.",
        )
    if figures.eagle3:
        accepted = ", ".join(number(share) for share in figures.eagle3.acceptance_per_position)
        said.append(f"Accepted by position: {accepted}.")
        if figures.eagle3.speculation and figures.eagle3.speculation.plain_cycles:
            said.append(f"On the EAGLE-3 side, {plain_cycles(figures.eagle3.speculation)}.")
        why = (
            " (near ties in blocks of another width: docs/exactness.md, --exact)"
            if figures.mismatched_tokens
            else ""
        )
        if figures.mismatched_tokens is not None:
            said.append(f"Mismatched tokens: {figures.mismatched_tokens} over {figures.num_prompts} prompts{why}.")
    if spread := figures.speedup_spread:
        said.append(
            f"By prompt, the speed-up is {ratio(spread.median)} in the median "
            f"({ratio(spread.lowest)} to {ratio(spread.highest)})."
        )
    if figures.num_looping:
        said.append(f"Left out of the figures, since their answers loop: {figures.num_looping} prompts.")
    said += [f"Skipped {entry.prompt_id}: {entry.error}" for entry in measurement.skipped]
    if measurement.stopped in ("budget", "interrupted", "fault"):
        reason = {"budget": "the budget was spent", "interrupted": "interrupted", "fault": "a fault"}
        said.append(f"Stopped after {figures.num_prompts} prompts: {reason[measurement.stopped]}.")
    return said


def plain_cycles(speculation: Speculation) -> str:
    """How many cycles were decoded plainly, and why, as a clause."""
    whole = speculation.drafted_cycles + speculation.plain_cycles
    why = ", ".join(f"{reason} {count}" for reason, count in speculation.plain_because.items())
    return f"{speculation.plain_cycles} of {whole} cycles ({speculation.plain_share or 0:.1%}) were plain: {why}"


def _verdict(figures: Figures) -> str:
    if figures.eagle3 is None:
        return "Plain decoding only: there is no draft head (--draft HEAD)."
    if figures.speedup is None:
        return "No speed-up to report: no prompt left both sides with decode cycles."
    if not figures.eagle3.num_cycles:
        return f"No cycle of the EAGLE-3 side drafted; its tokens/s are {ratio(figures.speedup)} plain."
    word = "faster" if figures.speedup >= 1 else "slower"
    return (
        f"EAGLE-3 is {word}: {ratio(figures.speedup)}. A drafted cycle brings "
        f"{number(figures.eagle3.tokens_per_cycle)} tokens and costs "
        f"{number(figures.break_even_tokens_per_cycle)} plain steps."
    )


def _of(side: SideFigures | None, name: str, digits: int = 2) -> str:
    return ABSENT if side is None else number(getattr(side, name), digits)


def _plain_share(side: SideFigures | None) -> str:
    """A note for the table, where cycles of the side did not draft: then its rows are those that did."""
    if side is None or side.speculation is None or not side.speculation.plain_cycles:
        return ""
    return f"{side.speculation.plain_share or 0:.1%} of cycles plain, not in these"


def _phase(side: SideFigures | None, phase: str) -> str:
    return ABSENT if side is None or side.phases_ms is None else number(side.phases_ms[phase])
