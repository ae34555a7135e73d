"""Finds in a text, however long, the lines that somebody wants, without looking at the others in Python.

Lines that differ in digits only have one *shape*. Each new shape is searched for the wanted markers once; who wants
it is remembered, so that a gigabyte of a log, which has few shapes, costs seconds. What is held is one chunk and a
bounded number of shapes. Knows no format.
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
# What docker, docker compose, Kubernetes and journald put in front of a program's own line.
_CONTAINER = re.compile(
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}Z |[\w.\-]{1,60}-\d{1,3} +\| "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,60} \S{1,60}\[\d+\]: )+"
)
_DIGITS = b"0123456789"
_MAX_SHAPES, _MAX_SHAPE_BYTES = 50_000, 2048
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
        self._markers = _Markers(wanted)
        self._shapes: dict[bytes, tuple[int, ...]] = {}  # line without digits -> who wants it
        self._following: set[int] = set()
        self._number = 0  # of the last line of earlier chunks

    def chunk(self, data: bytes) -> None:
        if data.endswith(b"\n"):
            data = data[:-1]
        lines = data.split(b"\n")
        takers = self._takers(data.translate(None, _DIGITS).split(b"\n"))
        index = 0
        for hit in [at for at, who in enumerate(takers) if who]:
            while self._following and index < hit:
                self._offer(index, lines[index], ())
                index += 1
            self._offer(hit, lines[hit], takers[hit])
            index = hit + 1
        while self._following and index < len(lines):
            self._offer(index, lines[index], ())
            index += 1
        self._number += len(lines)

    def _takers(self, shapes: list[bytes]) -> list[tuple[int, ...]]:
        """For each line, who wants it."""
        known = self._shapes.get
        found = [known(shape) for shape in shapes]
        new = list({shape for shape, who in zip(shapes, found, strict=True) if who is None})
        if len(self._shapes) > _MAX_SHAPES:
            self._shapes.clear()
        fresh = dict(zip(new, self._markers.takers(new), strict=True)) if new else {}
        self._shapes.update((shape, who) for shape, who in fresh.items() if len(shape) <= _MAX_SHAPE_BYTES)
        return [fresh[shape] if who is None else who for shape, who in zip(shapes, found, strict=True)]

    def _offer(self, index: int, line: bytes, takers: Iterable[int]) -> None:
        wants = sorted(self._following.union(takers)) if self._following else takers
        following: set[int] = set()
        number = self._number + index + 1
        for text in states(line):
            for taker in wants:
                if self._wanted[taker].take(number, text):
                    following.add(taker)
                else:
                    following.discard(taker)
        self._following = following


class _Markers:
    """Which takers want a line, by the markers in it. Markers lose their digits as lines do.

    A marker that holds another is looked for only in lines that hold that other one.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._by_marker: dict[bytes, list[int]] = {}
        self._whole: dict[bytes, int] = {}
        for index, one in enumerate(wanted):
            for marker in one.markers:
                self._by_marker.setdefault(marker.translate(None, _DIGITS), []).append(index)
            self._whole.update((marker, index) for marker in one.whole)
        names = sorted({*self._by_marker, *self._whole}, key=len)
        self._roots: dict[bytes, list[bytes]] = {}
        for name in names:
            root = next((one for one in self._roots if one in name), name)
            self._roots.setdefault(root, []).append(name)
        self._letters = [bytes([letter]) for letter in sorted(set(b"".join(self._roots)))]

    def takers(self, shapes: Sequence[bytes]) -> list[tuple[int, ...]]:
        found: list[list[int]] = [[] for _ in shapes]
        alone: dict[int, int] = {}
        text = b"\n".join(shapes)
        # A single byte is found thirty times as fast as a word: most markers fall here, since one of theirs is missing.
        missing = b"".join(letter for letter in self._letters if letter not in text)
        for root, names in self._roots.items():
            if len(root.translate(None, missing)) < len(root):
                continue
            for row in _rows_with(text, root):
                for name in names:
                    if name is root or name in shapes[row]:
                        found[row] += [one for one in self._by_marker.get(name, ()) if one not in found[row]]
                        if name in self._whole:
                            alone[row] = self._whole[name]
        return [(alone[row],) if row in alone else tuple(sorted(one)) for row, one in enumerate(found)]


def _rows_with(text: bytes, marker: bytes) -> Iterator[int]:
    """Which rows of `text` hold `marker`, each once. A marker of nothing but digits is empty here: every row."""
    if not marker:
        yield from range(text.count(b"\n") + 1)
        return
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
    """A line as text: bad bytes replaced; quote marks, HTML entities and what containers put in front taken away."""
    text = line.decode("utf-8", "replace")
    if ">" in text[:4]:
        text = _QUOTE.sub("", text)
    if text[:1].isalnum() and (prefix := _CONTAINER.match(text)):
        text = text[prefix.end() :]
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text.replace("\x00", "\n") if "\x00" in text else text
