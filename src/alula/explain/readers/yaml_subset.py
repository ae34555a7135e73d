"""The part of YAML that compose files, Kubernetes manifests and engine configs use: maps, lists, scalars, text blocks.

No anchors, no tags, no documents beyond plain ones: what is not understood is kept as text. Bounded in depth and size;
never evaluates anything.
"""

from __future__ import annotations

import re
from typing import Any

from alula.explain.readers.literal import parse_literal, word_value

MAX_LINES = 20_000
_MAX_DEPTH = 30
_KEY = re.compile(r"""^("[^"]*"|'[^']*'|[^\s:#\-\[\]{}"'][^:#\n]{0,120}?):(?:\s+(.*))?$""")


class _Line:
    __slots__ = ("indent", "text")

    def __init__(self, raw: str) -> None:
        self.text = raw.strip()
        self.indent = len(raw) - len(raw.lstrip(" "))


def parse_yaml(text: str) -> Any:
    """A dict, a list or None (not a map or list at all)."""
    lines = [raw.expandtabs(2).rstrip() for raw in text.split("\n")[:MAX_LINES]]
    kept = [_Line(line) for line in lines if line.strip() and not line.lstrip().startswith(("#", "---", "%"))]
    if not kept:
        return None
    value, _ = _block(kept, 0, 0)
    return value if isinstance(value, dict | list) else None


def _block(lines: list[_Line], at: int, depth: int) -> tuple[Any, int]:
    """The value whose first line is `at`, and the line behind it."""
    if depth > _MAX_DEPTH:
        return None, len(lines)
    if lines[at].text.startswith("- ") or lines[at].text == "-":
        return _sequence(lines, at, depth)
    if _KEY.match(lines[at].text):
        return _mapping(lines, at, depth)
    return _scalar(lines[at].text), at + 1


def _sequence(lines: list[_Line], at: int, depth: int) -> tuple[list[Any], int]:
    indent, items = lines[at].indent, []
    while at < len(lines) and lines[at].indent == indent and lines[at].text[:2] in ("- ", "-"):
        rest = lines[at].text[1:].lstrip()
        if not rest:
            at += 1
            if at < len(lines) and lines[at].indent > indent:
                value, at = _block(lines, at, depth + 1)
                items.append(value)
            continue
        if _KEY.match(rest) and rest[:1] not in "\"'{[":
            lines[at].indent += len(lines[at].text) - len(rest)
            lines[at].text = rest
            value, at = _mapping(lines, at, depth + 1)
            items.append(value)
            continue
        items.append(_scalar(rest))
        at += 1
    return items, at


def _mapping(lines: list[_Line], at: int, depth: int) -> tuple[dict[str, Any], int]:
    indent, found = lines[at].indent, {}
    while at < len(lines) and lines[at].indent == indent:
        match = _KEY.match(lines[at].text)
        if match is None:
            break
        key, rest = match[1].strip("\"'"), _without_comment(match[2] or "")
        at += 1
        if rest[:1] in (">", "|") and len(rest) <= 3:
            found[key], at = _text_block(lines, at, indent, rest[0])
        elif not rest and at < len(lines) and _belongs(lines[at], indent):
            found[key], at = _block(lines, at, depth + 1)
        else:
            start = at
            while at < len(lines) and lines[at].indent > indent and rest[:1] not in "\"'[{":  # a plain text goes on
                at += 1
            found[key] = _scalar(" ".join([rest, *(line.text for line in lines[start:at])]).strip())
            if rest[:1] in "[{\"'" and rest:  # a flow value over several lines
                while at < len(lines) and lines[at].indent > indent:
                    rest += " " + lines[at].text
                    at += 1
                found[key] = _scalar(rest)
    return found, at


def _belongs(line: _Line, indent: int) -> bool:
    """A list may stand at its key's own indentation."""
    return line.indent > indent or (line.indent == indent and line.text[:2] in ("- ", "-"))


def _text_block(lines: list[_Line], at: int, indent: int, style: str) -> tuple[str, int]:
    start = at
    while at < len(lines) and lines[at].indent > indent:
        at += 1
    return ("\n" if style == "|" else " ").join(line.text for line in lines[start:at]), at


def _without_comment(text: str) -> str:
    return re.sub(r"\s#[^\"']*$", "", text).strip()


def _scalar(text: str) -> Any:
    text = _without_comment(text)
    if text[:1] in ("[", "{"):
        return parse_literal(text)
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in ("true", "yes", "on"):
        return True
    if text.lower() in ("false", "no", "off"):
        return False
    return None if text in ("", "~") else word_value(text)
