"""The report's pictures as inline SVG: waterfall, break-even chart, acceptance by position. No script, no file.

Colours come from the page's variables, so they follow light and dark. Everything that is text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from alula.explain.arithmetic import Arithmetic
from alula.explain.figures import shown
from alula.explain.finding import Finding, Status
from alula.explain.waterfall import REMAINDER, Part

_WIDTH = 460  # narrow, so that letters stay readable on a phone
_LONGEST_NAME = 62
_WHOLE = ("plain step", "cycle", "known of a cycle")
_ROW, _BAR = 40, 15
_PLOT_HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 300, 44, 40, 16, 12


def waterfall_picture(parts: Sequence[Part], complete: bool) -> str:
    """Bars that begin where the one before ended; each with its name above it, so that long names fit a phone."""
    if not parts:
        return ""
    edges, at = [], 0.0
    for part in parts:
        edges.append((min(at, at + part.ms), max(at, at + part.ms)))
        at += part.ms
    low, high = min(0.0, *(edge[0] for edge in edges)), max(edge[1] for edge in edges)
    scale = (_WIDTH - 4) / ((high - low) or 1.0)
    rows = [
        _bar(index, part, (edge[0] - low) * scale, max(1.5, (edge[1] - edge[0]) * scale))
        for index, (part, edge) in enumerate(zip(parts, edges, strict=True))
    ]
    total = Part(part="cycle" if complete else "known of a cycle", ms=at)
    rows.append(_bar(len(parts), total, -low * scale, max(1.5, at * scale)))
    height = _ROW * len(rows)
    label = "Waterfall from a plain step to a cycle"
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {height}">{"".join(rows)}</svg>'


def _bar(index: int, part: Part, left: float, width: float) -> str:
    top = index * _ROW
    kind = "rest" if REMAINDER in part.part else "base" if part.part in _WHOLE else "cost"
    name = f"{shown(part.ms)} ms  {part.part}"
    return (
        f'<text x="2" y="{top + 15}">{escape(_cut(name))}</text>'
        f'<rect class="{kind}" x="{left + 2:.1f}" y="{top + 21}" width="{width:.1f}" height="{_BAR}">'
        f"<title>{escape(name)}</title></rect>"
    )


def break_even_picture(sums: Arithmetic, findings: Sequence[Finding]) -> str:
    """Tokens per cycle over the cycle's cost in plain steps: above the diagonal it pays."""
    cost = sums.break_even
    if cost is None:
        return ""
    tokens = sums.tokens_per_cycle
    top = sums.ceiling.value if sums.ceiling else None
    reach = 1.15 * max(cost.value, top or 0.0, tokens.value if tokens else 0.0, 2.0)
    plot = _Plot(reach)
    drawn = [plot.pays(), plot.axes(), plot.ceiling(top) if top else ""]
    if tokens is not None:
        word = "at least " if tokens.at_least or cost.at_least else ""
        drawn.append(
            plot.point(cost.value, tokens.value, "here", f"this run: {word}{shown(tokens.value)} tokens", True)
        )
        for index, finding in enumerate(_fixes(findings)):
            after = tokens.value / (finding.predicted_speedup or 1.0)
            drawn.append(plot.point(after, tokens.value, "fixed", f"{index + 1}: {finding.title}", False))
    else:
        drawn.append(plot.line(cost.value, f"this run's cycle: {shown(cost.value)} plain steps"))
    label = "Break-even chart: tokens per cycle over the cost of a cycle in plain steps"
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {_PLOT_HEIGHT}">{"".join(drawn)}</svg>'


def _fixes(findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose fix moves the point to the left, in the order of the page's list."""
    return [one for one in findings if one.status is Status.CONFIRMED and one.predicted_speedup and one.ms][:4]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


class _Plot:
    """Both axes from 0 to `reach`."""

    def __init__(self, reach: float) -> None:
        self._reach = reach

    def _x(self, cost: float) -> float:
        return _LEFT + cost / self._reach * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, tokens: float) -> float:
        return _PLOT_HEIGHT - _BOTTOM - tokens / self._reach * (_PLOT_HEIGHT - _BOTTOM - _TOP)

    def pays(self) -> str:
        """The region above the diagonal."""
        corners = ((0.0, 0.0), (self._reach, self._reach), (0.0, self._reach))
        points = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in corners)
        text = f'<text x="{self._x(0.04 * self._reach):.1f}" y="{self._y(0.9 * self._reach):.1f}">pays</text>'
        other = f'<text x="{self._x(0.82 * self._reach):.1f}" y="{self._y(0.12 * self._reach):.1f}">does not</text>'
        return f'<polygon class="pays" points="{points}"/>{text}{other}'

    def axes(self) -> str:
        left, right, low, high = self._x(0), self._x(self._reach), self._y(0), self._y(self._reach)
        lines = f'<path class="axis" d="M{left:.1f} {high:.1f}V{low:.1f}H{right:.1f}"/>'
        step = 1 if self._reach <= 10 else round(self._reach / 8)
        ticks = "".join(
            f'<text class="small" text-anchor="middle" x="{self._x(n):.1f}" y="{low + 16:.1f}">{n}</text>'
            f'<text class="small" text-anchor="end" x="{left - 6:.1f}" y="{self._y(n) + 4:.1f}">{n}</text>'
            for n in range(0, int(self._reach) + 1, step)
        )
        middle = (left + right) / 2
        x_name = (
            f'<text class="small" text-anchor="middle" x="{middle:.1f}" '
            f'y="{_PLOT_HEIGHT - 6}">cycle in plain steps</text>'
        )
        turn = f"rotate(-90 14 {(low + high) / 2:.1f})"
        y_name = (
            f'<text class="small" text-anchor="middle" x="14" y="{(low + high) / 2:.1f}" '
            f'transform="{turn}">tokens per cycle</text>'
        )
        return lines + ticks + x_name + y_name

    def ceiling(self, top: float) -> str:
        left, right, y = self._x(0), self._x(self._reach), self._y(top)
        name = f'<text class="small" text-anchor="end" x="{right:.1f}" y="{y - 5:.1f}">ceiling {shown(top)}</text>'
        return f'<path class="limit" d="M{left:.1f} {y:.1f}H{right:.1f}"/>{name}'

    def line(self, cost: float, name: str) -> str:
        x = self._x(cost)
        text = (
            f'<text class="small" text-anchor="end" x="{x - 5:.1f}" y="{self._y(0) - 8:.1f}">{escape(name)}</text>'
        )
        return f'<path class="limit" d="M{x:.1f} {self._y(0):.1f}V{self._y(self._reach):.1f}"/>{text}'

    def point(self, cost: float, tokens: float, kind: str, name: str, named: bool) -> str:
        """named: the whole name stands under the point; else its number above."""
        x, y = self._x(cost), self._y(tokens)
        half = 4 * len(name) if named else 0  # about half of the text's width
        at = min(max(x, _LEFT + half), _WIDTH - _RIGHT - half)
        text, below = (name, 22) if named else (name.split(":", 1)[0], -10)
        label = f'<text text-anchor="middle" x="{at:.1f}" y="{y + below:.1f}">{escape(text)}</text>'
        return (
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{escape(name)}</title></circle>{label}'
        )


def acceptance_picture(by_position: Sequence[float]) -> str:
    """A bar for each draft position."""
    if not by_position:
        return ""
    rows = []
    for position, share in enumerate(by_position):
        top, width = position * 30, share * (_WIDTH - 190)
        rows.append(
            f'<text x="2" y="{top + 17}">position {position}</text><rect class="base" x="100" y="{top + 3}" '
            f'width="{max(1.0, width):.1f}" height="20"/><text x="{106 + width:.1f}" '
            f'y="{top + 18}">{100 * share:.1f} %</text>'
        )
    height = 30 * len(by_position)
    return (
        f'<svg role="img" aria-label="Acceptance by position" viewBox="0 0 {_WIDTH} {height}">{"".join(rows)}</svg>'
    )
