"""Counts of a request's speculation, and the identity: tokens emitted = drafts accepted + cycles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from alula.core.config import MAX_STEPS
from alula.spec.acceptance import accept_chain
from alula.spec.tally import Tally

TOKENS = st.integers(0, 1)
CHAINS = st.lists(TOKENS, max_size=MAX_STEPS).flatmap(
    lambda drafts: st.tuples(
        st.just(drafts), st.lists(TOKENS, min_size=len(drafts) + 1, max_size=len(drafts) + 1), st.booleans()
    )
)


@given(st.lists(CHAINS))
def test_emitted_is_accepted_and_cycles(cycles: list[tuple[list[int], list[int], bool]]) -> None:
    tally, emitted = Tally(), 0
    for drafts, draws, truncated in cycles:
        found = accept_chain(drafts, draws)
        tally.count(len(drafts), found.accepted, truncated)
        emitted += len(found.emitted)
    assert emitted == tally.accepted + tally.num_cycles
    assert tally.num_cycles == len(cycles)
    assert tally.num_truncated_cycles == sum(truncated for _, _, truncated in cycles)


@given(st.lists(CHAINS))
def test_positions_add_up(cycles: list[tuple[list[int], list[int], bool]]) -> None:
    """Unconditional counts: a draft at a position counts as accepted only with all before it."""
    tally = Tally()
    for drafts, draws, truncated in cycles:
        tally.count(len(drafts), accept_chain(drafts, draws).accepted, truncated)
    drafted, accepted = tally.drafted_per_position, tally.accepted_per_position
    assert len(drafted) == len(accepted) == max((len(drafts) for drafts, _, _ in cycles), default=0)
    assert (sum(drafted), sum(accepted)) == (tally.drafted, tally.accepted)
    assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    assert list(accepted) == sorted(accepted, reverse=True)
    assert list(drafted) == sorted(drafted, reverse=True)


def test_an_example() -> None:
    tally = Tally()
    for drafted, accepted in ((3, 2), (3, 0), (2, 2), (0, 0)):
        tally.count(drafted, accepted, truncated=False)
    assert (tally.num_cycles, tally.drafted, tally.accepted) == (4, 8, 4)
    assert tally.drafted_per_position == (3, 3, 2)
    assert tally.accepted_per_position == (2, 2, 0)
