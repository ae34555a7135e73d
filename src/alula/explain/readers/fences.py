"""Structured text inside other text: a fenced block of JSON, YAML or CSV, or a line that is a JSON object."""

from __future__ import annotations

from typing import Any

import msgspec

from alula.explain.readers.documents import read_document
from alula.explain.readers.found import Place
from alula.explain.readers.tables import Tables
from alula.explain.readers.yaml_subset import parse_yaml
from alula.explain.sink import Sink

READER = "JSON and YAML"
_LANGUAGES = ("json", "yaml", "yml", "csv")
_MAX_BLOCK = 1 << 18
_KEYS = (
    '"speculative_algorithm"',
    '"specDecodingStats"',
    '"iterLatencyMS"',
    '"output_throughput"',
    '"architectures"',
    '"accept_length"',
    '"mean_tpot_ms"',
    '"vllm_config"',
    '"avg_spec_accept_length"',
)


class Fences:
    """One source's blocks and JSON lines."""

    name = READER
    markers: tuple[str, ...] = ("```", "~~~", *_KEYS)

    def __init__(self) -> None:
        self._kind = ""
        self._start = 0
        self._block: list[str] = []
        self._num_chars = 0

    def line(self, number: int, text: str, sink: Sink) -> bool:
        stripped = text.strip()
        if self._kind:
            if not stripped.startswith(("```", "~~~")) and self._num_chars < _MAX_BLOCK:
                self._block.append(text)
                self._num_chars += len(text)
                return True
            self._take(sink)
            return False
        if stripped.startswith(("```", "~~~")):
            if stripped.strip("`~ ").lower() not in _LANGUAGES:
                return False
            self._kind, self._start, self._block, self._num_chars = stripped.strip("`~ ").lower()[:4], number, [], 0
            return True
        start = text.find("{")
        if start >= 0 and (document := decode_json(text[start:].strip().rstrip(",").encode())) is not None:
            read_document(Place(sink, READER, number, text), document)
        return False

    def _take(self, sink: Sink) -> None:
        kind, self._kind = self._kind, ""
        text = "\n".join(self._block)
        place = Place(sink, READER, self._start, text[:400])
        if kind == "csv":
            read_csv(sink, text, self._start)
        elif kind == "json":
            read_document(place, decode_json(text.encode()))
        else:
            read_document(place, parse_yaml(text))

    def end(self, sink: Sink) -> None:
        if self._kind:
            self._take(sink)


def decode_json(data: bytes) -> Any:
    """The document, or None where there is none: bounded by the decoder's own depth."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def read_csv(sink: Sink, text: str, start: int) -> None:
    """A whole text that is a table with commas, semicolons or tabs."""
    lines = text.splitlines()
    if not lines:
        return
    separator = max((",", "\t", ";"), key=lines[0].count)
    tables = Tables()
    if tables.header(lines[0], separator):
        for offset, line in enumerate(lines[1:], 1):
            if not tables.line(start + offset + 1, line, sink):
                return
