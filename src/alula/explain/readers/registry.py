"""The readers that exist, by kind. A new format is a file with a class and a line here."""

from __future__ import annotations

from alula.explain.readers.protocol import LineReader, StreamReader
from alula.explain.readers.records import RecordsReader

LINE_READERS: tuple[type[LineReader], ...] = ()
STREAM_READERS: tuple[type[StreamReader], ...] = (RecordsReader,)
