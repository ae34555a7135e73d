"""Tables of nccl-tests (all_reduce_perf and others): microseconds by message size."""

from __future__ import annotations

import re

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "nccl-tests"
Q = Quantity
_HEAD = re.compile(r"^\s*#\s+size\s+count\s+type")
_DEVICE = re.compile(r"#\s+Rank\s+(\d+)\s+.*?device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_ROW = re.compile(
    r"^\s*(\d{1,15})\s+(\d{1,15})\s+(\w+)\s+(?:(\w+)\s+)?(?:-?\d+\s+)?([\d.]+)\s+([\d.]+)\s+([\d.]+)\s"
    r"+(\S+)(?:\s+([\d.]+))?"
)


class NcclTests:
    """One source's tables. In-place times are the second column; the out-of-place one is given."""

    name = READER
    markers: tuple[str, ...] = ("#       size", "# Rank ", "#  Rank", "#   Rank", "# nThread", "Collective test")

    def __init__(self) -> None:
        self._in_table = False

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if match := _DEVICE.search(text):
            Place(sink, READER, number, text).add(Q.GPU, match[2].strip())
            return True
        if _HEAD.match(text):
            self._in_table = True
            return True
        if not self._in_table:
            return text.lstrip().startswith("#")
        if text.lstrip().startswith("#") or not text.strip():
            return not text.lstrip().startswith("# Avg")
        match = _ROW.match(text)
        if match is None:
            self._in_table = False
            return False
        place = Place(sink, READER, number, text)
        microseconds = _float(match[5])
        if microseconds is not None and match[4] in ("sum", "prod", "max", "min", "avg"):
            place.add(Q.ALLREDUCE_US, microseconds, num_bytes=int(match[1]), name="nccl")
        return True

    def end(self, sink: Sink) -> None:
        return


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
