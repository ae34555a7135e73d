"""A verdict on the terminal, by rich. Prints; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from alula.explain.derived import further_figures
from alula.explain.figures import shown
from alula.explain.finding import Finding, Status
from alula.explain.known_faults import fields_to_read_with_care
from alula.explain.report.tables import PATH_COLUMNS, environment_rows, path_rows
from alula.explain.report.timeline import timeline_rows
from alula.explain.verdict import Verdict, shown_text
from alula.profile.comparison import Difference
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_COLOURS = {Status.CONFIRMED: "red", Status.UNDECIDED: "yellow", Status.REFUTED: "green"}
_BAR, _MAX_EVIDENCE, _LONGEST = 30, 4, 160
_MOST_VARIABLES = 20


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The answer, the waterfall, what was found with its evidence, and what was not examined."""
    _plain(console, verdict.answer, style="bold")
    _print_waterfall(console, verdict)
    figures = (*verdict.case.sums.figures(), *further_figures(verdict.case))
    if figures:
        console.print()
        _plain(console, "Figures", style="bold")
        for figure in figures:
            _plain(console, f"  {figure.words()}")
    _print_live(console, verdict)
    for status, heading in ((Status.CONFIRMED, "Found"), (Status.UNDECIDED, "Open"), (Status.REFUTED, "Ruled out")):
        found = [
            one for one in verdict.findings if one.status is status and (one.suspect or status is Status.REFUTED)
        ]
        if found:
            console.print()
            _plain(console, heading, style=f"bold {_COLOURS[status]}")
        for finding in found:
            _print_finding(console, finding, short=status is Status.REFUTED)
    _print_rest(console, verdict)


def _print_live(console: Console, verdict: Verdict) -> None:
    """What only a run's own records tell: acceptance by position, phases by rank, collectives, variables."""
    case = verdict.case
    if case.sums.by_position:
        shares = ", ".join(f"{100 * share:.0f} %" for share in case.sums.by_position)
        _plain(console, f"  accepted by position: {shares}")
    by_rank = [row for row in timeline_rows(case) if "rank" in row[0]]
    if by_rank:
        console.print()
        _plain(console, "One cycle, rank by rank", "bold")
    for name, phases, remark in by_rank:
        told = ", ".join(f"{phase} {shown(ms)}" for phase, ms in phases)
        _plain(console, f"  {name}: {told} ms{f'; {remark}' if remark else ''}")
    _print_table(console, "Collectives", PATH_COLUMNS, path_rows(case))
    if any(one.scope.rank is not None for one in case.both(Quantity.VARIABLE_SEEN)):
        _print_table(
            console, "Environment", ("variable", "value", "where"), environment_rows(case)[:_MOST_VARIABLES]
        )


def _print_table(console: Console, heading: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    console.print()
    _plain(console, heading, "bold")
    table = Table(show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(Text(column))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_comparison(console: Console, differences: tuple[Difference, ...], names: tuple[str, str]) -> None:
    """Two runs side by side."""
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("", *names, "ratio", ""):
        table.add_column(Text(heading), justify="right" if heading else "left")
    for one in differences:
        label = f"{one.quantity.value} {one.scope.words()}".strip()
        apart = {True: "differs", False: "within the spread", None: ""}[one.apart]
        ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
        table.add_row(Text(label), _with_spread(one.left), _with_spread(one.right), ratio, apart)
    console.print(table)


def _with_spread(evidence: Evidence) -> str:
    text = shown(evidence.number or 0.0)
    if evidence.low is not None and evidence.high is not None:
        text += f" ({shown(evidence.low)} to {shown(evidence.high)})"
    return text


def _print_waterfall(console: Console, verdict: Verdict) -> None:
    if not verdict.waterfall:
        return
    total = sum(part.ms for part in verdict.waterfall)
    longest = max(abs(part.ms) for part in verdict.waterfall) or 1.0
    console.print()
    whole = verdict.case.sums.cycle_ms is not None
    _plain(
        console,
        "From a plain step to a cycle" if whole else "From a plain step to what is known of a cycle",
        "bold",
    )
    for part in verdict.waterfall:
        bar = "█" * max(1, round(_BAR * abs(part.ms) / longest))
        _plain(console, f"  {shown(part.ms):>8} ms  {bar:<{_BAR}}  {part.part}")
    _plain(console, f"  {shown(total):>8} ms  {'':<{_BAR}}  {'cycle' if whole else 'known of a cycle'}")


def _print_finding(console: Console, finding: Finding, *, short: bool) -> None:
    ms = f" {shown(finding.ms)} ms" if finding.ms is not None else ""
    if short:
        _plain(console, f"• {finding.title}: no. {finding.text}", style=_COLOURS[finding.status])
        return
    _plain(console, f"• {finding.title}{ms} (confidence {finding.confidence:.2f})", style=_COLOURS[finding.status])
    _plain(console, f"  {finding.text}")
    for one in finding.evidence[:_MAX_EVIDENCE]:
        where = f"{one.source}:{one.line}" if one.line else one.source
        _plain(console, f"    {where}: {shown_text(one).strip()[:_LONGEST]}", style="dim")
    if len(finding.evidence) > _MAX_EVIDENCE:
        _plain(console, f"    and {len(finding.evidence) - _MAX_EVIDENCE} more (--json has all)", style="dim")
    for label, text in (("fix", finding.fix), ("next", finding.next_step)):
        if text:
            _plain(console, f"  {label}: {text}")
    if finding.predicted_speedup is not None:
        _plain(console, f"  expected after: {shown(finding.predicted_speedup)}x")


def _print_rest(console: Console, verdict: Verdict) -> None:
    quiet = [one for one in verdict.findings if one.status is Status.UNDECIDED and not one.suspect]
    if quiet and not verdict.case.empty:
        console.print()
        names = ", ".join(one.id for one in quiet)
        _plain(console, f"Not decided, and nothing points to it: {names} (--json says what each would need)", "dim")
    for note in (*fields_to_read_with_care(verdict.case), *verdict.case.notes):
        _plain(console, f"note: {note}", style="dim")


def _plain(console: Console, text: str, style: str = "") -> None:
    """Text as it is: names of models and lines of logs may hold what rich takes for markup."""
    console.print(Text(text, style=style), soft_wrap=True)
