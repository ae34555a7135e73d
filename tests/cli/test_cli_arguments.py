"""Options that take several files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.cli.arguments import spread_values

TABLE = {"bench": frozenset({"--prompts", "--from"})}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", ""),
        ("bench m", "bench m"),
        ("bench m --prompts a", "bench m --prompts a"),
        ("bench m --prompts a b --json c", "bench m --prompts a --prompts b --json c"),
        ("bench m --prompts a b --prompts c d", "bench m --prompts a --prompts b --prompts c --prompts d"),
        ("bench m --prompts a b --from c d", "bench m --prompts a --prompts b --from c --from d"),
        ("bench m --prompts a - b", "bench m --prompts a --prompts - --prompts b"),
        ("bench m --prompts=a b", "bench m --prompts=a b"),
        ("bench m --prompts a -- b c", "bench m --prompts a -- b c"),
        ("bench m --prompts --json c", "bench m --prompts --json c"),
        ("bench --json c m --prompts a b", "bench --json c m --prompts a --prompts b"),
        ("run m --prompts a b", "run m --prompts a b"),
        ("--version", "--version"),
    ],
)
def test_spread_values(argv: str, expected: str) -> None:
    assert spread_values(argv.split(), TABLE) == expected.split()


@given(st.lists(st.sampled_from(["a", "-", "--", "--prompts", "--json", "-h", "--prompts=x"]), max_size=8))
def test_no_word_is_lost_and_twice_is_once(words: list[str]) -> None:
    argv = ["bench", *words]
    spread = spread_values(argv, TABLE)
    assert [word for word in spread if word != "--prompts"] == [word for word in argv if word != "--prompts"]
    assert spread_values(spread, TABLE) == spread
