"""The scan by markers: offers exactly the wanted lines, cleaned, with their numbers, whatever the text is."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.explain import scan as scanning
from alula.explain.scan import Wanted, cleaned, scan, states
from alula.explain.stream import Stream


def _offered(data: bytes, *markers: str, follow: int = 0, whole: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Lines offered to one taker that wants `follow` more lines after each hit."""
    seen: list[tuple[int, str]] = []
    left = [0]

    def take(number: int, text: str) -> bool:
        seen.append((number, text))
        if any(marker in text for marker in (*markers, *whole)):
            left[0] = follow
            return follow > 0
        left[0] -= 1
        return left[0] > 0

    wanted = Wanted(tuple(m.encode() for m in markers), take, tuple(m.encode() for m in whole))
    scan(Stream(io.BytesIO(data).read), [wanted])
    return seen


def test_lines_are_numbered_from_one_and_others_are_skipped() -> None:
    assert _offered(b"x\nhere A\ny\n\nA again", "A") == [(2, "here A"), (5, "A again")]


def test_a_taker_may_ask_for_the_next_lines() -> None:
    assert _offered(b"A\n1\n2\n3\n", "A", follow=2) == [(1, "A"), (2, "1"), (3, "2")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_chunks_cut_nowhere_that_matters(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(scanning, "CHUNK_BYTES", size)
    data = b"first\nA marker line\r\nb\nanother A marker\nlast"
    assert [number for number, _ in _offered(data, "A marker", follow=1)] == [2, 3, 4, 5]


@given(
    st.lists(st.text(alphabet="AB12 \t|:", max_size=12), max_size=40),
    st.lists(st.sampled_from(["A", "B1", "1A2", "AB", " :", "2"]), min_size=1, max_size=4, unique=True),
)
def test_every_line_with_a_marker_is_offered(lines: list[str], markers: list[str]) -> None:
    """Digits are left out of the search, so more may be offered than asked for, never less."""
    offered = {number for number, _ in _offered("\n".join(lines).encode(), *markers)}
    assert {at for at, line in enumerate(lines, 1) if any(marker in line for marker in markers)} <= offered


def test_a_whole_line_belongs_to_one_taker() -> None:
    seen: list[str] = []
    other = Wanted((b"batch",), lambda number, text: bool(seen.append(f"other {text}")))
    owner = Wanted((), lambda number, text: bool(seen.append(f"owner {text}")), (b"Decode batch",))
    scan(Stream(io.BytesIO(b"Decode batch 1\nbatch 2\n").read), [other, owner])
    assert seen == ["owner Decode batch 1", "other batch 2"]


def test_colours_are_taken_out_before_markers_are_searched() -> None:
    assert _offered(b"\x1b[1;31mDec\x1b[0mode\x1b]0;title\x07 A\n", "Decode") == [(1, "Decode A")]


def test_progress_bars_are_cut_into_their_states() -> None:
    assert states(b"0%|  | 0/9\r50%|# | 5/9\r100%|##| 9/9\r") == ["0%|  | 0/9", "50%|# | 5/9", "100%|##| 9/9"]
    assert states(b"windows line\r") == ["windows line"]


def test_quotes_and_entities_of_web_pages_go() -> None:
    assert cleaned(b"> > a &quot;b&quot; &gt; c &amp;&#39;") == 'a "b" > c &\''
    assert cleaned(b"| a > b |") == "| a > b |"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_byte_order_marks_choose_the_encoding(encoding: str) -> None:
    data = ("\ufeff" + "première A\nB\n").encode(encoding)
    assert _offered(data, "A") == [(1, "première A")]


def test_bad_bytes_are_replaced() -> None:
    assert _offered(b"caf\xe9 A\n", "A") == [(1, "caf\ufffd A")]


def test_a_line_without_end_is_bounded() -> None:
    data = b"A" + b"x" * (scanning.MAX_LINE_BYTES * 5)
    assert all(len(text) <= scanning.MAX_LINE_BYTES for _, text in _offered(data, "A"))
