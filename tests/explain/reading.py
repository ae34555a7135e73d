"""How tests read texts: as a user's file would be read, with every reader that exists."""

from __future__ import annotations

import io

from alula.explain.facts import RunFacts
from alula.explain.opening import Source
from alula.explain.readers.inputs import read_source
from alula.explain.readers.registry import STREAM_READERS
from alula.explain.sink import Sink
from alula.explain.stream import Stream
from alula.profile.evidence import Evidence, Label
from alula.profile.quantities import Quantity


def read(text: str | bytes, name: str = "input.txt") -> Sink:
    """A text as one file."""
    data = text.encode() if isinstance(text, str) else text
    return read_source(
        Source(name, Stream(io.BytesIO(data).read)), Label.UNKNOWN, [kind() for kind in STREAM_READERS]
    )


def runs(text: str | bytes, name: str = "input.txt") -> tuple[RunFacts, ...]:
    return read(text, name).runs()


def only_run(text: str | bytes, name: str = "input.txt") -> RunFacts:
    """The one run of a text; fails where there are more or none."""
    found = runs(text, name)
    assert len(found) == 1, [(run.name, len(run)) for run in found]
    return found[0]


def everything(text: str | bytes, name: str = "input.txt") -> list[Evidence]:
    return [one for run in runs(text, name) for one in run]


def values(found: RunFacts, quantity: Quantity, **scope: object) -> list[object]:
    """Every value of a quantity in a scope, in the order found."""
    return [one.value for one in found.all(quantity, **scope)]
