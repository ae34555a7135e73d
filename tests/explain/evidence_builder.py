"""Builds sinks as readers would fill them, from short lines such as `found(Q.ACCEPTANCE, 0.7, position=0)`."""

from __future__ import annotations

from typing import Any

from alula.explain.finding import Finding
from alula.explain.judge import explain
from alula.explain.sink import Sink
from alula.explain.verdict import Verdict
from alula.profile.evidence import Label, Scope, Value
from alula.profile.quantities import Quantity

Found = tuple[Quantity, Value, dict[str, Any]]


def found(quantity: Quantity, value: Value, **fields: Any) -> Found:
    """fields: of the scope, and `text`, `times`, `engine`."""
    return quantity, value, fields


def sink_of(*evidence: Found, source: str = "a.log", label: Label = Label.UNKNOWN) -> Sink:
    sink = Sink(source, label)
    fill(sink, *evidence)
    return sink


def fill(sink: Sink, *evidence: Found) -> None:
    for line, (quantity, value, given) in enumerate(evidence, 1):
        fields = dict(given)
        text, times = fields.pop("text", f"{quantity.value}={value}"), fields.pop("times", 1)
        engine = fields.pop("engine", None)
        for _ in range(times):
            sink.add(quantity, value, line=line, text=text, engine=engine, reader="test", scope=Scope(**fields))


def series(sink: Sink, quantity: Quantity, values: list[float], **scope: Any) -> None:
    for line, value in enumerate(values, 1):
        sink.sample(quantity, value, line=line, text=str(value), reader="test", scope=Scope(**scope))


def verdict_of(spec: list[Found], plain: list[Found] | None = None) -> Verdict:
    """The verdict on a speculative run and, if given, a plain one."""
    sinks = [sink_of(*spec, source="spec.log", label=Label.SPECULATIVE)]
    if plain is not None:
        sinks.append(sink_of(*plain, source="plain.log", label=Label.BASELINE))
    return explain(sinks)


def finding(verdict: Verdict, name: str) -> Finding:
    return next(one for one in verdict.findings if one.id == name)
