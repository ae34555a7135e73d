"""Rows of the report's tables: all-reduces of decode against verify, variables by rank."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.hypotheses.support import kilobytes
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_MOST = 60
_SHOWN_VARIABLES = ("NCCL_", "VLLM_", "SGLANG_", "CUDA_", "TORCH_", "TRTLLM_", "TLLM_", "ALULA_")


def allreduce_rows(case: Case) -> list[tuple[str, str, str]]:
    """Phase, message, backend (with time where it was measured)."""
    rows = []
    for one in case.both(Quantity.ALLREDUCE_BACKEND)[:_MOST]:
        size = kilobytes(one.scope.num_bytes) if one.scope.num_bytes else ""
        times = case.both(Quantity.ALLREDUCE_US, num_bytes=one.scope.num_bytes, name=str(one.value))
        took = f", {shown(times[0].number or 0.0)} µs" if times else ""
        rows.append((one.scope.phase or "", size, f"{one.value}{took}"))
    for one in case.both(Quantity.ALLREDUCE_REFUSED)[:_MOST]:
        rows.append((one.scope.phase or "", "", f"not {one.scope.name or 'a backend'}: {one.value}"))
    return rows


def environment_rows(case: Case) -> list[tuple[str, str, str]]:
    """Variable, value, where it was planned or seen."""
    rows: list[tuple[str, str, str]] = []
    for quantity, word in ((Quantity.VARIABLE_PLANNED, "planned"), (Quantity.VARIABLE_SEEN, "seen")):
        for one in case.both(quantity):
            if (one.scope.name or "").startswith(_SHOWN_VARIABLES):
                rows.append((one.scope.name or "", str(one.value)[:120], f"{word}, {_where(one)}"))
    return sorted(rows)[:_MOST]


def _where(one: Evidence) -> str:
    who = f"rank {one.scope.rank}" if one.scope.rank is not None else one.scope.worker or "run"
    return f"{who} ({one.source}{f':{one.line}' if one.line else ''})"
