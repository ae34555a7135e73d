"""Communicators of other packages: the entry-point group `alula.communicators`.

An entry point names a function that gets a `CommunicatorContext` and returns a Backend (comm/backends/protocol.py). It
is called in every rank, before any is probed; a plug-in that raises is a backend that refuses, with what it said.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from alula.comm.backends.protocol import Backend, Unavailable
from alula.comm.process_groups import ProcessGroups

GROUP = "alula.communicators"


@dataclass(frozen=True)
class CommunicatorContext:
    """What a plug-in may build on. groups: torch.distributed's world of these ranks, connected at first use."""

    rank: int
    num_ranks: int
    device: str
    timeout_s: float
    groups: ProcessGroups


def plugin_names() -> tuple[str, ...]:
    """The names of installed plug-ins, sorted: the same in every process of one environment."""
    return tuple(sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)}))


def load_plugins(context: CommunicatorContext) -> tuple[Backend, ...]:
    """Every plug-in's backend, under its entry point's name and in the order of names."""
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    return tuple(_load(name, entries[name], context) for name in plugin_names())


def _load(name: str, entry: importlib.metadata.EntryPoint, context: CommunicatorContext) -> Backend:
    try:
        backend: Backend | None = entry.load()(context)
        if backend is None:
            return Unavailable(name, "its function returned None; expected a backend (comm/backends/protocol.py)")
        if backend.name != name:
            return Unavailable(name, f"calls itself {backend.name!r}; its entry point is named {name!r}")
    except Exception as error:  # noqa: BLE001 - another package's code: whatever it raises is its refusal
        return Unavailable(name, f"does not load: {type(error).__name__}: {error}")
    return backend
