"""Tokens to text up to a stop, with the number of tokens that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from alula.engine.text_stream import TextPiece, TextStream

# A vocabulary of byte strings; the last two are parts of "€", and 7 has no text.
TOKENS = [b"a", b"b", b"ab", b"ba", b"aab", b" ", b"\xe2\x82\xac", b"", b"\xe2", b"\x82\xac"]


def decode(ids: Sequence[int]) -> str:
    return b"".join(TOKENS[i] for i in ids).decode(errors="replace")


def play(ids: Sequence[int], stops: Sequence[str]) -> tuple[str, TextPiece]:
    """Everything shown, and the last piece."""
    stream = TextStream(decode, stops)
    text, piece = "", TextPiece("", None, 0)
    for token_id in ids:
        piece = stream.push(token_id)
        text += piece.text
        if piece.stopped:
            return text, piece
    return text + stream.flush(), piece


@given(
    ids=st.lists(st.integers(0, 7), max_size=30),
    stops=st.lists(st.text(alphabet="ab €", min_size=1, max_size=5), max_size=3),
)
def test_against_a_search_of_the_whole_text(ids: list[int], stops: list[str]) -> None:
    shown, piece = play(ids, stops)
    whole = decode(ids)
    ends = [end for end in range(len(whole) + 1) for stop in stops if whole[:end].endswith(stop)]
    if not ends:
        assert (shown, piece.stop, piece.num_kept_tokens) == (whole, None, len(ids))
        return
    stop = max((stop for stop in stops if whole[: ends[0]].endswith(stop)), key=len)
    assert piece.stop == stop and shown == whole[: ends[0] - len(stop)]
    starts = [len(decode(ids[:i])) for i in range(len(ids))]
    assert piece.num_kept_tokens == sum(start < len(shown) for start in starts)


def test_the_stop_is_found_with_the_token_that_completes_it() -> None:
    stream = TextStream(decode, ["aba"])
    assert stream.push(5) == TextPiece(" ", None, 1)
    assert stream.push(0) == TextPiece("", None, 2)
    assert stream.push(1) == TextPiece("", None, 3)
    assert stream.push(2) == TextPiece("", "aba", 1)  # "ab": its b is cut off too


def test_a_token_that_is_cut_through_is_kept() -> None:
    text, piece = play([5, 4, 1], ["abb"])  # " " "aab" "b"
    assert (text, piece.num_kept_tokens) == (" a", 2)
    text, piece = play([4, 1], ["aabb"])
    assert (text, piece.num_kept_tokens) == ("", 0)


def test_tokens_that_share_a_character_go_together() -> None:
    text, piece = play([0, 8, 9, 1], ["€b"])
    assert (text, piece.num_kept_tokens) == ("a", 1)
    text, piece = play([0, 8, 9, 1], ["b"])
    assert (text, piece.num_kept_tokens) == ("a€", 3)


def test_what_was_held_back_comes_at_the_end() -> None:
    assert play([0, 1], ["abc"])[0] == "ab"
    assert play([0, 8], ["abc"])[0] == "a\ufffd"
    assert play([0, 1, 8], ["b\ufffd"])[0] == "a"


def test_a_prompt_gives_context_but_no_text_and_no_stop() -> None:
    stream = TextStream(decode, ["ab"], prompt_ids=[0, 0])
    assert stream.push(1) == TextPiece("b", None, 1)
    assert stream.push(2) == TextPiece("", "ab", 1)
