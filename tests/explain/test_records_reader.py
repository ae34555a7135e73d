"""alula's own records as evidence, and two of them side by side."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from evidence_builder import finding

from alula.core.errors import ModelNotFound
from alula.core.records import (
    CycleRecord,
    DispatchRecord,
    PathDifference,
    PhaseOutcome,
    Record,
    RecordWriter,
    Refusal,
    RequestCycle,
    RequestRecord,
    RunRecord,
)
from alula.explain.finding import Status
from alula.explain.judge import explain
from alula.explain.readers.inputs import read_inputs
from alula.explain.readers.records import RecordsReader
from alula.explain.sink import Sink
from alula.profile.comparison import compare
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

RUN = RunRecord(
    alula="0.1",
    torch="2.11",
    model="m",
    draft="h",
    device="cuda",
    dtype="float32",
    tp=2,
    draft_placement="sharded",
    steps=3,
    exact=False,
)


def cycle(
    index: int, accepted: int | None, *, prefill: int = 0, replayed: bool = True, scale: float = 1.0
) -> CycleRecord:
    """accepted None: a plain cycle."""
    drafted = 0 if accepted is None else 3
    phases = {"schedule": 0.2, "verify": 8.0 * scale, "emit": 0.3}
    if drafted:
        phases |= {"draft": 3.0, "extend": 1.0}
    request = RequestCycle(
        request_id="r",
        width=drafted + 1,
        num_prefill=prefill,
        drafted=drafted,
        accepted=accepted or 0,
        emitted=(accepted or 0) + 1,
        truncated=False,
        kv_tokens=100 + index,
    )
    outcome = PhaseOutcome(replayed=replayed, reason=None if replayed else "capture_disabled")
    return CycleRecord(
        index=index,
        wall_ms=sum(phases.values()) + 0.01 * (index % 3),
        phases_ms=phases,
        requests=(request,),
        outcomes={"verify": outcome},
        num_rows=drafted + 1,
    )


def bench(replayed: bool = True, scale: float = 1.0) -> list[Record]:
    made: list[Record] = [RUN, cycle(0, 2, prefill=5)]
    made += [cycle(index, (2, 1, 0, 3)[index % 4], replayed=replayed, scale=scale) for index in range(80)]
    made += [cycle(index, None) for index in range(40)]
    return made


def write(path: Path, records: list[Record]) -> Path:
    writer = RecordWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def read(path: Path) -> Sink:
    (sink,) = read_inputs([str(path)], Label.UNKNOWN, print)
    return sink


def test_a_bench_becomes_a_plain_and_a_speculative_run(tmp_path: Path) -> None:
    case = explain([read(write(tmp_path / "r.jsonl", bench()))]).case
    sums = case.sums
    assert (case.plain.label, case.spec.label) == (Label.BASELINE, Label.SPECULATIVE)
    assert sums.plain_ms is not None and sums.plain_ms.value == pytest.approx(8.51, abs=0.02)
    assert sums.cycle_ms is not None and sums.cycle_ms.value == pytest.approx(12.51, abs=0.02)
    assert sums.tokens_per_cycle is not None and sums.tokens_per_cycle.value == pytest.approx(2.5)
    assert sums.by_position == pytest.approx((0.75, 0.5, 0.25))
    assert sums.steps == 3 and sums.pays is True and case.tp == 2
    assert case.recognised.keys() == {"alula records"}


def test_phases_make_a_waterfall_without_a_large_remainder(tmp_path: Path) -> None:
    verdict = explain([read(write(tmp_path / "r.jsonl", bench(scale=3.0)))])
    assert verdict.exit_code == 3
    assert sum(part.ms for part in verdict.waterfall) == pytest.approx(verdict.case.sums.cycle_ms.value)  # type: ignore[union-attr]
    assert verdict.remainder_ms is not None and abs(verdict.remainder_ms) < 17.0
    parts = {part.part: part.ms for part in verdict.waterfall}
    assert parts["draft: drafting costs too much"] == pytest.approx(3.0)
    assert parts["extend"] == pytest.approx(1.0)
    assert parts["verify beyond a plain step, not explained"] == pytest.approx(16.0, abs=0.1)


def test_outcomes_decide_the_graph_hypothesis(tmp_path: Path) -> None:
    eager = explain([read(write(tmp_path / "e.jsonl", bench(replayed=False)))])
    judged = finding(eager, "verify_without_graph")
    assert judged.status is Status.CONFIRMED and "capture_disabled" in judged.text
    graph = explain([read(write(tmp_path / "g.jsonl", bench()))])
    assert finding(graph, "verify_without_graph").status is Status.REFUTED


def test_a_cpu_has_no_graphs_to_miss(tmp_path: Path) -> None:
    on_cpu = [msgspec.structs.replace(RUN, device="cpu"), *bench(replayed=False)[1:]]
    judged = finding(explain([read(write(tmp_path / "c.jsonl", on_cpu))]), "verify_without_graph")
    assert judged.status is Status.REFUTED and "CPU" in judged.text


def test_collectives_are_read(tmp_path: Path) -> None:
    dispatch = DispatchRecord(
        op="all_reduce",
        num_bytes=4096,
        dtype="bfloat16",
        num_ranks=2,
        phase="verify",
        backend="nccl",
        refused=(Refusal(backend="symmetric_memory", reason="too large"),),
        work="verify",
    )
    paths = PathDifference(
        op="all_reduce",
        dtype="bfloat16",
        decode_backend="symmetric_memory",
        decode_bytes=(1024,),
        decode_because="",
        verify_backend="nccl",
        verify_bytes=(4096,),
        verify_because="",
    )
    verdict = explain([read(write(tmp_path / "r.jsonl", [*bench(), dispatch, paths]))])
    judged = finding(verdict, "allreduce_paths_differ")
    assert judged.status is Status.CONFIRMED and "symmetric_memory" in judged.text


def test_preempted_requests_are_read(tmp_path: Path) -> None:
    request = RequestRecord(
        request_id="r",
        num_prompt_tokens=1,
        num_output_tokens=1,
        finish_reason="stop",
        num_cycles=1,
        drafted=0,
        accepted=0,
        accepted_per_position=(),
        drafted_per_position=(),
        num_truncated_cycles=0,
        num_preemptions=2,
    )
    verdict = explain([read(write(tmp_path / "r.jsonl", [*bench(), request]))])
    assert finding(verdict, "queueing_or_pages").status is Status.CONFIRMED


def test_a_cut_off_file_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", bench())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 700])
    verdict = explain([read(path)])
    assert any("cut off" in note for note in verdict.case.notes)
    assert verdict.case.sums.pays is True


@pytest.mark.parametrize("bad", [b'{"type":"cycle","index":"x"}\n', b"not json\n", b'{"type":"new_kind"}\n'])
def test_bad_lines_are_noted_and_passed_over(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path / "r.jsonl", bench())
    path.write_bytes(path.read_bytes() + bad + b"\n")
    verdict = explain([read(path)])
    assert any("no record" in note for note in verdict.case.notes) and verdict.case.sums.pays is True


def test_another_schema_is_said(tmp_path: Path) -> None:
    text = write(tmp_path / "r.jsonl", bench()).read_text().replace('"schema":1', '"schema":9')
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    assert any("schema 9" in note for note in explain([read(path)]).case.notes)


def test_a_run_too_short_to_say_anything(tmp_path: Path) -> None:
    verdict = explain([read(write(tmp_path / "r.jsonl", [RUN, cycle(0, 1, prefill=9)]))])
    assert verdict.exit_code == 0 and "cannot be said" in verdict.answer
    assert any("too short" in note for note in verdict.case.notes)


def test_only_records_are_recognised() -> None:
    reader = RecordsReader()
    assert reader.recognises(b'{"type":"run","schema":1}\n') and reader.recognises(b'{"type": "cycle"}')
    assert (
        not reader.recognises(b'{"traceEvents": []}') and not reader.recognises(b"") and not reader.recognises(b"x")
    )
    sink = Sink("x")
    reader.read(io.BytesIO(b""), sink)
    assert sink.runs() == ()


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="none"):
        read_inputs([str(tmp_path / "none")], Label.UNKNOWN, print)


def test_two_runs_are_compared_by_their_spread(tmp_path: Path) -> None:
    sides = [read(write(tmp_path / f"{scale}.jsonl", bench(scale=scale))) for scale in (1.0, 1.5)]
    left, right = ([one for run in sink.runs() for one in run] for sink in sides)
    found = {(one.quantity, one.scope.batch): one for one in compare(left, right)}
    verify = found[Q.VERIFY_MS, 1]
    assert verify.apart is True and verify.ratio == pytest.approx(1.5)
    assert found[Q.DRAFT_MS, 1].apart is False
