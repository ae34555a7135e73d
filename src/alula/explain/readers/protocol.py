"""What a reader is: a class that turns one foreign format into evidence and never concludes.

Two kinds. A line reader is offered single lines of a text, together with other readers, so that a file is scanned once
whatever it mixes. A stream reader takes a whole file whose head it recognises (JSON traces, records, configs).
"""

from __future__ import annotations

from typing import BinaryIO, Protocol

from alula.explain.sink import Sink

HEAD_BYTES = 65536  # what a stream reader may look at to recognise its format


class LineReader(Protocol):
    """Made anew for each source, so it may remember earlier lines.

    markers: a line that holds none of these (case matters) is not offered, unless the reader asked for it. Lines are
    decoded (bad bytes replaced), without colour codes and line ends, cut at a carriage return into the states of a
    progress bar, and bounded in length.
    """

    name: str
    markers: tuple[str, ...]

    def line(self, number: int, text: str, sink: Sink) -> bool:
        """Reads one line, numbered from 1. True: offer me the next line too, whatever it holds (a table goes on)."""
        ...

    def end(self, sink: Sink) -> None:
        """The source has ended; what was held back goes into the sink."""
        ...


class StreamReader(Protocol):
    """Takes a whole file."""

    name: str

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins like this (up to HEAD_BYTES, decompressed) is of this format."""
        ...

    def read(self, stream: BinaryIO, sink: Sink) -> None:
        """Reads to the end in bounded memory. A cut-off or broken end is a note in the sink, not an error."""
        ...
