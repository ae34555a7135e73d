"""What each rank lets the others see of itself, in the memory that they share: that it lives, how far it is, what it
called last. Written by the rank alone, read by everybody, the engine's process too. Knows no rule about what it means
(comm/patience.py), and needs no torch: a rank beats before it has loaded it.

A rank's block at the segment's end, in words of 8 bytes:
    0  heartbeats so far      1  stage      2  0, or the begin of the wait under way      3  calls noted so far
    from byte 64              NUM_NOTES texts in turn: "phase<TAB>what was called", padded with zeros
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from alula.comm.segment import LINE_BYTES, NOTE_BYTES, NUM_NOTES, Segment

# Stages. A rank cannot beat while it loads libraries, since a loader may keep Python to itself for long.
ABSENT, STARTING, READY = 0, 1, 2
_BEATS, _STAGE, _WAIT, _CALLS = 0, 1, 2, 3


def as_note(phase: str, text: str) -> bytes:
    """What `note` takes: made once for each distinct call, since it is noted often."""
    return f"{phase}\t{text}".encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")


class RankWatch:
    """One rank's own block."""

    def __init__(self, segment: Segment, rank: int) -> None:
        self._memory = segment.memory
        self._words = segment.words
        self._line = segment.watch_offset(rank) // 8
        self._texts = segment.watch_offset(rank) + LINE_BYTES
        self._noted: list[bytes] = [b""] * NUM_NOTES
        self._num_calls = 0

    def beat(self) -> None:
        self._words[self._line + _BEATS] += 1

    def enter(self, stage: int) -> None:
        self._words[self._line + _STAGE] = stage

    def note(self, note: bytes) -> None:
        """Leaves word of a call that is about to be made. In steady state one store: the texts are there already."""
        self._num_calls = number = self._num_calls + 1
        place = number % NUM_NOTES
        if self._noted[place] is not note:
            self._noted[place] = note
            start = self._texts + place * NOTE_BYTES
            self._memory[start : start + NOTE_BYTES] = note
        self._words[self._line + _CALLS] = number

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it this rank does nothing but wait for others, or for a command."""
        self._words[self._line + _WAIT] = time.monotonic_ns()  # other waits have other numbers
        try:
            yield
        finally:
            self._words[self._line + _WAIT] = 0


class Watch:
    """All ranks' blocks, to be read."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.num_ranks = segment.num_ranks

    def beats(self, rank: int) -> int:
        return self._word(rank, _BEATS)

    def stage(self, rank: int) -> int:
        return self._word(rank, _STAGE)

    def wait(self, rank: int) -> int:
        """0 where the rank is at work; else a number that differs from one wait to the next."""
        return self._word(rank, _WAIT)

    def calls(self, rank: int) -> int:
        return self._word(rank, _CALLS)

    def progress(self) -> tuple[int, ...]:
        """A number for each rank that grows with each collective it enters."""
        calls = (self.calls(rank) for rank in range(self.num_ranks))
        return tuple(entered + noted for entered, noted in zip(self._segment.progress(), calls, strict=True))

    def phase(self, rank: int) -> str | None:
        """The phase of the rank's last call; None before the first."""
        notes = self._notes(rank)
        return notes[-1][0] if notes else None

    def last_calls(self, rank: int) -> tuple[str, ...]:
        """The rank's last calls, the newest at the end."""
        return tuple(text for _, text in self._notes(rank))

    def _notes(self, rank: int) -> list[tuple[str, str]]:
        number = self.calls(rank)
        notes = []
        for call in range(max(1, number - NUM_NOTES + 1), number + 1):
            start = self._segment.watch_offset(rank) + LINE_BYTES + call % NUM_NOTES * NOTE_BYTES
            raw = bytes(self._segment.memory[start : start + NOTE_BYTES])
            phase, _, text = raw.rstrip(b"\0").decode(errors="replace").partition("\t")
            notes.append((phase, text))
        return notes

    def _word(self, rank: int, place: int) -> int:
        return self._segment.words[self._segment.watch_offset(rank) // 8 + place]
