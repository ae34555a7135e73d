"""Which communicators this process has made so far. Whoever constructs one says so here, before it does.

NCCL reads most of its variables once, at a process's first communicator: an environment that is proven later proves
nothing about it. A fact about the process, hence the one list in this package that is shared by everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

_created: list[str] = []
_variables: dict[str, set[str]] = {}


def note_created(name: str, variables: Mapping[str, str] | None = None) -> None:
    """`name`: whatever tells the communicator from others, such as "nccl: low latency". variables: what is in the
    environment while it is made, and at no other time."""
    _created.append(name)
    for variable, value in (variables or {}).items():
        _variables.setdefault(variable, set()).add(value)


def created() -> tuple[str, ...]:
    """In the order in which they were made."""
    return tuple(_created)


def set_for_one(variable: str, value: str) -> bool:
    """Whether one of them was made with this value, on purpose and beside the plan."""
    return value in _variables.get(variable, ())
