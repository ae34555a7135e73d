"""What ranks show of themselves, how long they wait for each other, and what is said then; with a made-up clock."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.comm.faults import BEHIND, BITS, CALLS, ENDED, SILENT, STUCK, Fault, account, likely_cause
from alula.comm.patience import ABSENT_S, PATIENCE, START_PATIENCE_S, START_SILENCE_S, Patience, Peers
from alula.comm.segment import NOTE_BYTES, NUM_NOTES, Segment, create_segment_file
from alula.comm.watch import READY, STARTING, RankWatch, Watch, as_note

DEADLINE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Ranks:
    """Three ranks; 0 waits for the others. `beating` ranks beat at every look."""

    def __init__(self, stage: int = READY) -> None:
        fd = create_segment_file(3, 64)
        self.segment = Segment(fd)
        os.close(fd)
        self.own = [RankWatch(self.segment, rank) for rank in range(3)]
        for own in self.own:
            own.enter(stage)
        self.clock = Clock()
        self.beating = {0, 1, 2}
        self.patience = Patience(Watch(self.segment), DEADLINE_S, self.clock)

    def wait(
        self, seconds: float, step_s: float = 0.1, peers: tuple[int, ...] = (1, 2)
    ) -> tuple[Fault | None, float]:
        """(fault, seconds until it was found)."""
        begin = self.clock.now_s
        while self.clock.now_s < begin + seconds:
            self.clock.now_s += step_s
            for rank in self.beating:
                self.own[rank].beat()
            if fault := self.patience.look(peers):
                return fault, self.clock.now_s - begin
        return None, seconds


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    yield Ranks()


def test_a_rank_without_a_heartbeat_is_given_up_after_the_deadline(ranks: Ranks) -> None:
    ranks.beating = {0, 1}
    fault, waited_s = ranks.wait(60.0)
    assert fault is not None and (fault.kind, fault.ranks) == (SILENT, (2,))
    assert waited_s == pytest.approx(DEADLINE_S, abs=0.2)


def test_a_late_heartbeat_counts(ranks: Ranks) -> None:
    ranks.beating = {0, 1}
    assert ranks.wait(DEADLINE_S - 1.0)[0] is None
    ranks.own[2].beat()
    assert ranks.wait(DEADLINE_S - 1.0)[0] is None


def test_a_rank_that_beats_has_more_time_and_the_one_behind_is_named(ranks: Ranks) -> None:
    for rank, calls in enumerate((7, 7, 5)):
        for _ in range(calls):
            ranks.own[rank].note(as_note("verify", "all_reduce"))
    fault, waited_s = ranks.wait(60.0)
    assert fault is not None and (fault.kind, fault.ranks) == (BEHIND, (2,))
    assert waited_s == pytest.approx(PATIENCE * DEADLINE_S, abs=0.2)


def test_where_nobody_computes_the_deadline_is_enough(ranks: Ranks) -> None:
    with ranks.own[1].waiting(), ranks.own[2].waiting():
        fault, waited_s = ranks.wait(60.0)
    assert fault is not None and (fault.kind, fault.ranks) == (STUCK, (1, 2))
    assert waited_s == pytest.approx(DEADLINE_S, abs=0.2)


def test_a_rank_that_goes_from_wait_to_wait_is_not_stuck(ranks: Ranks) -> None:
    with ranks.own[1].waiting():
        for _ in range(4):
            with ranks.own[2].waiting():
                assert ranks.wait(DEADLINE_S / 3)[0] is None


def test_only_time_in_which_the_waiting_rank_runs_counts(ranks: Ranks) -> None:
    ranks.beating = {0, 1}
    for _ in range(3):
        ranks.clock.now_s += 1000.0  # stopped, or its machine was suspended
        assert ranks.wait(1.0)[0] is None


@pytest.mark.parametrize(
    ("stage", "silent_s", "late_s"), [(STARTING, START_SILENCE_S, START_PATIENCE_S), (0, ABSENT_S, ABSENT_S)]
)
def test_a_rank_that_starts_has_more_time(stage: int, silent_s: float, late_s: float) -> None:
    ranks = Ranks(stage)
    fault, waited_s = ranks.wait(2 * late_s)
    assert fault is not None and fault.kind == BEHIND
    assert waited_s == pytest.approx(late_s, abs=0.2)
    ranks = Ranks(stage)
    ranks.beating = {0}
    fault, waited_s = ranks.wait(2 * silent_s)
    assert fault is not None and fault.kind == SILENT
    assert waited_s == pytest.approx(silent_s, abs=0.2)


def test_only_those_who_are_waited_for_are_blamed(ranks: Ranks) -> None:
    ranks.beating = {0, 1}
    fault, _ = ranks.wait(60.0, peers=(1,))
    assert fault is not None and (fault.kind, fault.ranks) == (BEHIND, (1,))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("draft", "verify")), st.text(st.characters(exclude_characters="\0\t"), max_size=300)
        ),
        max_size=12,
    )
)
def test_the_last_calls_are_kept(calls: list[tuple[str, str]]) -> None:
    fd = create_segment_file(2, 64)
    segment = Segment(fd)
    os.close(fd)
    own, watch = RankWatch(segment, 1), Watch(segment)
    for phase, text in calls:
        own.note(as_note(phase, text))
    assert watch.calls(1) == len(calls) and watch.calls(0) == 0
    assert watch.phase(1) == (calls[-1][0] if calls else None)
    found, expected = watch.last_calls(1), [text for _, text in calls[-NUM_NOTES:]]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        whole = len(theirs.encode()) < NOTE_BYTES - 10
        assert ours == theirs if whole else theirs.startswith(ours[:-1])


def test_notes_of_one_rank_touch_nothing_else() -> None:
    fd = create_segment_file(2, 64)
    segment = Segment(fd)
    os.close(fd)
    for rank in (0, 1):
        own = RankWatch(segment, rank)
        own.beat()
        own.enter(READY)
        for number in range(9):
            own.note(as_note("verify", f"{number} of rank {rank}" + "x" * 300))
    assert segment.arrivals() == (0, 0) and segment.progress() == (0, 0)
    watch = Watch(segment)
    for rank in (0, 1):
        assert (watch.beats(rank), watch.stage(rank), watch.wait(rank)) == (1, READY, 0)
        assert [text[:11] for text in watch.last_calls(rank)] == [f"{n} of rank {rank}" for n in range(5, 9)]


@pytest.mark.parametrize(
    ("kind", "ended_by", "step"),
    [
        (ENDED, signal.SIGKILL, "dmesg"),
        (ENDED, signal.SIGSEGV, "stack is on stderr"),
        (ENDED, signal.SIGBUS, "df /dev/shm"),
        (ENDED, 34, "native code"),
        (ENDED, None, "on stderr"),
        (SILENT, None, "SIGSTOP"),
        (BEHIND, None, "--rank-deadline"),
        (STUCK, None, "--no-graphs"),
        (CALLS, None, "versions"),
        (BITS, None, "--collectives torch_distributed"),
    ],
)
def test_each_fault_has_a_cause_and_a_next_step(kind: str, ended_by: int | None, step: str) -> None:
    assert step in likely_cause(kind, ended_by)


def test_a_failure_names_ranks_phase_and_calls(ranks: Ranks) -> None:
    peers = Peers(ranks.segment, 0, DEADLINE_S)
    ranks.own[1].note(as_note("extend", "all_reduce of 8 bytes"))
    found = peers.failure(Fault(kind=SILENT, ranks=(1, 2), waited_s=10.04), "all_gather of 4 bytes")
    assert found.rank == 1
    text = str(found)
    assert text.startswith(
        "rank 0 waited in all_gather of 4 bytes; ranks 1, 2 did not arrive (no heartbeat for 10 s"
    )
    assert account(peers.watch, (1,)) in text and "phase extend; its last calls: all_reduce of 8 bytes." in text
    assert "Rank 2 has made no collective call yet." in text and "Likely cause: the process was stopped" in text
