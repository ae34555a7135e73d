"""Rows of the report's tables: collectives of decode against verify, variables by rank."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.hypotheses.collectives_slow import ALONE
from alula.explain.hypotheses.support import kilobytes
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

PATH_COLUMNS = ("work", "message", "path", "served", "alone")
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


def path_rows(case: Case) -> list[tuple[str, str, str, str, str]]:
    """Decode's and verify's collectives side by side: message, path, ms of a cycle served and alone, where measured."""
    rows = []
    for run, work in ((case.plain, "decode"), (case.spec, "verify"), (case.spec, "draft"), (case.spec, "extend")):
        served = run.first(Quantity.COLLECTIVE_MS, phase=work, variant=None)
        paths = case.both(Quantity.ALLREDUCE_BACKEND, phase=work)
        if served is None and not paths:
            continue
        sizes = ", ".join(kilobytes(one.scope.num_bytes) for one in paths if one.scope.num_bytes)
        names = ", ".join(dict.fromkeys(str(one.value) for one in paths))
        alone = run.number(Quantity.COLLECTIVE_MS, phase=work, variant=ALONE)
        rows.append((work, sizes, names, _ms(served.number if served else None), _ms(alone)))
    return rows[:_MOST]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{shown(value)} ms"


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
