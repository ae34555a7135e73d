"""One piece of advice and the versions that it holds for. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """since, before: the versions that the text is right for; () is no limit. An unknown version fits no limit."""

    text: str
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def fits(self, version: tuple[int, ...]) -> bool:
        if not version:
            return not self.since and not self.before
        return version >= self.since and (not self.before or version < self.before)


Table = dict[str, tuple[Advice, ...]]


def always(text: str) -> tuple[Advice, ...]:
    return (Advice(text=text),)


def pick(choices: Sequence[Advice], version: tuple[int, ...]) -> str | None:
    """The advice for a version; where the version is unknown and the advice depends on it, all of it, with versions."""
    fitting = [choice.text for choice in choices if choice.fits(version)]
    if fitting:
        return fitting[0]
    if version or not choices:
        return None
    return "; ".join(f"{_versions(choice)}: {choice.text}" for choice in choices)


def _versions(choice: Advice) -> str:
    since, before = (".".join(map(str, limit)) for limit in (choice.since, choice.before))
    if since and before:
        return f"from {since} up to {before}"
    return f"from {since}" if since else f"before {before}" if before else "any version"
