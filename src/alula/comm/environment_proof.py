"""Run inside a rank: what of the planned environment is in force there, step by step, and what is not.

The plan itself is no evidence. The steps ask C's getenv, which is what OpenMP, gloo and NCCL ask and which sees what a
start-up file of Python or a C library has set since; whether a communicator exists already, since NCCL reads most of
its variables only once; NCCL's configuration files; and, once there is a group, what NCCL itself says that it took.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from alula.comm.communicator_guard import created
from alula.comm.configuration_files import configured_variables
from alula.comm.environment_agreement import fingerprint
from alula.comm.environment_plan import FAMILIES, EnvironmentPlan
from alula.comm.nccl_log import NcclLog
from alula.comm.nccl_words import SPOKEN, read_log, spoken_findings, unspoken
from alula.core.environment import c_environment, c_getenv, exec_environment
from alula.core.errors import RankFailure, UserError
from alula.core.records import EnvironmentFinding, EnvironmentRecord, EnvironmentStep, EnvironmentVariable

AT_START, WORKER_MADE = "at start", "once the worker is made"
GETENV = "C getenv"
NO_COMMUNICATOR = "no communicator yet"
FILES = "configuration files"


@dataclass(frozen=True)
class _Rung:
    step: EnvironmentStep
    findings: tuple[EnvironmentFinding, ...] = ()


def prove_at_start(plan: EnvironmentPlan, rank: int) -> EnvironmentRecord:
    """Before the rank has a communicator, and before torch is loaded.

    Under `strict` raises RankFailure that names rank, variable, planned and found value, and the likely cause.
    """
    mode = plan.parallel.comm_proof
    if mode == "off":
        step = _step("proof", AT_START, "nothing", "--comm-proof off: nothing was looked at", known=False)
        return EnvironmentRecord(rank=rank, mode=mode, steps=(step,))
    variables = _variables(plan, rank)
    rungs = (_getenv(variables, AT_START), _no_communicator(plan), _files(plan, rank))
    record = EnvironmentRecord(rank=rank, mode=mode, findings=plan.warnings)
    return _concluded(record, variables, rungs)


def prove_worker(plan: EnvironmentPlan, rank: int, start: EnvironmentRecord) -> EnvironmentRecord:
    """Once more when the worker is made: by now its module and libraries have run, and NCCL has spoken.

    start: what `prove_at_start` found; the result holds it too. Raises as that does.
    """
    if start.mode == "off":
        return start
    variables = _variables(plan, rank)
    rungs, record = [_getenv(variables, WORKER_MADE)], start
    if plan.device == "cuda":
        log = read_log(plan.log_folder)
        rungs.append(_words(plan, rank, log))
        record = msgspec.structs.replace(start, nccl_version=log and log.version, nccl=_facts(log))
    return _concluded(record, variables, rungs)


def explained(error: Exception, plan: EnvironmentPlan, rank: int) -> Exception:
    """The error with what NCCL wrote down about it, where it wrote something; torch often passes on a code alone."""
    log = read_log(plan.log_folder)
    if log is None or not log.warnings or isinstance(error, UserError):
        return error
    words = "; ".join(log.warnings)
    if isinstance(error, RankFailure):  # it has its words already, and may name the rank that this one waited for
        told = RankFailure(f"{error}; NCCL says: {words}", rank=rank if error.rank is None else error.rank)
    else:
        told = RankFailure(f"rank {rank} failed: {type(error).__name__}: {error}; NCCL says: {words}", rank=rank)
    told.__cause__ = error
    return told


def _planned(plan: EnvironmentPlan, rank: int) -> dict[str, str]:
    return {**plan.alike(), **plan.own[rank]}


def _variables(plan: EnvironmentPlan, rank: int) -> tuple[EnvironmentVariable, ...]:
    """The planned ones, and those of the families that nobody planned and that are there."""
    planned, at_exec = _planned(plan, rank), exec_environment() or {}
    stray = sorted(name for name in c_environment() if name.startswith(FAMILIES) and name not in planned)
    described = []
    for name in (*planned, *stray):
        ranked = plan.origins.get(name, ())
        described.append(
            EnvironmentVariable(
                name=name,
                planned=planned.get(name),
                found=c_getenv(name),
                source=ranked[0].source if ranked else None,
                at_exec=at_exec.get(name),
                overruled=tuple(f"{other.value!r} ({other.source})" for other in ranked[1:]),
            )
        )
    return tuple(described)


def _getenv(variables: Sequence[EnvironmentVariable], moment: str) -> _Rung:
    files = {name: (value, path) for path, name, value in configured_variables()}
    findings = tuple(
        EnvironmentFinding(
            step=GETENV,
            verdict="mismatch",
            variable=variable.name,
            planned=variable.planned,
            found=variable.found,
            cause=_cause(variable, files.get(variable.name), moment),
        )
        for variable in variables
        if variable.found != variable.planned
    )
    by_exec = sum(variable.found is not None and variable.found == variable.at_exec for variable in variables)
    in_force = sum(variable.found == variable.planned for variable in variables)
    how = f", {by_exec} of them since the process began" if exec_environment() is not None else ""
    step = _step(
        GETENV, moment, f"{len(variables)} variables as planned", f"{in_force}{how}", mismatch=bool(findings)
    )
    return _Rung(step, findings)


def _cause(variable: EnvironmentVariable, configured: tuple[str, str] | None, moment: str) -> str:
    if configured is not None and configured[0] == variable.found:
        return f"{configured[1]} sets it"
    if exec_environment() is not None and variable.at_exec == variable.found:
        return "the process was started so; look for what stands between the engine and its ranks"
    suspects = "sitecustomize, .pth files"
    if moment == WORKER_MADE:
        suspects = "the worker's module, a library that it loads"
    return f"something changed it after the process began; look for what sets it ({suspects}, /etc/nccl.conf)"


def _no_communicator(plan: EnvironmentPlan) -> _Rung:
    found = [f"a communicator ({name})" for name in created()]
    if _distributed_initialised():
        found.append("an initialised torch.distributed")
    if read_log(plan.log_folder) is not None:
        found.append("a log of NCCL")
    findings = tuple(
        EnvironmentFinding(
            step=NO_COMMUNICATOR,
            verdict="mismatch",
            variable=None,
            planned="none before the proof",
            found=thing,
            cause="NCCL reads most variables once, when the first is made; look for what makes it (sitecustomize, .pth "
            "files, the worker's module)",
        )
        for thing in found
    )
    step = _step(NO_COMMUNICATOR, AT_START, "none", ", ".join(found) or "none", mismatch=bool(found))
    return _Rung(step, findings)


def _distributed_initialised() -> bool:
    """Without loading torch: what is not loaded has initialised nothing."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _files(plan: EnvironmentPlan, rank: int) -> _Rung:
    """NCCL sets what its files name, unless the environment has it: so only what is not planned would count."""
    planned = _planned(plan, rank)
    configured = configured_variables()
    findings = tuple(
        EnvironmentFinding(
            step=FILES,
            verdict="mismatch",
            variable=name,
            planned=None,
            found=value,
            cause=f"{path} sets it for NCCL; take it out there, or plan it with --nccl",
        )
        for path, name, value in configured
        if name not in planned and name not in plan.base
    )
    named = ", ".join(sorted({f"{name} in {path}" for path, name, _ in configured}))
    step = _step(
        FILES, AT_START, "no variable that is not planned", named or "no variables", mismatch=bool(findings)
    )
    return _Rung(step, findings)


def _words(plan: EnvironmentPlan, rank: int, log: NcclLog | None) -> _Rung:
    """What NCCL said that it took. It names a variable when it reads it, so silence proves nothing either way."""
    planned = {name: value for name, value in _planned(plan, rank).items() if name.startswith("NCCL_")}
    expected = f"{len(planned)} variables as planned"
    if log is None:
        why = "no log: no communicator was made" if plan.log_folder else "no log: NCCL_DEBUG is the user's own"
        return _Rung(_step(SPOKEN, WORKER_MADE, expected, why, known=False))
    findings = spoken_findings(log, planned)
    silent = unspoken(log, planned)
    found = f"{len(planned) - len(silent)} named" + (f", not named: {', '.join(silent)}" if silent else "")
    step = _step(SPOKEN, WORKER_MADE, expected, found, mismatch=bool(findings), known=not silent)
    return _Rung(step, findings)


def _facts(log: NcclLog | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"communicators": list(created())}
    if log is not None:
        facts |= {"completed": log.num_communicators, "transports": list(log.transports)}
        facts["choices"] = msgspec.to_builtins(log.choices)
        facts["warnings"] = list(log.warnings)
    return facts


def _step(
    name: str, moment: str, expected: str, found: str, *, mismatch: bool = False, known: bool = True
) -> EnvironmentStep:
    verdict = "mismatch" if mismatch else ("ok" if known else "unknown")
    return EnvironmentStep(name=name, moment=moment, expected=expected, found=found, verdict=verdict)


def _concluded(
    record: EnvironmentRecord, variables: tuple[EnvironmentVariable, ...], rungs: Sequence[_Rung]
) -> EnvironmentRecord:
    """The record with these steps added; under `strict` a mismatch is raised instead."""
    seen = {(finding.variable, finding.found) for finding in record.findings}
    new = [f for rung in rungs for f in rung.findings if (f.variable, f.found) not in seen]
    mismatches = [finding for finding in new if finding.verdict == "mismatch"]
    if mismatches and record.mode == "strict":
        text = "; it also ".join(finding.text() for finding in mismatches)
        raise RankFailure(f"rank {record.rank} {text} (--comm-proof warn starts in spite of it)", rank=record.rank)
    return msgspec.structs.replace(
        record,
        variables=variables,
        steps=(*record.steps, *(rung.step for rung in rungs)),
        findings=(*record.findings, *new),
        fingerprint=fingerprint(variables),
    )
