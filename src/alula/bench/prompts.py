"""Reads prompts: the 24 MT-bench first turns that ship with alula, or files of the user's. Makes random ids for shapes.

Turns every accepted format into chat messages; does not know how a model's chat template renders them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from alula.core.errors import InvalidOption

BUILT_IN = Path(__file__).parent / "prompts" / "mt_bench_first_turns.jsonl"
ROLES = ("system", "user", "assistant", "tool")
_EXPECTED = 'expected {"prompt": "..."}, {"messages": [{"role": ..., "content": ...}]} or {"turns": ["..."]}'


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation to answer, or token ids as they are. `id` is unique within its file."""

    id: str
    messages: tuple[dict[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    category: str | None = None

    def raw_text(self) -> str:
        """The text without a chat template. Raises InvalidOption where there is more than one user message."""
        if len(self.messages) != 1 or self.messages[0]["role"] != "user":
            raise InvalidOption(f"prompt {self.id} has several messages; --raw needs prompts of one text")
        return self.messages[0]["content"]


def load_prompts(path: Path | None = None) -> tuple[Prompt, ...]:
    """The prompts of one file, or the built-in ones for None.

    A file is JSONL where its name ends in .jsonl or .json, or where its first line that is not empty begins with
    "{"; a name in .txt, and everything else, is plain text with one prompt a line. Of MT-bench's `turns` only the
    first is taken. Raises InvalidOption that names file and line.
    """
    source = path if path is not None else BUILT_IN
    lines = [(number, line) for number, line in enumerate(_read(source).split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidOption(f"{source}: no prompts in it; expected one a line, as JSON or as text")
    as_json = source.suffix in (".jsonl", ".json") or (source.suffix != ".txt" and lines[0][1].lstrip()[0] == "{")
    parse = _parse_json if as_json else _parse_text
    # The place is reported by its full path, the id is short: it appears in tables.
    prompts = tuple(parse(line, f"{source}:{number}", f"{source.name}:{number}") for number, line in lines)
    _refuse_repeated(source, prompts)
    return prompts


def random_prompts(count: int, num_tokens: int, vocab_size: int, seed: int) -> tuple[Prompt, ...]:
    """Prompts of random token ids, for models that know no text; the same for the same seed."""
    generator = random.Random(seed)
    return tuple(
        Prompt(id=f"random-{num_tokens}-{i}", token_ids=tuple(generator.choices(range(vocab_size), k=num_tokens)))
        for i in range(1, count + 1)
    )


def load_all(paths: Iterable[Path]) -> tuple[Prompt, ...]:
    """The prompts of several files in their order; the built-in ones where there is no file."""
    chosen = list(paths)
    if not chosen:
        return load_prompts()
    return tuple(prompt for path in chosen for prompt in load_prompts(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise InvalidOption(f"cannot read prompts from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{path}: not UTF-8 text (byte {error.start}); save the prompts as UTF-8") from error


def _parse_text(line: str, _place: str, identity: str) -> Prompt:
    return Prompt(id=identity, messages=_user(line.strip()))


def _parse_json(line: str, place: str, identity: str) -> Prompt:
    try:
        entry = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidOption(f"{place}: not JSON ({error}); {_EXPECTED}") from error
    if not isinstance(entry, dict):
        raise InvalidOption(f"{place}: a JSON {type(entry).__name__}; {_EXPECTED}")
    category = entry.get("category")
    return Prompt(
        id=str(entry.get("id", entry.get("question_id", identity))),
        messages=_messages(entry, place),
        category=str(category) if category is not None else None,
    )


def _messages(entry: dict[str, Any], place: str) -> tuple[dict[str, str], ...]:
    present = [key for key in ("prompt", "messages", "turns") if key in entry]
    if len(present) != 1:
        found = " and ".join(present) or "none of these keys"
        raise InvalidOption(f"{place}: {found}; {_EXPECTED}")
    value = entry[present[0]]
    if present[0] == "messages":
        return tuple(_checked(value, place))
    text = value[0] if present[0] == "turns" and isinstance(value, list) and value else value
    if not isinstance(text, str) or not text.strip():
        raise InvalidOption(f"{place}: {present[0]} holds no text; {_EXPECTED}")
    return _user(text)


def _checked(messages: object, place: str) -> Iterator[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise InvalidOption(f"{place}: messages is not a list of messages; {_EXPECTED}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise InvalidOption(f"{place}: a message without a content of text; {_EXPECTED}")
        if message.get("role") not in ROLES:
            raise InvalidOption(f"{place}: role is {message.get('role')!r}; expected one of {', '.join(ROLES)}")
        yield {"role": message["role"], "content": message["content"]}


def _user(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def _refuse_repeated(source: Path, prompts: tuple[Prompt, ...]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidOption(f"{source}: two prompts with the id {prompt.id!r}; ids name prompts in the result")
        seen.add(prompt.id)
