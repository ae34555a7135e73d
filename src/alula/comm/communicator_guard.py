"""Which communicators this process has made so far. Whoever constructs one says so here, before it does.

NCCL reads most of its variables once, at a process's first communicator: an environment that is proven later proves
nothing about it. A fact about the process, hence the one list in this package that is shared by everybody.
"""

from __future__ import annotations

_created: list[str] = []


def note_created(name: str) -> None:
    """`name`: whatever tells the communicator from others, such as "nccl: low latency"."""
    _created.append(name)


def created() -> tuple[str, ...]:
    """In the order in which they were made."""
    return tuple(_created)
