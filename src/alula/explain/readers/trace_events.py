"""Streams the events of a Chrome trace (PyTorch's Kineto among them), a few mebibytes of JSON at a time.

A piece is cut where one event ends and the next begins, and decoded as a list; a wrong cut leaves brackets open and
does not decode, so no cut is ever believed wrongly. Knows JSON and the event form, not what events mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

PIECE_BYTES = 4 << 20
_MAX_EVENT_BYTES = 64 << 20
_MAX_HEADER_BYTES = 32 << 20
_CUT_OFF = "the trace is cut off in the middle of an event; what came before was read"
_MAX_CUTS = 64  # places tried in one piece
_NOT_JSON = re.compile(rb"(?<=[:\s,\[])-?(?:NaN|Infinity|nan|inf)(?=\s*[,\]}])")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')


class Event(msgspec.Struct):
    """One event; times in microseconds. args stays undecoded: few events' are wanted."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Any = None
    tid: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(list[Event]).decode
_decode_loosely = msgspec.json.Decoder(list[dict[str, Any]]).decode


class TraceText:
    """The text of one trace. `header` is what stood before the events, up to a bound, once `events` has begun."""

    def __init__(self, stream: BinaryIO, note: Callable[[str], None]) -> None:
        self._stream, self._note = stream, note
        self.header = b""
        self.num_bytes = 0

    def events(self) -> Iterator[list[Event]]:
        """Pieces of the trace in order. What cannot be decoded is noted and left out."""
        buffer = self._begin()
        while data := self._stream.read(PIECE_BYTES):
            self.num_bytes += len(data)
            buffer += data
            piece, buffer = self._piece(buffer)
            if piece:
                yield piece
            elif len(buffer) > _MAX_EVENT_BYTES:
                self._note(f"no event in {len(buffer) >> 20} MiB of JSON; the rest of the trace was not read")
                return
        yield self._tail(buffer)

    def _begin(self) -> bytes:
        """Reads up to the first event."""
        buffer = b""
        while len(buffer) < _MAX_HEADER_BYTES:
            if match := _ARRAY.search(buffer):
                self.header = buffer[: match.start()]
                return buffer[match.end() :]
            if buffer.lstrip()[:1] == b"[":
                return buffer.lstrip()[1:]
            data = self._stream.read(1 << 16)
            if not data:
                break
            buffer += data
        self._note("no traceEvents in this trace")
        return b""

    def _piece(self, buffer: bytes) -> tuple[list[Event], bytes]:
        position = len(buffer)
        for _ in range(_MAX_CUTS):
            position = buffer.rfind(b"},", 0, position)
            if position < 0:
                break
            if buffer[position + 2 : position + 130].lstrip()[:1] not in (b"{", b""):
                continue
            if (found := _decoded(buffer[: position + 1])) is not None:
                return found, buffer[position + 2 :]
        return [], buffer

    def _tail(self, buffer: bytes) -> list[Event]:
        """The end: events up to the closing bracket, or up to where the text was cut off."""
        if not buffer.strip(b" \t\r\n],}"):
            return []
        position = len(buffer)
        for _ in range(_MAX_CUTS):
            position = buffer.rfind(b"}", 0, position)
            if position < 0:
                break
            if (found := _decoded(buffer[: position + 1])) is not None:
                if not buffer[position + 1 :].lstrip().startswith(b"]"):
                    self._note(_CUT_OFF)
                return found
        self._note(_CUT_OFF)
        return []


def _decoded(text: bytes) -> list[Event] | None:
    data = b"[" + text + b"]"
    try:
        return _decode(data)
    except msgspec.ValidationError:
        return _loosely(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    repaired = data
    if b"NaN" in data or b"Infinity" in data or b"nan" in data or b"inf" in data:
        repaired = _NOT_JSON.sub(b"null", data)
    try:
        repaired.decode()
    except UnicodeDecodeError:
        repaired = repaired.decode("utf-8", "replace").encode()
    return _loosely(repaired) if repaired != data else None


def _loosely(data: bytes) -> list[Event] | None:
    """The same with fields of unexpected types: numbers as text, null where a number should stand."""
    try:
        found = _decode_loosely(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [_event(one) for one in found]


def _event(fields: dict[str, Any]) -> Event:
    arguments = fields.get("args")
    return Event(
        ph=str(fields.get("ph", "")),
        name=str(fields.get("name", "")),
        cat=str(fields.get("cat", "")),
        ts=_float(fields.get("ts")),
        dur=_float(fields.get("dur")),
        pid=fields.get("pid"),
        tid=fields.get("tid"),
        args=msgspec.Raw(msgspec.json.encode(arguments if isinstance(arguments, dict) else {})),
    )


def _float(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if abs(number) < 1e18 else 0.0
