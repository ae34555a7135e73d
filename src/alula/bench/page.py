"""A bench result as one self-contained HTML page: the table, and where the time of a cycle goes as stacked bars.

No script and nothing loaded from elsewhere, so the file can be mailed. Formats figures; computes none.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from alula.bench.collectives_report import COLUMNS, collective_sentences, path_rows
from alula.bench.compare import Measurement
from alula.bench.graph_report import graph_sentences
from alula.bench.report import number, rows, sentences, title
from alula.bench.results import Figures, SideFigures
from alula.core.dispatch_paths import Collectives
from alula.core.records import PHASES, RunRecord

# Told apart without colour too: the legend repeats the order of the bar, and each part has a tooltip.
_COLOURS = dict(
    zip(PHASES, ("#8c8c8c", "#e69f00", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#d9d9d9"), strict=True)
)
_BAR_WIDTH, _BAR_HEIGHT, _LABEL_WIDTH = 640, 34, 90

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #8884; text-align: right; white-space: pre; }
th:first-child, td:first-child, td:last-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font: 13px system-ui, sans-serif; }
.legend span { display: inline-block; margin-right: 1rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; border: 1px solid #8888; }
pre { overflow-x: auto; font-size: 13px; }
"""


def page(
    run: RunRecord,
    figures: Figures,
    measurement: Measurement,
    result: dict[str, Any],
    collectives: Collectives | None = None,
) -> str:
    """The page as text; `result` is the JSON document, shown at its end. collectives: None on a single rank."""
    heading = escape(title(run, figures.num_prompts))
    told = [*sentences(figures, measurement), *graph_sentences(run, figures)]
    said = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in told)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>alula bench: {heading}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>alula bench</h1>
<p>{heading}</p>
{_table(figures)}
<h2>Where a cycle's time goes</h2>
{_bars(figures)}
{said}
{_collectives(collectives)}
<details><summary>All figures as JSON</summary><pre>{escape(json.dumps(result, indent=1, ensure_ascii=False))}</pre>
</details>
</body>
</html>
"""


def _table(figures: Figures) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows(figures)
    )
    return f"<table>\n<tr><th></th><th>plain</th><th>EAGLE-3</th><th></th></tr>\n{body}</table>"


def _collectives(collectives: Collectives | None) -> str:
    """The paths of collectives as a table, and what there is to say of them."""
    if collectives is None:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>\n" for line in path_rows(collectives)
    )
    said = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in collective_sentences(collectives))
    return f"<h2>Collectives</h2>\n<table>\n<tr>{head}</tr>\n{body}</table>\n{said}"


def _bars(figures: Figures) -> str:
    sides = [("plain", figures.plain), ("EAGLE-3", figures.eagle3)]
    drawn = [(name, side) for name, side in sides if side is not None and side.phases_ms and side.cycle_ms]
    if not drawn:
        return "<p>No decode cycles were measured.</p>"
    longest = max(side.cycle_ms or 0.0 for _, side in drawn)
    height = len(drawn) * (_BAR_HEIGHT + 10)
    bars = "".join(_bar(index, name, side, longest) for index, (name, side) in enumerate(drawn))
    legend = "".join(f'<span><i style="background:{_COLOURS[phase]}"></i>{phase}</span>' for phase in PHASES)
    return (
        f'<svg role="img" aria-label="Milliseconds of a cycle by phase" '
        f'viewBox="0 0 {_LABEL_WIDTH + _BAR_WIDTH + 80} {height}">{bars}</svg>\n<p class="legend">{legend}</p>'
    )


def _bar(index: int, name: str, side: SideFigures, longest_ms: float) -> str:
    top, left = index * (_BAR_HEIGHT + 10), float(_LABEL_WIDTH)
    middle = top + _BAR_HEIGHT / 2 + 5
    parts = [f'<text x="0" y="{middle:.1f}">{escape(name)}</text>']
    for phase, phase_ms in (side.phases_ms or {}).items():
        width = max(0.0, phase_ms) / longest_ms * _BAR_WIDTH
        parts.append(
            f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_BAR_HEIGHT}" fill="{_COLOURS[phase]}">'
            f"<title>{phase}: {number(phase_ms)} ms</title></rect>"
        )
        left += width
    parts.append(f'<text x="{left + 6:.2f}" y="{middle:.1f}">{number(side.cycle_ms)} ms</text>')
    return "".join(parts)
