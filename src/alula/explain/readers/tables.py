"""Tables of benchmark results: Markdown, CSV, tab-separated, box-drawn. Rows become values with coordinates.

A row is plain or speculative by its words or by its number of drafts; a column likewise by its head. What a column
means is in `labels`. A table without any known column is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from alula.explain.readers.found import Place, number
from alula.explain.readers.labels import Meaning, meaning_of, side_of
from alula.explain.sink import Sink
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity

READER = "tables"
Q = Quantity
_MAX_COLUMNS, _MAX_ROWS, _MAX_VARIANT, _MAX_HEAD = 64, 5000, 80, 48
_RULE = re.compile(r"^[\s|│┃+\-=:─━┼┿╪├┤┬┴┌┐└┘╞╡]+$")
_TRIPLE = re.compile(r"^\(?\s*(\d{1,3})\s*[,/]\s*(\d{1,3})\s*[,/]\s*(\d{1,4})\s*\)?$")
_TRIPLE_IN_LABEL = re.compile(r"\(\s*(\d{1,3})\s*[,/]\s*(\d{1,3})\s*[,/]\s*(\d{1,4})\s*\)")
_STEPS_IN_LABEL = re.compile(r"\b(?:k|n|mtp|steps|depth|num_speculative_tokens|draft)[ \-=:]*?(\d{1,2})\b", re.I)
_PLAIN_TEST = re.compile(r"\|\s*tg\d+\s*\|")  # llama-bench: text generation, one token at a time
_MAX_VERIFY_ROWS = 256  # of a forward in a sweep; more is a prompt
_LOAD_IN_HEAD = re.compile(r"\b(?:bs|c|batch|conc(?:urrency)?)[ =]?(\d{1,5})\b", re.I)
_VARIABLE_IN_LABEL = re.compile(r"\b[A-Z]+_[A-Z_]+=\S+")
_RATES = (Q.TOKENS_PER_S, Q.PLAIN_TOKENS_PER_S, Q.SPEC_TOKENS_PER_S)


class Tables:
    """One source's tables. A header is a row whose columns are known; rows follow until one does not fit."""

    name = READER
    # Commas and tabs stand in every second log line: such tables are read where a whole file is one (`documents`).
    markers: tuple[str, ...] = ("|", "│", "┃", "_t/s")

    def __init__(self) -> None:
        self._header: list[Meaning | None] = []
        self._heads: list[str] = []
        self._separator = ""
        self._num_rows = 0

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if self._header:
            if _RULE.match(text) and text.strip():
                return True
            cells = _cells(text, self._separator)
            if len(cells) == len(self._header) and self._num_rows < _MAX_ROWS:
                self._num_rows += 1
                self._row(Place(sink, READER, number, text), cells)
                return True
            self._header = []
        return self._begins(text)

    def _begins(self, text: str) -> bool:
        return self.header(text, _separator(text, ("|", "│", "┃")) or ("" if "_t/s" not in text else " "))

    def header(self, text: str, separator: str) -> bool:
        """Takes a line as the head of a table, if it is one."""
        cells = _cells(text, separator) if separator else []
        if not 2 <= len(cells) <= _MAX_COLUMNS:
            return False
        meanings = [meaning_of(cell) for cell in cells]
        measured = [one for one in meanings if one and one.quantity and one.axis is None]
        numbers = sum(number(cell) is not None for cell in cells)
        known = sum(one is not None for one in meanings)
        is_loose = separator in ",;\t"  # such signs stand in any line
        if is_loose and (known * 2 < len(cells) or any(len(cell) > _MAX_HEAD or ": " in cell for cell in cells)):
            return False
        if not measured or numbers * 2 > len(cells):
            return False
        self._header, self._heads, self._separator, self._num_rows = meanings, cells, separator, 0
        return True

    def _row(self, place: Place, cells: Sequence[str]) -> None:
        scope, words = _coordinates(self._header, self._heads, cells)
        if scope is None:
            return
        side = _side(words, scope)
        if side is not None and not self._has_rates():
            label = Label.BASELINE if side is Q.PLAIN_TOKENS_PER_S else Label.SPECULATIVE
            place.sink.begin_run(label=label, name=words[:_MAX_VARIANT])
        for meaning, head, cell in zip(self._header, self._heads, cells, strict=True):
            if meaning is not None and meaning.quantity is not None and meaning.axis is None:
                _value(place, meaning, head, cell, scope, side)
        if "batch" in scope and any(one and one.quantity is Q.CONCURRENCY for one in self._header):
            place.add(Q.CONCURRENCY, int(str(scope["batch"])))

    def _has_rates(self) -> bool:
        """Whether the table has a column whose quantity itself says which side a row is."""
        sided = (Q.TOKENS_PER_S, Q.STEP_MS)
        return any(one is not None and one.quantity in sided for one in self._header)

    def end(self, sink: Sink) -> None:
        return


def _value(
    place: Place, meaning: Meaning, head: str, cell: str, scope: dict[str, object], side: Quantity | None
) -> None:
    quantity = meaning.quantity
    if quantity in (Q.MODEL, Q.DATASET):
        place.add(quantity, cell.strip("` "))
        return
    value = number(cell.strip("*` ~≈"))
    if value is None or quantity is None:
        return
    factor = 0.01 if quantity is Q.ACCEPTED_PER_DRAFTED and ("%" in cell or value > 1.0) else meaning.factor
    if quantity is Q.TOKENS_PER_S and _PLAIN_TEST.search(place.text):
        place.add(Q.PLAIN_TOKENS_PER_S, value)
        return
    if quantity is Q.TOKENS_PER_S and "width" in scope and "variant" not in scope:
        if 0 < int(str(scope["width"])) <= _MAX_VERIFY_ROWS and value > 0:
            place.add(Q.FORWARD_MS, 1000.0 * float(str(scope["width"])) / value, phase="verify", **scope)
        return
    column_side = side_of(head)
    if quantity is Q.TOKENS_PER_S and (column_side or side) is not None:
        quantity = column_side or side or quantity
    elif quantity is Q.STEP_MS and side is not None:
        quantity = Q.PLAIN_STEP_MS if side is Q.PLAIN_TOKENS_PER_S else Q.CYCLE_MS
    if quantity is Q.TOKENS_PER_CYCLE and (value < 1.0 or (side is Q.PLAIN_TOKENS_PER_S and value == 1.0)):
        return
    if quantity in (Q.PLAIN_TOKENS_PER_S, Q.PLAIN_STEP_MS):
        scope = {name: one for name, one in scope.items() if name not in ("steps", "variant", "width")}
    if (load := _LOAD_IN_HEAD.search(head)) and "batch" not in scope:
        scope = {**scope, "batch": int(load[1])}
    if meaning.position is not None:
        scope = {**scope, "position": meaning.position}
    if value * factor <= 1.0 or quantity not in (Q.ACCEPTANCE, Q.ACCEPTED_PER_DRAFTED):
        place.add(quantity, value * factor, **scope)


def _coordinates(
    header: Sequence[Meaning | None], heads: Sequence[str], cells: Sequence[str]
) -> tuple[dict[str, object] | None, str]:
    """Where in a sweep a row stands, and its words. None for a row that is a header again."""
    scope: dict[str, object] = {}
    words: list[str] = []
    if all(number(cell) is None for cell in cells):
        return None, ""
    for meaning, cell in zip(header, cells, strict=True):
        plain = cell.strip("*` ")
        if triple := _TRIPLE.match(plain):
            scope |= {"steps": int(triple[1]), "width": int(triple[3]), "variant": plain.strip("() ")}
        elif meaning is not None and meaning.axis in ("batch", "steps", "width", "num_bytes"):
            value = number(plain)
            if value is not None and value == int(value) and 0 <= value < 1e12:
                scope[meaning.axis] = int(value)
            else:
                words.append(plain)
        elif number(plain) is None or (meaning is None or meaning.axis == "label"):
            words.append(plain)
    text = " ".join(words)
    if "steps" not in scope and (match := _TRIPLE_IN_LABEL.search(text)):
        scope |= {"steps": int(match[1]), "width": int(match[3]), "variant": match[0].strip("() ")}
    if "steps" not in scope and (match := _STEPS_IN_LABEL.search(text)):
        scope["steps"] = int(match[1])
    if match := _VARIABLE_IN_LABEL.search(text):
        scope["variant"] = match[0]
    elif text and not scope and side_of(text) is None:
        scope["variant"] = text[:_MAX_VARIANT]  # rows that differ in something else than drafts or load
    return scope, text


def _side(words: str, scope: dict[str, object]) -> Quantity | None:
    if scope.get("steps") == 0:
        return Q.PLAIN_TOKENS_PER_S
    return side_of(words) or (Q.SPEC_TOKENS_PER_S if scope.get("steps") else None)


def _separator(text: str, signs: Sequence[str]) -> str:
    return next((sign for sign in signs if sign in text), "")


def _cells(text: str, separator: str) -> list[str]:
    if separator not in text:
        return []
    if separator == " ":
        return text.split()[: _MAX_COLUMNS + 1]
    stripped = text.strip() if separator != "\t" else text.strip("\n")
    parts = stripped.split(separator)
    if separator in "|│┃" and separator:
        parts = parts[1:] if not parts[0].strip() else parts
        parts = parts[:-1] if parts and not parts[-1].strip() else parts
    return [part.strip().strip('"') for part in parts[: _MAX_COLUMNS + 1]]


class KeyValue(msgspec.Struct, frozen=True):
    """One row of a two-column table: `| Number of concurrency | 20 |`."""

    label: str
    value: str


def key_value(text: str) -> KeyValue | None:
    separator = _separator(text, ("|", "│", "┃"))
    cells = _cells(text, separator) if separator else []
    return KeyValue(cells[0], cells[1]) if len(cells) == 2 and number(cells[1]) is not None else None
