"""alula's own records (JSONL of `core.records`) as evidence: one run, or a plain and a speculative one.

A file that holds plain and drafted cycles (a bench, a run with --speculate auto) becomes two runs of one engine, so
that they can be compared. A cut-off end, a bad line and an unknown schema are notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from alula.core.records import (
    RECORD_SCHEMA,
    CycleRecord,
    DispatchRecord,
    PathDifference,
    Record,
    RequestRecord,
    RunRecord,
)
from alula.explain.sink import Sink
from alula.profile.evidence import WINDOW_MEAN, Label, Scope, Value
from alula.profile.phases import CycleKind, RecordPhases
from alula.profile.quantities import Quantity

NAME = "alula records"
_ENGINE = "alula"
_TAGS = (b'"type":"run"', b'"type":"cycle"', b'"type":"request"', b'"type":"dispatch"', b'"type":"path_difference"')
_LONGEST_LINE = 4_000_000
_WORK = {"decode": "decode", "verify": "verify", "prefill": "prefill"}


class RecordsReader:
    """Reads a record file whole; memory stays small, since cycles are summed up as they come."""

    name = NAME

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Record)

    def recognises(self, head: bytes) -> bool:
        first = head.split(b"\n", 1)[0].replace(b" ", b"")
        return first.startswith(b"{") and any(tag in first for tag in _TAGS)

    def read(self, stream: BinaryIO, sink: Sink) -> None:
        phases: RecordPhases | None = None
        run: tuple[int, RunRecord] | None = None
        for number, record in self._records(stream, sink):
            if isinstance(record, RunRecord):
                self._close(run, phases, sink)
                run, phases = (number, record), RecordPhases()
            elif isinstance(record, CycleRecord):
                phases = phases or RecordPhases()
                phases.add(record)
            elif isinstance(record, RequestRecord):
                if record.num_preemptions:
                    self._add(sink, Quantity.NUM_PREEMPTIONS, record.num_preemptions, number)
            elif isinstance(record, DispatchRecord | PathDifference):
                self._collective(record, number, sink)
        self._close(run, phases, sink)

    def _records(self, stream: BinaryIO, sink: Sink) -> Iterator[tuple[int, Record]]:
        broken = 0
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
            if not line.strip():
                continue
            try:
                record = self._decoder.decode(line)
            except msgspec.DecodeError:
                if not line.endswith(b"\n"):
                    sink.note(f"{sink.source}: cut off in line {number}; everything before it counts")
                else:
                    broken += 1
                    sink.note(f"{sink.source}: line {number} is no record of schema {RECORD_SCHEMA}")
                if broken > 100:
                    sink.note(f"{sink.source}: too many lines that are no records; the rest was not read")
                    return
                continue
            if isinstance(record, RunRecord) and record.schema != RECORD_SCHEMA:
                sink.note(
                    f"{sink.source}: records of schema {record.schema}, alula reads {RECORD_SCHEMA}; "
                    f"fields may be missing"
                )
            yield number, record

    def _close(self, run: tuple[int, RunRecord] | None, phases: RecordPhases | None, sink: Sink) -> None:
        """The run so far goes into the sink: its drafted cycles as one run, its plain ones as another."""
        if phases is None or not (phases.drafted.num_cycles or phases.plain.num_cycles or run):
            return
        sides = ((phases.drafted, Label.SPECULATIVE), (phases.plain, Label.BASELINE))
        for kind, label in sides:
            if kind.num_cycles:
                sink.begin_run(_ENGINE, label=label)
                self._facts(run, sink, speculative=label is Label.SPECULATIVE)
                _cycles(kind, sink, speculative=label is Label.SPECULATIVE)
        if not (phases.drafted.num_cycles or phases.plain.num_cycles):
            sink.begin_run(_ENGINE)
            self._facts(run, sink, speculative=False)
            sink.note(f"{sink.source}: no decode cycle; too short to say anything about its speed")

    def _facts(self, run: tuple[int, RunRecord] | None, sink: Sink, *, speculative: bool) -> None:
        self._add(sink, Quantity.ENGINE, _ENGINE, run[0] if run else None)
        if run is None:
            return
        number, record = run
        facts: dict[Quantity, Value | None] = {
            Quantity.ENGINE_VERSION: record.alula,
            Quantity.MODEL: record.model,
            Quantity.TP: record.tp,
            Quantity.DTYPE: record.dtype,
            Quantity.GPU: record.device,
        }
        if speculative:
            facts |= {Quantity.DRAFT_MODEL: record.draft, Quantity.STEPS: record.steps or None}
            facts |= {Quantity.ALGORITHM: "EAGLE3"}
        for quantity, value in facts.items():
            if value is not None:
                self._add(sink, quantity, value, number)

    def _collective(self, record: DispatchRecord | PathDifference, number: int, sink: Sink) -> None:
        if isinstance(record, PathDifference):
            for phase, backend, sizes in (
                ("decode", record.decode_backend, record.decode_bytes),
                ("verify", record.verify_backend, record.verify_bytes),
            ):
                for size in sizes[:8]:
                    self._add(sink, Quantity.ALLREDUCE_BACKEND, backend, number, Scope(phase=phase, num_bytes=size))
            return
        if record.op != "all_reduce":
            return
        scope = Scope(phase=_WORK.get(record.work), num_bytes=record.num_bytes)
        self._add(sink, Quantity.ALLREDUCE_BACKEND, record.backend, number, scope)
        if record.measured_us is not None:
            named = msgspec.structs.replace(scope, name=record.backend)
            self._add(sink, Quantity.ALLREDUCE_US, record.measured_us, number, named)
        for refusal in record.refused:
            self._add(sink, Quantity.ALLREDUCE_REFUSED, refusal.reason, number, Scope(name=refusal.backend))

    def _add(
        self, sink: Sink, quantity: Quantity, value: Value, line: int | None, scope: Scope | None = None
    ) -> None:
        sink.add(quantity, value, line=line, engine=_ENGINE, reader=NAME, scope=scope)


def _cycles(kind: CycleKind, sink: Sink, *, speculative: bool) -> None:
    """One kind of cycle as samples and counts."""
    for batch, series in kind.wall_ms.items():
        quantity = Quantity.CYCLE_MS if speculative else Quantity.PLAIN_STEP_MS
        for ms in series.kept:
            sink.sample(quantity, ms, engine=_ENGINE, reader=NAME, scope=Scope(batch=batch))
    for (phase, batch), series in kind.phases_ms.items():
        quantity, scope = _phase(phase, batch, speculative)
        for ms in series.kept:
            sink.sample(quantity, ms, engine=_ENGINE, reader=NAME, scope=scope)
    for (phase, replayed, reason), count in kind.outcomes.items():
        named = phase if speculative or phase != "verify" else "decode"
        for _ in range(min(count, 10_000)):
            sink.add(Quantity.GRAPH_REPLAYED, replayed, engine=_ENGINE, reader=NAME, scope=Scope(phase=named))
        if reason and not replayed:
            sink.add(Quantity.GRAPH_REASON, reason, engine=_ENGINE, reader=NAME, scope=Scope(phase=named))
    if speculative:
        _acceptance(kind, sink)


def _phase(phase: str, batch: int, speculative: bool) -> tuple[Quantity, Scope]:
    named = {"draft": Quantity.DRAFT_MS, "verify": Quantity.VERIFY_MS, "extend": Quantity.EXTEND_MS}
    if phase == "host":
        return Quantity.HOST_MS, Scope(batch=batch)
    if speculative and phase in named:
        return named[phase], Scope(batch=batch)
    return Quantity.PHASE_MS, Scope(phase="decode" if phase == "verify" else phase, batch=batch)


def _acceptance(kind: CycleKind, sink: Sink) -> None:
    counts = {
        Quantity.NUM_CYCLES: kind.num_cycles,
        Quantity.NUM_DRAFTED: kind.num_drafted,
        Quantity.NUM_ACCEPTED: kind.num_accepted,
        Quantity.NUM_EMITTED: kind.num_emitted,
    }
    for quantity, count in counts.items():
        sink.add(quantity, count, engine=_ENGINE, reader=NAME)
    for position, share in enumerate(kind.acceptance()):
        sink.add(Quantity.ACCEPTANCE, share, engine=_ENGINE, reader=NAME, scope=Scope(position=position))
    for mean in kind.windows.kept:
        scope = Scope(variant=WINDOW_MEAN)
        sink.sample(Quantity.TOKENS_PER_CYCLE, mean, engine=_ENGINE, reader=NAME, scope=scope)
