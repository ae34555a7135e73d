"""The report: complete, self-contained, and deaf to what hostile files would have it say."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from evidence_builder import Found, found, verdict_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scenarios import SCENARIOS, Scenario

from alula.explain.judge import explain
from alula.explain.report.page import page
from alula.explain.report.pictures import break_even_picture, waterfall_picture
from alula.explain.report.terminal import print_verdict
from alula.explain.typed import Typed
from alula.explain.verdict import Verdict
from alula.explain.waterfall import Part
from alula.profile.quantities import Quantity as Q

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=alert(1)> [bold]&amp;\"'"
_LOADS = re.compile(r"""(?:src|href)\s*=|url\(|@import|<script|<iframe|<link""", re.IGNORECASE)
_VOID = {"meta", "br"}


class _Balanced(HTMLParser):
    """Fails on a tag that is closed and was not opened, or the other way round; counts scripts and handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.dangerous: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe") or any(name.startswith("on") for name, _ in attributes):
            self.dangerous.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _checked(html: str) -> None:
    parser = _Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == [] and parser.dangerous == []
    for picture in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(picture)


def _text(verdict: Verdict) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_verdict(console, verdict)
    return console.file.getvalue()  # type: ignore[attr-defined]


def _hostile() -> list[Found]:
    return [
        found(Q.MODEL, HOSTILE, text=HOSTILE),
        found(Q.STEPS, 3, text=HOSTILE),
        found(Q.TP, 4),
        found(Q.CYCLE_MS, 20.0),
        found(Q.VERIFY_MS, 15.0),
        found(Q.TOKENS_PER_CYCLE, 2.0),
        found(Q.GRAPH_REPLAYED, False, phase="verify", text=HOSTILE),
        found(Q.GRAPH_REASON, HOSTILE, phase="verify"),
        found(Q.ALLREDUCE_REFUSED, HOSTILE, name="custom"),
        found(Q.VARIABLE_SEEN, HOSTILE, name="NCCL_PROTO", rank=0),
        found(Q.VARIABLE_SEEN, "LL", name="NCCL_PROTO", rank=1),
        found(Q.ALLREDUCE_BACKEND, HOSTILE, phase="decode"),
    ]


def test_hostile_names_are_text_and_nothing_else() -> None:
    verdict = verdict_of(_hostile(), [found(Q.PLAIN_STEP_MS, 8.0)])
    html = page(verdict)
    _checked(html)
    assert "&lt;script&gt;" in html
    assert not _LOADS.search(re.sub(r"&lt;.*?&gt;", "", html).replace(HOSTILE, ""))
    assert "[bold]" in _text(verdict)


@pytest.mark.parametrize("scenario", SCENARIOS[::3])
def test_every_verdict_can_be_shown(scenario: Scenario) -> None:
    verdict = verdict_of(scenario.spec, scenario.plain)
    _checked(page(verdict))
    assert verdict.answer in _text(verdict).replace("\n", "") or verdict.answer[:60] in _text(verdict)


def test_a_verdict_on_nothing_can_be_shown() -> None:
    verdict = explain([])
    _checked(page(verdict))
    assert "Nothing was recognised" in _text(verdict)


def test_the_text_shows_numbers_with_their_inputs_and_evidence_with_its_place() -> None:
    text = _text(explain([], Typed(plain_tps=82.2, spec_tps=60.5, steps=2, plain_ms=12.2, verify_ms=29, tp=8)))
    assert "2.38 = 29 ms / 12.2 ms" in text and "60.5 tokens/s x 29 ms" in text
    assert "typed: --verify-ms 29" in text and "not explained" in text
    placed = _text(verdict_of([found(Q.GRAPH_REPLAYED, False, phase="verify", text="cuda graph: False")]))
    assert "spec.log:1: cuda graph: False" in placed


@given(st.lists(st.tuples(st.text(max_size=90), st.floats(-1e6, 1e6)), max_size=8), st.booleans())
def test_any_waterfall_is_a_picture(parts: list[tuple[str, float]], complete: bool) -> None:
    names = "".join(name for name, _ in parts)
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or ord(char) in (0xFFFE, 0xFFFF) for char in names):
        return  # XML has no such characters; HTML shows them as a replacement
    picture = waterfall_picture([Part(part=name, ms=ms) for name, ms in parts], complete)
    assert bool(picture) == bool(parts)
    if picture:
        bars = ElementTree.fromstring(picture).findall("rect")
        assert len(bars) == len(parts) + 1
        assert all(float(bar.attrib["width"]) >= 0 for bar in bars)


def test_the_break_even_chart_shows_run_ceiling_and_fixes() -> None:
    spec = [found(Q.CYCLE_MS, 20.0), found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.STEPS, 3), found(Q.VERIFY_MS, 15.0)]
    spec += [found(Q.GRAPH_REPLAYED, False, phase="verify")]
    spec += [
        found(Q.FORWARD_MS, ms, phase="verify", variant=name) for name, ms in (("eager", 14.0), ("graph", 8.0))
    ]
    verdict = verdict_of(spec, [found(Q.PLAIN_STEP_MS, 8.0)])
    picture = ElementTree.fromstring(break_even_picture(verdict.case.sums, verdict.findings))
    points = {circle.attrib["class"]: float(circle.attrib["cx"]) for circle in picture.findall("circle")}
    assert points["fixed"] < points["here"]
    assert any("ceiling 4" in (text.text or "") for text in picture.findall("text"))
