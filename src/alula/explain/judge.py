"""From sources to a verdict in one call. What `alula explain` calls, whatever the evidence came from."""

from __future__ import annotations

from collections.abc import Sequence

from alula.explain.case import assemble
from alula.explain.sink import Sink
from alula.explain.typed import Typed, typed_sink
from alula.explain.verdict import Verdict, judge


def explain(sinks: Sequence[Sink], typed: Typed | None = None) -> Verdict:
    """The verdict on everything that these sources hold and what was typed."""
    given = [typed_sink(typed)] if typed is not None and typed.given else []
    return judge(assemble([*sinks, *given]))
