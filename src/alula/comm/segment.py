"""One block of memory that all ranks of a host map: arrival words, and two slots of data for each rank.

It has no name. The engine's process makes it as an anonymous file and hands the descriptor to each rank as it starts,
so the kernel frees it with the last process that maps it, however that one ends: nothing can be left in /dev/shm, two
engines cannot meet in one name, and Python's resource tracker (which unlinks the segments of living processes before
3.13) has nothing to track. Nor does a container's small /dev/shm limit it. Knows nothing of tensors.

Layout, in lines of 64 bytes so that no two ranks write to one cache line:
    line 0            magic, number of ranks, slot bytes, port of the torch.distributed store (0: not open yet)
    line 1 + rank     the number of the last round the rank arrived in, the signatures of its last two rounds, and
                      the number of its collectives that went another way
    from line 1 + N   slots, by rank, two for each
    behind them       a block for each rank, in which it lets itself be seen (comm/watch.py)
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile

from alula.core.errors import RankFailure

MAGIC = 0x616C756C61
LINE_BYTES = 64
LINE_WORDS = LINE_BYTES // 8
SLOT_BYTES = 1 << 20
NUM_NOTES, NOTE_BYTES = 4, 192  # the last calls of a rank, in words
WATCH_BYTES = LINE_BYTES + NUM_NOTES * NOTE_BYTES
_NUM_RANKS, _SLOT_BYTES, _STORE_PORT = 1, 2, 3
_OTHER_CALLS = 3


class Segment:
    """The block, mapped. `words` are its int64 words; `memory` must outlive every tensor made over it.

    `memory` is never closed explicitly: torch keeps a reference to the buffer but no lock on it, so unmapping it
    under a living tensor would be a segmentation fault. It goes when its last user does.
    """

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self.memory).cast("q")
        if self.words[0] != MAGIC:
            raise RankFailure(
                "the memory shared by the ranks has another layout; are two versions of alula in use?"
            )
        self.num_ranks = self.words[_NUM_RANKS]
        self.slot_bytes = self.words[_SLOT_BYTES]

    def slot_offset(self, rank: int, parity: int) -> int:
        """First byte of one of the rank's two slots."""
        return (1 + self.num_ranks) * LINE_BYTES + (2 * rank + parity) * self.slot_bytes

    def watch_offset(self, rank: int) -> int:
        """First byte of the block in which a rank lets itself be seen."""
        return self.slot_offset(self.num_ranks, 0) + rank * WATCH_BYTES

    def arrivals(self) -> tuple[int, ...]:
        """The last round in which each rank arrived."""
        return tuple(self.words[(1 + rank) * LINE_WORDS] for rank in range(self.num_ranks))

    def progress(self) -> tuple[int, ...]:
        """A number for each rank that grows with each collective it enters, whatever the backend."""
        others = (self.words[(1 + rank) * LINE_WORDS + _OTHER_CALLS] for rank in range(self.num_ranks))
        return tuple(arrived + other for arrived, other in zip(self.arrivals(), others, strict=True))

    def count_call(self, rank: int) -> None:
        """For backends that do not meet in this block: lets `progress` see their calls."""
        self.words[(1 + rank) * LINE_WORDS + _OTHER_CALLS] += 1

    @property
    def store_port(self) -> int:
        return self.words[_STORE_PORT]

    def publish_store_port(self, port: int) -> None:
        self.words[_STORE_PORT] = port


def create_segment_file(num_ranks: int, slot_bytes: int = SLOT_BYTES) -> int:
    """A descriptor of a new anonymous file with the header written. The caller closes it once the ranks hold it."""
    if slot_bytes < LINE_BYTES or slot_bytes % LINE_BYTES:
        raise ValueError(f"slots have {slot_bytes} bytes; expected a positive multiple of {LINE_BYTES}")
    fd = _anonymous_file()
    os.ftruncate(fd, (1 + num_ranks) * LINE_BYTES + num_ranks * (2 * slot_bytes + WATCH_BYTES))
    header = (word.to_bytes(8, sys.byteorder) for word in (MAGIC, num_ranks, slot_bytes))
    os.pwrite(fd, b"".join(header), 0)
    return fd


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("alula", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # unlinked before anybody can see it
        return os.dup(file.fileno())
