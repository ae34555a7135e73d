"""Where a value stands, and how it is handed to the sink: what all readers share. Also the tags of workers.

Knows prefixes of log lines, no engine.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from alula.explain.sink import Sink
from alula.profile.evidence import Scope, Value
from alula.profile.quantities import Quantity

# How a new log line begins, of whatever engine; a line that does not may be the rest of a wrapped one.
LOG_START = re.compile(
    r"^\s*(?:\([A-Za-z_][\w .]*pid=\d+[^)]*\)\s*)*"
    r"(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\[?(?:INFO|WARNING|ERROR|DEBUG|WARN|CRITICAL)\b|\S+:\d+:\d+ \[\d+\]"
    r"|\[(?:DP\d+ )?(?:[PT]P\d+)|\[TRT-LLM\]|\[\d\d/\d\d/\d{4})"
)
_RANK = re.compile(r"\bTP(\d{1,4})\b|_TP(\d{1,4})\b")
_PID = re.compile(r"\bpid=(\d{1,10})\b")


class Place(msgspec.Struct, frozen=True):
    """The line that is being read, and by whom."""

    sink: Sink
    reader: str
    line: int | None
    text: str
    engine: str | None = None

    def add(self, quantity: Quantity, value: Value | None, **scope: object) -> None:
        """One value; None, which an absent setting gives, adds nothing."""
        if value is None:
            return
        self.sink.add(quantity, value, **self._place(scope))

    def sample(self, quantity: Quantity, value: float | None, **scope: object) -> None:
        if value is None:
            return
        self.sink.sample(quantity, value, **self._place(scope))

    def _place(self, scope: dict[str, Any]) -> dict[str, Any]:
        return {
            "line": self.line,
            "text": self.text,
            "engine": self.engine,
            "reader": self.reader,
            "scope": Scope(**scope) if scope else None,
        }


def rank_of(text: str) -> int | None:
    """The tensor-parallel rank in a line's prefix: `[... TP3]`, `(Worker_TP4 pid=424)`."""
    match = _RANK.search(text[:120])
    return int(match[1] or match[2]) if match else None


def worker_of(text: str) -> str | None:
    """The process tag in a line's prefix, as printed: "TP3", "pid=420"."""
    rank = rank_of(text)
    if rank is not None:
        return f"TP{rank}"
    pids = _PID.findall(text[:120])
    return f"pid={pids[-1]}" if pids else None


def number(text: str) -> float | None:
    """A printed number, with thousands separators or a unit behind; None for anything else."""
    match = re.match(r"\s*([+-]?\d[\d,_]*\.?\d*(?:[eE][+-]?\d{1,3})?)", text)
    if match is None:
        return None
    digits = match[1].replace(",", "").replace("_", "")
    return float(digits) if len(digits) < 40 else None


def whole(text: str | None) -> int | None:
    """A printed whole number of sane length."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None
