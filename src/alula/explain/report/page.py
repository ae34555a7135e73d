"""A verdict as one self-contained HTML page: no script, nothing loaded, light and dark, readable on a phone.

Everything that came from a file or the command line is escaped. Computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from alula.explain.derived import further_figures
from alula.explain.figures import Figure, shown
from alula.explain.finding import Finding, Status
from alula.explain.known_faults import fields_to_read_with_care
from alula.explain.report.pictures import acceptance_picture, break_even_picture, waterfall_picture
from alula.explain.report.tables import PATH_COLUMNS, allreduce_rows, environment_rows, path_rows
from alula.explain.report.timeline import timeline_picture, timeline_rows
from alula.explain.verdict import Verdict, as_document, shown_text

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #6666; --base: #0072b2; --cost: #d55e00;
  --rest: #999; --pays: #009e7326; --yes: #b3400a; --maybe: #8a6d00; --no: #00704f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --faint: #aaa6; --base: #56b4e9;
  --cost: #f0955a; --rest: #888; --pays: #009e7340; --yes: #ff9a66; --maybe: #e6c34d; --no: #4fd6a9; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 54rem;
  margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 0; }
.answer { font-size: 1.15rem; border-left: .3rem solid var(--base); padding-left: .8rem; }
svg { width: 100%; max-width: 42rem; height: auto; } svg text { fill: currentColor; font: 13px system-ui, sans-serif; }
svg text.small { font-size: 12px; }
.base, .here { fill: var(--base); } .cost, .fixed { fill: var(--cost); } .rest { fill: var(--rest); }
.pays { fill: var(--pays); } .axis, .limit { stroke: var(--faint); fill: none; } .limit { stroke-dasharray: 6 4;
  stroke: currentColor; }
article { border: 1px solid var(--faint); border-radius: .5rem; padding: .7rem 1rem; margin: .8rem 0; }
.confirmed h3 { color: var(--yes); } .undecided h3 { color: var(--maybe); } .refuted h3 { color: var(--no); }
article p { margin: .4rem 0; } .meta { font-size: .9rem; opacity: .8; }
pre, code { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; white-space: pre-wrap; margin: .3rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--faint); vertical-align: top; }
"""


def page(verdict: Verdict) -> str:
    """The whole page as text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>alula explain</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>alula explain</h1>
<p class="answer">{escape(verdict.answer)}</p>
{_pictures(verdict)}
{_findings(verdict.findings)}
{_figures((*verdict.case.sums.figures(), *further_figures(verdict.case)))}
{_table("Collectives of decode against verify", PATH_COLUMNS, path_rows(verdict.case))}
{_table("All-reduces", ("phase", "message", "backend"), allreduce_rows(verdict.case))}
{_table("Environment", ("variable", "value", "where"), environment_rows(verdict.case))}
{_rest(verdict)}
</body>
</html>
"""


def _pictures(verdict: Verdict) -> str:
    sums = verdict.case.sums
    complete = sums.cycle_ms is not None
    heading = "From a plain step to a cycle" if complete else "From a plain step to what is known of a cycle"
    fixes = "".join(
        f"<li>{escape(one.title)}: {shown(one.ms or 0.0)} ms less, {shown(one.predicted_speedup or 0.0)}x</li>"
        for one in verdict.findings
        if one.status is Status.CONFIRMED and one.predicted_speedup and one.ms
    )
    sections = (
        (heading, waterfall_picture(verdict.waterfall, complete)),
        ("Break-even", break_even_picture(sums, verdict.findings)),
    )
    drawn = "".join(f"<h2>{escape(name)}</h2>\n{picture}\n" for name, picture in sections if picture)
    if fixes:
        drawn += f"<p class='meta'>Numbered points: what each fix would give.</p><ol>{fixes}</ol>"
    timeline = timeline_picture(timeline_rows(verdict.case))
    drawn += f"<h2>One cycle, phase by phase</h2>\n{timeline}\n" if timeline else ""
    by_position = acceptance_picture(sums.by_position)
    return drawn + (f"<h2>Acceptance by position</h2>\n{by_position}\n" if by_position else "")


def _findings(findings: Sequence[Finding]) -> str:
    shown_ones = [one for one in findings if one.suspect or one.status is Status.REFUTED]
    return "<h2>Findings</h2>\n" + "".join(_article(one) for one in shown_ones) if shown_ones else ""


def _article(finding: Finding) -> str:
    ms = f" · {shown(finding.ms)} ms" if finding.ms is not None else ""
    parts = [
        f'<article class="{finding.status.value}"><h3>{escape(finding.title)}</h3>',
        f'<p class="meta">{finding.status.value} · confidence {finding.confidence:.2f}{ms} · '
        f"{escape(finding.id)}</p>",
        f"<p>{escape(finding.text)}</p>",
    ]
    if finding.evidence:
        lines = "\n".join(
            escape(f"{one.source}{f':{one.line}' if one.line else ''}: {shown_text(one).strip()}")
            for one in finding.evidence
        )
        parts.append(f"<details><summary>evidence ({len(finding.evidence)})</summary><pre>{lines}</pre></details>")
    for label, text in (("Fix", finding.fix), ("Next", finding.next_step)):
        if text:
            parts.append(f"<p><b>{label}:</b> {escape(text)}</p>")
    if finding.predicted_speedup is not None:
        parts.append(f"<p><b>Expected after:</b> {shown(finding.predicted_speedup)}x</p>")
    return "".join(parts) + "</article>\n"


def _figures(figures: Iterable[Figure]) -> str:
    rows = [
        (
            figure.name,
            f"{'at least ' if figure.at_least else ''}{shown(figure.value)} {figure.unit}",
            figure.formula,
        )
        for figure in figures
    ]
    return _table("Figures and their inputs", ("figure", "value", "from"), rows)


def _table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<h2>{escape(heading)}</h2>\n<div class='wide'><table><tr>{head}</tr>\n{body}</table></div>"


def _rest(verdict: Verdict) -> str:
    quiet = [one for one in verdict.findings if one.status is Status.UNDECIDED and not one.suspect]
    rows = [(one.title, one.next_step or "") for one in quiet]
    said = (*fields_to_read_with_care(verdict.case), *verdict.case.notes)
    notes = "".join(f"<li>{escape(note)}</li>" for note in said)
    document = escape(json.dumps(as_document(verdict), indent=1, ensure_ascii=False, default=str))
    return (
        f"<details><summary>Not decided, and nothing points to it ({len(rows)})</summary>"
        f"{_table('What would decide it', ('cause', 'next measurement'), rows)}</details>"
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "")
        + f"<details><summary>Everything as JSON</summary><pre>{document}</pre></details>"
    )
