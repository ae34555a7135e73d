"""From names to sinks: opens what the user named, recognises each file by its content, and lets readers read it.

Knows which kind of reader a file wants, no format. One sink a file; what nobody recognised is an empty sink.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol, cast, runtime_checkable

from alula.explain.opening import Inputs, Source
from alula.explain.readers.documents import read_document
from alula.explain.readers.fences import decode_json, read_csv
from alula.explain.readers.found import Place
from alula.explain.readers.protocol import HEAD_BYTES, StreamReader
from alula.explain.readers.registry import LINE_READERS, STREAM_READERS
from alula.explain.readers.yaml_subset import parse_yaml
from alula.explain.scan import Wanted, scan
from alula.explain.sink import Sink
from alula.explain.stream import Stream
from alula.profile.evidence import Label


@runtime_checkable
class Finishing(Protocol):
    """A stream reader that compares files, and gives what it found once all are read."""

    def finish(self) -> None: ...


URL_SCHEMES = ("http://", "https://")
MAX_DOCUMENT_BYTES = 64 << 20
_DOCUMENT = "JSON and YAML"
_QUIET_SECONDS = 2.0  # a progress note no oftener than that
_NOT_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_YAML_LINE = re.compile(r"^\s*(?:#.*|-\s.*|[\w.\-\"'/]+:(?:\s.*)?|---.*)?$")
_YAML_START = re.compile(r"(?:\s*#.*\n|---.*\n|\s*\n)*[\w.\-]+:(?:[ \t].*)?\n")
_MANY_MEBIBYTES = 64


def read_inputs(names: Sequence[str], label: Label, note: Callable[[str], None]) -> list[Sink]:
    """One sink a file under `names`: paths, folders, archives, "-" (stdin), http:// URLs.

    note: gets progress and complaints, for stderr. Raises ModelNotFound for a path that does not exist; content never
    raises.
    """
    urls = [name for name in names if name.startswith(URL_SCHEMES)]
    inputs = Inputs([name for name in names if name not in urls], progress=_progress(note))
    readers = [kind() for kind in STREAM_READERS]  # one set for all files: the ranks of a trace are compared
    sinks = [read_source(source, label, readers) for source in inputs]
    for reader in readers:
        if isinstance(reader, Finishing):
            reader.finish()
    for url in urls:
        from alula.explain.live import read_url

        sinks += read_url(url, label, note)
    for one in inputs.notes:
        note(f"{one.source}: {one.text}")
    return sinks


def read_source(source: Source, label: Label, stream_readers: Sequence[StreamReader]) -> Sink:
    """Everything that some reader understands of one plain stream."""
    sink = Sink(source.name, label)
    head = source.stream.peek(HEAD_BYTES)
    for reader in stream_readers:
        if reader.recognises(head):
            reader.read(file_of(source.stream), sink)
            return sink
    kind = _kind(head)
    if kind == "binary":
        sink.note("not text and no trace; not read")
    elif kind == "text":
        read_lines(source.stream, sink)
    else:
        _read_document(kind, source.stream, sink)
    return sink


def read_lines(stream: Stream, sink: Sink) -> None:
    """Offers a text's lines to every line reader."""
    readers = [kind() for kind in LINE_READERS]
    wanted = [
        Wanted(
            markers=tuple(marker.encode() for marker in reader.markers),
            take=lambda number, text, reader=reader: reader.line(number, text, sink),  # type: ignore[misc]
            whole=tuple(marker.encode() for marker in getattr(reader, "whole", ())),
        )
        for reader in readers
    ]
    scan(stream, wanted)
    for reader in readers:
        reader.end(sink)


def _kind(head: bytes) -> str:
    """json | yaml | csv | binary | text, by how a file begins."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        return "json" if re.match(rb"[\[{]\s*[\[{\"\]}]", start) else "text"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "text"
    is_environment = re.match(rb"[A-Za-z_]\w*=[^\x00\n]*\x00(?:[A-Za-z_]|$)", head) is not None
    if not is_environment and len(_NOT_TEXT.findall(head)) * 20 > len(head):
        return "binary"
    lines = head[:8192].decode("utf-8", "replace").splitlines()[:40]
    num_yaml = sum(_YAML_LINE.match(line) is not None for line in lines)
    if (
        len(lines) > 2
        and num_yaml * 10 >= len(lines) * 7
        and _YAML_START.match(head[:8192].decode("utf-8", "replace"))
    ):
        return "yaml"
    if len(lines) > 1 and any(
        lines[0].count(sign) >= 1 and lines[0].count(sign) == lines[1].count(sign) for sign in ",\t;"
    ):
        return "csv"
    return "text"


def _read_document(kind: str, stream: Stream, sink: Sink) -> None:
    """A file that may be one document; if it is none after all, its lines are read."""
    data = b""
    while len(data) < MAX_DOCUMENT_BYTES and (chunk := stream.read(1 << 20)):
        data += chunk
    place = Place(sink, _DOCUMENT, 1, data[:400].decode("utf-8", "replace"))
    if kind == "json" and read_document(place, decode_json(data)):
        return
    if kind == "yaml" and read_document(place, parse_yaml(data.decode("utf-8", "replace"))):
        return
    if kind == "csv":
        read_csv(sink, data.decode("utf-8", "replace"), 1)
        if sink.num_runs:
            return
    read_lines(Stream(_both(data, stream)), sink)


def _both(data: bytes, rest: Stream) -> Callable[[int], bytes]:
    first = io.BytesIO(data)
    return lambda num_bytes: first.read(num_bytes) or rest.read(num_bytes)


class _Raw(io.RawIOBase):
    """A Stream below Python's own buffering, for readers that want a file."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        taken = self._stream.read(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)


def file_of(stream: Stream) -> BinaryIO:
    """A stream as a binary file: read, readline, iteration; no seeking."""
    return cast(BinaryIO, io.BufferedReader(_Raw(stream), 1 << 20))


def _progress(note: Callable[[str], None]) -> Callable[[str, int, int | None], None]:
    last = [time.monotonic()]

    def progress(name: str, num_bytes: int, size: int | None) -> None:
        now = time.monotonic()
        if num_bytes < _MANY_MEBIBYTES << 20 or now - last[0] < _QUIET_SECONDS:
            return
        last[0] = now
        share = f" of {size >> 20}" if size else ""
        note(f"{name}: {num_bytes >> 20}{share} MiB read")

    return progress
