"""Framed messages over a socket between the engine's process and one rank, each with a deadline.

Knows nothing of what the messages mean. multiprocessing's Connection does not serve: its reads and writes wait for
ever once a message has begun, so a rank stopped in the middle of one would hang the engine.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

_HEADER = struct.Struct("<BQ")


class Kind(IntEnum):
    """What a frame is. The first four go to a rank, the last two come from it."""

    START = 0
    COMMAND = 1  # answered with the result
    QUIET_COMMAND = 2  # answered with an empty frame
    STOP = 3
    ANSWER = 4
    FAILURE = 5


@dataclass(frozen=True)
class Frame:
    """One message: its kind and its bytes."""

    kind: Kind
    body: bytes


class ChannelClosed(Exception):
    """The other end is gone, by intent or because its process ended."""


class Channel:
    """One end. `send` and `receive` raise ChannelClosed, and TimeoutError once `deadline` (monotonic) has passed.

    After a TimeoutError the stream may stand in the middle of a frame: only `close` is allowed then.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self) -> bool:
        """Whether a message, or the news that the other end is gone, waits to be received."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def send(self, kind: Kind, body: bytes = b"", deadline: float | None = None) -> None:
        self._limit(deadline)
        try:
            self._socket.sendall(_HEADER.pack(kind, len(body)) + body)
        except ConnectionError as error:
            raise ChannelClosed from error

    def receive(self, deadline: float | None = None) -> Frame:
        kind, size = _HEADER.unpack(self._read(_HEADER.size, deadline))
        return Frame(Kind(kind), self._read(size, deadline))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int, deadline: float | None) -> bytes:
        buffer = bytearray(size)
        rest = memoryview(buffer)
        while rest:
            self._limit(deadline)
            try:
                count = self._socket.recv_into(rest)
            except ConnectionError as error:
                raise ChannelClosed from error
            if count == 0:
                raise ChannelClosed
            rest = rest[count:]
        return bytes(buffer)

    def _limit(self, deadline: float | None) -> None:
        if deadline is None:
            self._socket.settimeout(None)
            return
        rest_s = deadline - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(rest_s)
