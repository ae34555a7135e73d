"""What the ranks of one run found of their environments, side by side. Asks no rank anything."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from alula.comm.environment_defaults import OWN
from alula.core.errors import RankFailure
from alula.core.records import EnvironmentFinding, EnvironmentRecord, EnvironmentStep, EnvironmentVariable

logger = logging.getLogger(__name__)

AGREEMENT = "ranks agree"
# Another path in every run, while fingerprints may be compared over runs too.
_CHANGING = "NCCL_DEBUG_FILE"


def compare_environments(records: Sequence[EnvironmentRecord]) -> tuple[EnvironmentRecord, ...]:
    """The records, in rank order, each with a step that holds its fingerprint against rank 0's.

    Raises RankFailure under `strict` where they differ, with the variables at odds.
    """
    first = records[0]
    if first.mode == "off":
        return tuple(records)
    return tuple(_compared(record, first) for record in records)


def log_findings(records: Sequence[EnvironmentRecord]) -> None:
    """A warning for each thing that is not as planned, once where all ranks say the same."""
    ranks: dict[str, list[int]] = {}
    for record in records:
        for finding in record.findings:
            ranks.setdefault(finding.text(), []).append(record.rank)
    for text, found in ranks.items():
        logger.warning("rank %s %s", ", ".join(map(str, found)), text)


def environment_facts(records: Sequence[EnvironmentRecord]) -> dict[str, Any]:
    """The short form for a run's facts."""
    return {
        "mode": records[0].mode,
        "num_mismatches": sum(len(record.mismatches) for record in records),
        "num_warnings": sum(len(record.findings) - len(record.mismatches) for record in records),
        "nccl_version": records[0].nccl_version,
    }


def fingerprint(variables: Sequence[EnvironmentVariable]) -> str:
    """A hash of what a rank found of the part that all ranks share."""
    text = "\n".join(f"{name}={_quoted(value)}" for name, value in _shared(variables).items())
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _compared(record: EnvironmentRecord, first: EnvironmentRecord) -> EnvironmentRecord:
    same = record.fingerprint == first.fingerprint
    findings = () if same else tuple(_odds(record, first))
    if not same and record.mode == "strict":
        text = "; ".join(
            f"{odd.variable} is {_quoted(odd.found)} in rank {record.rank} and {odd.cause}" for odd in findings
        )
        raise RankFailure(f"ranks run with different environments: {text}", rank=record.rank)
    step = EnvironmentStep(
        name=AGREEMENT,
        moment="compared by the engine",
        expected=first.fingerprint[:12],
        found=record.fingerprint[:12],
        verdict="ok" if same else "mismatch",
    )
    known = {finding.variable for finding in record.mismatches}  # by the rank itself, with a likelier cause
    new = tuple(finding for finding in findings if finding.variable not in known)
    return msgspec.structs.replace(record, steps=(*record.steps, step), findings=(*record.findings, *new))


def _odds(record: EnvironmentRecord, first: EnvironmentRecord) -> list[EnvironmentFinding]:
    ours, theirs = _shared(record.variables), _shared(first.variables)
    planned = {variable.name: variable.planned for variable in record.variables}
    return [
        EnvironmentFinding(
            step=AGREEMENT,
            verdict="mismatch",
            variable=name,
            planned=planned.get(name),
            found=ours.get(name),
            cause=f"{_quoted(theirs.get(name))} in rank {first.rank}",
        )
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


def _shared(variables: Sequence[EnvironmentVariable]) -> dict[str, str | None]:
    return {v.name: v.found for v in variables if v.source != OWN and v.name != _CHANGING}


def _quoted(value: str | None) -> str:
    return "unset" if value is None else repr(value)
