"""Finds in a text, however long, the lines that somebody wants, without looking at the others in Python.

A chunk of a mebibyte is searched for each wanted marker as bytes; only lines that hold one are cut out, cleaned and
offered. So a gigabyte of text costs seconds, and what is held is one chunk. Knows no format.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from alula.explain.stream import Stream

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 18  # a dump of all server arguments is 15 KB; longer lines are cut
_COLOURS = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
_ENTITY = re.compile(r"&(?:quot|lt|gt|amp|#\d{1,5}|#x[0-9a-fA-F]{1,4});")
_QUOTE = re.compile(r"^(?:\s{0,3}>\s?)+")
# Requests that a server answered: most lines of many logs, and no evidence.
_ACCESS = re.compile(rb'"(?:GET|POST|HEAD|OPTIONS) [^"\r\n]* HTTP/[\d.]+"')
_DENSE = 64  # in one chunk: then these lines are set aside before the others are searched
_BYTE_ORDERS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Wanted(msgspec.Struct, frozen=True):
    """Who wants which lines. whole: lines with such a marker are offered to this taker alone."""

    markers: tuple[bytes, ...]
    take: Callable[[int, str], bool]  # line number from 1, cleaned text; True: the next line too
    whole: tuple[bytes, ...] = ()


def scan(stream: Stream, wanted: Sequence[Wanted]) -> None:
    """Offers every line of `stream` that holds a marker, in order, to those who want it."""
    scanner = _Scanner(wanted)
    for chunk in chunks(stream):
        scanner.chunk(chunk)


def chunks(stream: Stream) -> Iterator[bytes]:
    """The stream as UTF-8 text without colour codes, cut at line ends; b"" lines only where the text has them."""
    carry = b""
    for more in _as_utf8(stream):
        data = carry + more
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > MAX_LINE_BYTES:
            cut = len(data)  # a "line" without end: whatever it is, it is not held back
        carry = data[cut:]
        if cut:
            yield _plain(data[:cut])
    if carry:
        yield _plain(carry)


def _plain(data: bytes) -> bytes:
    return _COLOURS.sub(b"", data) if b"\x1b" in data else data


def _as_utf8(stream: Stream) -> Iterator[bytes]:
    head = stream.peek(4)
    decoder = None
    for mark, encoding in _BYTE_ORDERS:
        if head.startswith(mark):
            stream.read(len(mark))
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            break
    while chunk := stream.read(CHUNK_BYTES):
        yield decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk


class _Scanner:
    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted
        self._whole = [(marker, index) for index, one in enumerate(wanted) for marker in one.whole]
        self._by_marker: dict[bytes, list[int]] = {}
        for index, one in enumerate(wanted):
            for marker in one.markers:
                self._by_marker.setdefault(marker, []).append(index)
        self._following: set[int] = set()
        self._number = 0  # of the last line of earlier chunks

    def chunk(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if data.endswith(b"\n"):
            lines.pop()
        hits = self._hits(lines)
        index = 0
        for hit in sorted(hits):
            while self._following and index < hit:
                self._offer(index, lines[index], ())
                index += 1
            self._offer(hit, lines[hit], hits[hit])
            index = hit + 1
        while self._following and index < len(lines):
            self._offer(index, lines[index], ())
            index += 1
        self._number += len(lines)

    def _hits(self, lines: list[bytes]) -> dict[int, list[int]]:
        """Line index -> who wants it."""
        hits: dict[int, list[int]] = {}
        rest = range(len(lines))
        for marker, index in self._whole:
            found = [position for position in rest if marker in lines[position]]
            if found:
                hits.update((position, [index]) for position in found)
                rest_set = set(found)
                rest = [position for position in rest if position not in rest_set]  # type: ignore[assignment]
        text = b"\n".join([lines[position] for position in rest])
        if text.count(b" HTTP/1.") > _DENSE:
            rest = [position for position in rest if not _ACCESS.search(lines[position])]  # type: ignore[assignment]
            text = b"\n".join([lines[position] for position in rest])
        for marker, takers in self._by_marker.items():
            for row in _rows_with(text, marker):
                known = hits.setdefault(rest[row], [])
                known += [taker for taker in takers if taker not in known]
        return hits

    def _offer(self, index: int, line: bytes, takers: Iterable[int]) -> None:
        wants = self._following.union(takers) if self._following else takers
        following: set[int] = set()
        number = self._number + index + 1
        for text in states(line):
            for taker in wants:
                if self._wanted[taker].take(number, text):
                    following.add(taker)
                else:
                    following.discard(taker)
        self._following = following


def _rows_with(text: bytes, marker: bytes) -> Iterator[int]:
    """Which rows of `text` hold `marker`, each once."""
    row = counted = 0
    position = text.find(marker)
    while position >= 0:
        row += text.count(b"\n", counted, position)
        yield row
        counted = text.find(b"\n", position)
        if counted < 0:
            return
        position = text.find(marker, counted)


def states(line: bytes) -> list[str]:
    """The texts of one line: one, or the states of a progress bar that returned its carriage. Cleaned, never empty."""
    if len(line) > MAX_LINE_BYTES:
        line = line[:MAX_LINE_BYTES]
    if b"\r" not in line:
        return [cleaned(line)]
    return [cleaned(part) for part in line.split(b"\r") if part.strip()] or [""]


def cleaned(line: bytes) -> str:
    """A line as text: bad bytes replaced, quote marks of a reply and HTML entities of a web page taken away."""
    text = line.decode("utf-8", "replace")
    if ">" in text[:4]:
        text = _QUOTE.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text.replace("\x00", "\n") if "\x00" in text else text
