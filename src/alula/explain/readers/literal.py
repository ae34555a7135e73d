"""Reads what Python programs print of their objects: `ServerArgs(tp_size=8, bs=[1, 2], decode=PhaseConfig(...))`.

Also dict and list displays, JSON, and enum members in angle brackets. Tolerant: an unknown word is a string, a text
that is cut off gives what stood before the cut. Never evaluates anything.
"""

from __future__ import annotations

import re
from typing import Any

_MAX_DEPTH = 40
_MAX_TEXT = 1 << 18
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r"""(?:[rbuf]{0,2})('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.S)
_WORD = re.compile(r"[^\s,()\[\]{}=:'\"<>]+")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_ENUM = re.compile(r"<([^<>]*)>")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, Any] = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
_INTEGER = re.compile(r"[+-]?\d{1,18}\Z")
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?\Z")
_ESCAPE = re.compile(r"\\(.)", re.S)


def parse_literal(text: str) -> Any:
    """The object at the start of `text`: dict (also of a call's keywords), list, str, number, bool or None."""
    return _Parser(text[:_MAX_TEXT]).value(0)


def parse_call(text: str, name: str) -> dict[str, Any] | None:
    """The keywords of the first `name(...)` in `text`, or None if there is no such call."""
    start = text.find(name + "(")
    if start < 0:
        return None
    found = _Parser(text[start : start + _MAX_TEXT]).value(0)
    return found if isinstance(found, dict) else None


def is_closed(text: str, start: int = 0) -> bool:
    """Whether every bracket that opens after `start` closes, quotes taken into account."""
    depth = 0
    opened = False
    for match in re.finditer(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[()\[\]{}]""", text[start:], re.S):
        token = match[0]
        if token in "([{":
            depth += 1
            opened = True
        elif token in ")]}":
            depth -= 1
            if depth <= 0:
                return True
    return not opened


def word_value(word: str) -> Any:
    """A bare word as a value: None, a yes-or-no, a number, else the word."""
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.match(word):
        return int(word)
    return float(word) if _FLOAT.match(word) and len(word) < 40 else word


class _Parser:
    """Recursive descent with a bounded depth; deeper objects are skipped as text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Any:
        first = self._peek()
        if first in ("(", "[") and depth < _MAX_DEPTH:
            return self._list(depth)
        if first == "{" and depth < _MAX_DEPTH:
            return self._dict("{", depth)
        if match := _QUOTED.match(self._text, self._at):
            self._at = match.end()
            return _ESCAPE.sub(r"\1", match[1][1:-1]) if "\\" in match[1] else match[1][1:-1]
        if first == "<" and (match := _ENUM.match(self._text, self._at)):
            self._at = match.end()
            return match[1]
        return self._word(depth)

    def _word(self, depth: int) -> Any:
        match = _WORD.match(self._text, self._at)
        if match is None:
            self._at += 1  # a stray sign: step over it, so that every call makes progress
            return None
        self._at = match.end()
        if self._peek() == "(" and _NAME.fullmatch(match[0]) and depth < _MAX_DEPTH:
            return self._dict("(", depth)
        words = [match[0]]
        while (
            following := self._peek()
        ) and following not in ",()[]{}=":  # a value of several words, a time, a URL
            if (match := _WORD.match(self._text, self._at)) is None:
                words.append(following)
                self._at += 1
            else:
                words.append(match[0])
                self._at = match.end()
        return word_value(words[0]) if len(words) == 1 else " ".join(words)

    def _list(self, depth: int) -> list[Any]:
        closing = _CLOSING[self._text[self._at]]
        self._at += 1
        items = []
        while (following := self._peek()) and following != closing:
            if following in ",)]}":
                self._at += 1
                continue
            items.append(self.value(depth + 1))
        self._at += 1
        return items

    def _dict(self, opening: str, depth: int) -> dict[str, Any]:
        """`{key: value, ...}` or `(key=value, ...)`; values without a key are named by their place."""
        self._at += 1
        found: dict[str, Any] = {}
        while (following := self._peek()) and following != _CLOSING[opening]:
            if following in ",)]}=:":
                self._at += 1
                continue
            key = self._key(depth)
            if self._peek() in ("=", ":") and self._peek():
                self._at += 1
                found[str(key)] = self.value(depth + 1)
            else:
                found[str(len(found))] = key
        self._at += 1
        return found

    def _key(self, depth: int) -> Any:
        if match := _QUOTED.match(self._text, self._at):
            self._at = match.end()
            return match[1][1:-1]
        if (match := _NAME.match(self._text, self._at)) and self._after(match.end()) in ("=", ":"):
            self._at = match.end()
            return match[0]
        return self.value(depth + 1)

    def _after(self, position: int) -> str:
        end = self._skip(position)
        return self._text[end : end + 1]

    def _peek(self) -> str:
        """The next sign that is not a space; "" at the end."""
        self._at = self._skip(self._at)
        return self._text[self._at : self._at + 1]

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position
