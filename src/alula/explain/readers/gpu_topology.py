"""`nvidia-smi topo -m` and `topo -p2p`, also as vLLM's collect_env prints them, and the P2P test's switch lines."""

from __future__ import annotations

import re

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "GPU topology"
Q = Quantity
_HEAD = re.compile(r"^\s*GPU0\s+(?:GPU\d+|CPU Affinity|NIC\d+|mlx|NUMA)|^\s*GPU0\s*$")
_ROW = re.compile(r"^\s*(GPU|NIC|mlx5_)(\d{1,3})\s+(.*)$")
_LINK = re.compile(r"^(?:NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|X|C2C)$")
_P2P = {"OK": "ok", "CNS": "chipset not supported", "GNS": "GPU not supported", "TNS": "topology not supported",
        "NS": "not supported", "DR": "disabled by a registry key", "U": "unknown"}  # fmt: skip


class GpuTopology:
    """One source's matrices. Several copies of the same matrix (one a rank) are the same evidence."""

    name = READER
    markers: tuple[str, ...] = ("GPU0",)

    def __init__(self) -> None:
        self._columns: list[str] = []

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if _HEAD.match(text):
            self._columns = re.findall(r"\b(?:GPU|NIC)\d{1,3}\b|mlx\d_\d+", text)
            return True
        match = _ROW.match(text)
        if match is None or not self._columns:
            self._columns = self._columns if not text.strip() and self._columns else []
            return bool(self._columns)
        if match[1] == "GPU":
            self._row(Place(sink, READER, number, text), int(match[2]), match[3].split())
        return True

    def _row(self, place: Place, gpu: int, cells: list[str]) -> None:
        for column, cell in zip(self._columns, cells, strict=False):
            other = int(column[3:]) if column.startswith("GPU") else -1
            if other <= gpu or cell == "X":
                continue
            name = f"{gpu}-{other}"
            if cell in _P2P:
                place.add(Q.P2P, "ok" if cell == "OK" else "off", name=name)
                if cell != "OK":
                    place.add(Q.P2P_REASON, _P2P[cell], name=name)
            elif _LINK.match(cell):
                place.add(Q.LINK, cell, name=name)
            else:
                return

    def end(self, sink: Sink) -> None:
        return
