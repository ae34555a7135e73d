"""Stop strings against a search character by character, however the text is cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from alula.engine.stops import StopMatcher

texts = st.text(alphabet="ab€", max_size=30)
some_stops = st.lists(st.text(alphabet="ab€", min_size=1, max_size=6), max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first moment at which the text ends with a stop; the longest such stop."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(text=texts, stops=some_stops, sizes=st.lists(st.integers(0, 5), max_size=20))
def test_any_cut_gives_what_a_search_gives(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown, found, pushed = "", None, ""
    for piece in cut(text, sizes):
        new, found = matcher.push(piece)
        shown, pushed = shown + new, pushed + piece
        if found:
            break
        assert len(pushed) - len(shown) <= max(map(len, stops), default=1) - 1  # what is held back is bounded
        assert oracle(pushed, stops) == (pushed, None)
    assert (shown + ("" if found else matcher.flush()), found) == oracle(text, stops)


@given(text=texts, stops=some_stops)
def test_nothing_is_held_that_cannot_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown, found = matcher.push(text)
    held = text[len(shown) :] if found is None else ""
    assert not held or any(stop.startswith(held) for stop in stops)


def test_examples() -> None:
    assert StopMatcher([]).push("anything") == ("anything", None)
    assert StopMatcher([""]).push("anything") == ("anything", None)
    assert StopMatcher(["\n\n"]).push("one\n\ntwo") == ("one", "\n\n")
    assert StopMatcher(["abcd", "bc"]).push("xabcd") == ("xa", "bc")  # complete first
    assert StopMatcher(["bc", "abc"]).push("xabc") == ("x", "abc")  # complete together: the longer
    straddling = StopMatcher(["<end>"])
    assert [straddling.push(piece) for piece in ("a<", "en", "<e", "nd", ">b")] == [
        ("a", None),
        ("", None),
        ("<en", None),
        ("", None),
        ("", "<end>"),
    ]
    released = StopMatcher(["stop"])
    assert released.push("sto") == ("", None) and released.flush() == "sto" and released.flush() == ""
