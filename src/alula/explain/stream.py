"""Bytes that are read once, in order, with a look ahead; and the limits that a compressed file may not pass.

Knows nothing of file names or of what the bytes mean.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable

import msgspec

# What a broken compressed file makes its reader raise; EOFError is a file that was cut off. zstandard's own error is
# named where that module is opened.
DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far hostile or mistaken input is followed.

    A log compresses 10 to 100 times, seldom 200; deflate ends at 1032. The ratio is judged only once
    `ratio_free_bytes` came out of a container.
    """

    max_files: int = 10_000
    max_depth: int = 4  # containers inside containers
    max_ratio: int = 400
    ratio_free_bytes: int = 256 << 20
    max_expanded_bytes: int = 16 << 30  # out of all containers of one run together
    max_spooled_bytes: int = 2 << 30  # a zip file needs seeking: one that comes through a pipe is copied to disk


class Stream:
    """A source of bytes. `peek` looks ahead without taking; `read` takes; both return less only at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._source = read
        self._ahead = b""
        self.num_read = 0

    def peek(self, num_bytes: int) -> bytes:
        while len(self._ahead) < num_bytes:
            more = self._source(num_bytes - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead[:num_bytes]

    def read(self, num_bytes: int) -> bytes:
        """Up to `num_bytes`; b"" at the end only."""
        if self._ahead:
            taken, self._ahead = self._ahead[:num_bytes], self._ahead[num_bytes:]
        else:
            taken = self._source(num_bytes)
        self.num_read += len(taken)
        return taken


class FileView:
    """A Stream as the file object that Python's own decompressors and tarfile want."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, num_bytes: int = -1) -> bytes:
        return self._stream.read(num_bytes if num_bytes >= 0 else 1 << 20)


class Expansion:
    """Counts what comes out of containers, over one whole run, and says when it is too much."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_expanded = 0

    def guard(
        self, read: Callable[[int], bytes], num_packed: Callable[[], int], note: Callable[[str], None]
    ) -> Callable[[int], bytes]:
        """`read`, ended early (and noted) where the data is damaged or grows past the limits."""
        state = {"out": 0, "ended": 0}

        def guarded(num_bytes: int) -> bytes:
            if state["ended"]:
                return b""
            try:
                taken = read(num_bytes)
            except DAMAGE as error:
                taken = b""
                note(f"ends early or is damaged ({error or type(error).__name__}); what came before was read")
            state["out"] += len(taken)
            self.num_expanded += len(taken)
            excess = self._excess(state["out"], num_packed())
            if excess:
                note(excess)
            if excess or not taken:
                state["ended"] = 1
                return b""
            return taken

        return guarded

    def _excess(self, num_out: int, num_packed: int) -> str | None:
        limits = self.limits
        if num_out > limits.ratio_free_bytes and num_out > limits.max_ratio * max(num_packed, 1):
            return f"expands more than {limits.max_ratio} times; not read further"
        if self.num_expanded > limits.max_expanded_bytes:
            return f"more than {limits.max_expanded_bytes >> 20} MiB came out of archives; not read further"
        return None
