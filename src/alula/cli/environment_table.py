"""What ranks found of their environments, as a table for people and as a document. Starts no rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from alula.core.records import EnvironmentRecord

_MARK = "MISMATCH"


def environment_table(records: Sequence[EnvironmentRecord]) -> RenderableType:
    """Variables, then steps of the proof, then what was found amiss; what is the same in all ranks stands once."""
    if not records:
        return Text("one rank in this process: no environment was planned")
    if all(record.mode == "off" for record in records):
        return Text(f"the environment of {len(records)} ranks was not looked at (--comm-proof off)")
    found = Text("\n".join(_findings(records)), style="yellow")
    return Group(_variables(records), _steps(records), *([found] if found.plain else []))


def environment_document(records: Sequence[EnvironmentRecord]) -> list[dict[str, Any]]:
    """The records as JSON has them, one a rank."""
    return [msgspec.to_builtins(record) for record in records]


def _variables(records: Sequence[EnvironmentRecord]) -> Table:
    table = Table(
        "variable", "rank", "planned", "found", "source", title="Environment", title_justify="left", expand=False
    )
    rows: dict[tuple[str, ...], list[int]] = {}
    for record in records:
        for variable in record.variables:
            planned, found = _shown(variable.planned), _shown(variable.found)
            source = "; over ".join([variable.source or "not planned", *variable.overruled])
            mark = "" if variable.planned == variable.found else _MARK
            rows.setdefault((variable.name, planned, found, source, mark), []).append(record.rank)
    for (name, planned, found, source, mark), ranks in sorted(rows.items()):
        marked = f"{found} {mark}".strip()
        cells = (name, _ranks(ranks, len(records)), planned, marked, source)
        table.add_row(*map(escape, cells), style="bold red" if mark else None)
    return table


def _steps(records: Sequence[EnvironmentRecord]) -> Table:
    table = Table("step", "when", "rank", "expected", "found", "verdict", title="Proof", title_justify="left")
    rows: dict[tuple[str, ...], list[int]] = {}
    for record in records:
        for step in record.steps:
            key = (step.name, step.moment, step.expected, step.found, step.verdict)
            rows.setdefault(key, []).append(record.rank)
    for (name, moment, expected, found, verdict), ranks in rows.items():
        cells = (name, moment, _ranks(ranks, len(records)), expected, found, verdict)
        table.add_row(*map(escape, cells), style="bold red" if verdict == "mismatch" else None)
    return table


def _findings(records: Sequence[EnvironmentRecord]) -> list[str]:
    lines: dict[str, list[int]] = {}
    for record in records:
        for finding in record.findings:
            lines.setdefault(f"{finding.text()} ({finding.verdict})", []).append(record.rank)
    everywhere = "every rank" if len(records) > 1 else "the rank"
    return [
        f"{everywhere if len(ranks) == len(records) else f'rank {_ranks(ranks, len(records))}'} {text}"
        for text, ranks in lines.items()
    ]


def _ranks(ranks: Iterable[int], num_ranks: int) -> str:
    listed = sorted(set(ranks))
    return "all" if len(listed) == num_ranks else ", ".join(map(str, listed))


def _shown(value: str | None) -> str:
    return "unset" if value is None else repr(value)
