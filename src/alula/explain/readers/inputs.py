"""From names to sinks: opens what the user named and lets the readers that recognise it read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from alula.core.errors import ModelNotFound
from alula.explain.readers.protocol import HEAD_BYTES
from alula.explain.readers.registry import STREAM_READERS
from alula.explain.sink import Sink
from alula.profile.evidence import Label


def read_inputs(names: Sequence[str], label: Label, note: Callable[[str], None]) -> list[Sink]:
    """One sink a file. note: gets complaints, for stderr. Raises ModelNotFound for a path that does not exist."""
    return [_read(Path(name), label, note) for name in names]


def _read(path: Path, label: Label, note: Callable[[str], None]) -> Sink:
    sink = Sink(str(path), label)
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            stream.seek(0)
            reader = next((one for kind in STREAM_READERS if (one := kind()).recognises(head)), None)
            if reader is None:
                note(f"{path}: nothing recognised")
            else:
                reader.read(stream, sink)
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}; give the path of a file") from error
    return sink
