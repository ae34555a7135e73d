"""What `alula check` shows of the ranks' environments: the same once, differences by rank, mismatches marked."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import msgspec
from rich.console import Console

from alula.cli.environment_table import environment_document, environment_table
from alula.cli.notes import notes
from alula.cli.options import EngineOptions
from alula.core.records import EnvironmentFinding, EnvironmentRecord, EnvironmentStep, EnvironmentVariable


def record(rank: int, protocol: str = "LL", mode: str = "warn") -> EnvironmentRecord:
    variables = (
        EnvironmentVariable(
            name="NCCL_PROTO", planned="LL", found=protocol, source="--nccl", overruled=("'Simple' (inherited)",)
        ),
        EnvironmentVariable(name="RANK", planned=str(rank), found=str(rank), source="default: each has its own"),
        EnvironmentVariable(name="NCCL_ALGO", planned="[bold]", found="[bold]", source="inherited"),
    )
    verdict = "ok" if protocol == "LL" else "mismatch"
    step = EnvironmentStep(name="C getenv", moment="at start", expected="3", found="some", verdict=verdict)
    finding = EnvironmentFinding(
        step="C getenv",
        verdict="mismatch",
        variable="NCCL_PROTO",
        planned="LL",
        found=protocol,
        cause="a file sets it",
    )
    findings = () if verdict == "ok" else (finding,)
    return EnvironmentRecord(rank=rank, mode=mode, variables=variables, steps=(step,), findings=findings)


def shown(records: Sequence[EnvironmentRecord]) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=160).print(environment_table(records))
    return text.getvalue().splitlines()


def rows(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if word in line]


def test_equal_values_stand_once_and_others_by_rank() -> None:
    lines = shown([record(0), record(1)])
    (protocol,) = rows(lines, "NCCL_PROTO")
    assert "all" in protocol and "--nccl; over 'Simple' (inherited)" in protocol
    assert len(rows(lines, " RANK ")) == 2
    assert len(rows(lines, "C getenv")) == 1
    assert rows(lines, "'[bold]'")  # not taken for markup
    assert not rows(lines, "MISMATCH")


def test_mismatches_are_marked_and_explained() -> None:
    lines = shown([record(0), record(1, "Simple"), record(2)])
    (odd,) = rows(lines, "MISMATCH")
    assert "NCCL_PROTO" in odd and "'Simple'" in odd and "1" in odd
    assert any("0, 2" in line for line in rows(lines, "NCCL_PROTO"))
    assert rows(lines, "rank 1 runs with NCCL_PROTO 'Simple', planned was 'LL'; a file sets it (mismatch)")


def test_what_holds_for_every_rank_is_explained_once() -> None:
    (line,) = rows(shown([record(0, "Simple"), record(1, "Simple")]), "(mismatch)")
    assert line.startswith("every rank runs with NCCL_PROTO 'Simple'")


def test_nothing_to_show_is_said() -> None:
    assert "no environment was planned" in shown([])[0]
    off = EnvironmentRecord(rank=0, mode="off")
    assert "environment of 1 ranks was not looked at (--comm-proof off)" in shown([off])[0]


def test_the_document_holds_everything() -> None:
    records = [record(0), record(1, "Simple")]
    document = json.loads(json.dumps(environment_document(records)))
    assert [msgspec.convert(entry, EnvironmentRecord) for entry in document] == records


def test_notes_of_what_the_proof_let_through() -> None:
    options = EngineOptions(tp=2)
    assert notes("cpu", {"environment": {"mode": "strict", "num_mismatches": 0}}, options) == []
    (off,) = notes("cpu", {"environment": {"mode": "off", "num_mismatches": 0}}, options)
    assert "--comm-proof off" in off
    (let_through,) = notes("cpu", {"environment": {"mode": "warn", "num_mismatches": 3}}, options)
    assert let_through.startswith("3 mismatches")
    (alone,) = notes("cpu", {}, EngineOptions(nccl=["PROTO=LL"], share_gpus=True))
    assert alone.startswith("--nccl, --share-gpus: no effect with --tp 1")
