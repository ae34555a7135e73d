"""Which drafts are accepted, and what is emitted: the longest prefix that agrees, and one token more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.spec.acceptance import Acceptance, accept_chain

TOKENS = st.integers(0, 2)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    drafts = draw(st.lists(TOKENS, max_size=8))
    return drafts, draw(st.lists(TOKENS, min_size=len(drafts) + 1, max_size=len(drafts) + 1))


@given(chains())
def test_the_emitted_tokens_are_the_targets_draws(chain: tuple[list[int], list[int]]) -> None:
    drafts, draws = chain
    found = accept_chain(drafts, draws)
    assert list(found.emitted) == draws[: found.accepted + 1]
    assert len(found.emitted) == found.accepted + 1


@given(chains())
def test_the_accepted_drafts_are_the_longest_prefix_that_agrees(chain: tuple[list[int], list[int]]) -> None:
    drafts, draws = chain
    accepted = accept_chain(drafts, draws).accepted
    assert drafts[:accepted] == draws[:accepted]
    assert accepted == len(drafts) or drafts[accepted] != draws[accepted]


@given(chains(), st.lists(TOKENS, min_size=8, max_size=8))
def test_draws_after_a_rejection_do_not_matter(chain: tuple[list[int], list[int]], others: list[int]) -> None:
    """They were drawn on a path that the target did not take."""
    drafts, draws = chain
    found = accept_chain(drafts, draws)
    end = found.accepted + 1
    assert accept_chain(drafts, draws[:end] + others[: len(draws) - end]) == found


def test_a_match_after_a_mismatch_is_not_counted() -> None:
    assert accept_chain([5, 6, 7], [5, 9, 7, 8]) == Acceptance(1, (5, 9))


def test_plain_decoding_is_an_empty_chain() -> None:
    assert accept_chain([], [4]) == Acceptance(0, (4,))


@pytest.mark.parametrize(("drafts", "draws"), [([], []), ([1], [1]), ([1, 2], [1, 2, 3, 4])])
def test_there_is_one_draw_more_than_drafts(drafts: list[int], draws: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{len(drafts)} drafts need {len(drafts) + 1} draws, found {len(draws)}"):
        accept_chain(drafts, draws)
