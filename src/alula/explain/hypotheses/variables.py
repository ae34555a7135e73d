"""Variables that are not in force in a rank, or differ between ranks: planned is not the same as set."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_MATTERS = ("NCCL_", "VLLM_", "SGLANG_", "SGL_", "CUDA_DEVICE_MAX", "TRTLLM_", "TLLM_", "ALULA_", "TORCH_NCCL")


class VariablesNotInForce(Hypothesis):
    id = "variables_not_in_force"
    title = "Variables are not in force in every rank"
    predicts = "a planned variable that a rank does not have, or ranks with different values"
    refuted_by = "every rank shows every planned variable with its value"
    needs = ("variable_planned", "variable_seen", "nccl_env_logged", "experiment:environment_proof")

    def judge(self, case: Case) -> Finding:
        planned = {one.scope.name: one for one in _ours(case.both(Quantity.VARIABLE_PLANNED))}
        seen = _ours(case.both(Quantity.VARIABLE_SEEN))
        ignored = case.both(Quantity.VARIABLE_IGNORED)
        proven = case.both(Quantity.VARIABLE_MISMATCH)
        if proven:
            return self._proven(proven)
        problems = [
            *_differing(seen),
            *_missing(case, planned, seen),
            *_not_copied(case, planned, seen),
            *_unknown_to(ignored),
        ]
        step = advise(case, "nccl_environment") if "nccl" in str(planned).lower() or not planned else _generic(case)
        if problems:
            return self._problems(problems, step)
        in_force = all(_in_force(one, seen) for one in planned.values())
        if seen and in_force and (planned or len(_ranks(seen)) > 1):
            return self.refuted("Every variable found is the same in every rank seen.", evidence=cited(tuple(seen)))
        if planned:
            names = ", ".join(sorted(filter(None, planned)))
            return self.unknown(
                f"{names}: planned, but nothing shows whether the ranks have it.",
                evidence=cited(tuple(planned.values())),
                confidence=0.2,
                next_step=step,
            )
        return self.unknown("No environment of a rank was seen.", next_step=step)

    def _proven(self, found: tuple[Evidence, ...]) -> Finding:
        """Looked up inside of the processes themselves: a fault, whatever it costs."""
        told = dict.fromkeys(str(one.value).rstrip(".") for one in found)
        return self.confirmed(
            f"{'. '.join(list(told)[:4])}.",
            tier=Tier.FAULT,
            confidence=0.95,
            evidence=cited(found),
            fix="let every rank start with the planned value; what changes it stands in the evidence",
        )

    def _problems(self, problems: list[_Problem], step: str) -> Finding:
        text = " ".join(problem.text for problem in problems)
        sure = max(problem.confidence for problem in problems)
        seen = cited(*(problem.evidence for problem in problems))
        if sure < 0.5:
            return self.suspected(text, confidence=sure, evidence=seen, next_step=step, weight=1.5)
        return self.confirmed(
            text,
            confidence=sure,
            evidence=seen,
            weight=1.5,
            fix="set the variables where the workers are created, or in the engine's own option, and read "
            "them back per "
            "rank",
            next_step=step,
        )


class _Problem(msgspec.Struct):
    text: str
    confidence: float
    evidence: tuple[Evidence, ...]


def _ours(found: Iterable[Evidence]) -> list[Evidence]:
    return [one for one in found if (one.scope.name or "").startswith(_MATTERS)]


def _generic(case: Case) -> str:
    return "read /proc/PID/environ of every worker (`tr '\\0' '\\n' < /proc/PID/environ`)"


def _worker(one: Evidence) -> str | None:
    return f"rank {one.scope.rank}" if one.scope.rank is not None else one.scope.worker


def _ranks(found: Iterable[Evidence]) -> set[str]:
    return {worker for one in found if (worker := _worker(one))}


def _same(first: object, second: object) -> bool:
    return str(first).strip().strip("\"'").lower() == str(second).strip().strip("\"'").lower()


def _in_force(planned: Evidence, seen: list[Evidence]) -> bool:
    return any(one.scope.name == planned.scope.name and _same(one.value, planned.value) for one in seen)


def _differing(seen: list[Evidence]) -> Iterable[_Problem]:
    by_name: dict[str, list[Evidence]] = {}
    for one in seen:
        if _worker(one):
            by_name.setdefault(one.scope.name or "", []).append(one)
    for name, found in by_name.items():
        values = dict.fromkeys(str(one.value).strip() for one in found)
        per_worker = {_worker(one): str(one.value).strip() for one in found}
        if len(values) > 1 and len(set(per_worker.values())) > 1:
            shown = ", ".join(f"{worker}: {value}" for worker, value in list(per_worker.items())[:8])
            yield _Problem(f"{name} differs between ranks ({shown}).", 0.85, tuple(found))


def _missing(case: Case, planned: dict[str | None, Evidence], seen: list[Evidence]) -> Iterable[_Problem]:
    """Ranks whose NCCL lines or environment were read, but not with a variable that was planned or that others have."""
    logged = _ranks(case.both(Quantity.NCCL_RANK_LOGGED)) if case.both(Quantity.NCCL_ENV_LOGGED) else set()
    whole = _ranks(case.both(Quantity.ENVIRONMENT_READ))  # processes whose environment was read to its end
    known = logged | whole | _ranks(seen)
    names = {*(name for name in planned if name), *(one.scope.name for one in seen if one.scope.name)}
    for name in sorted(names):
        having = _ranks(one for one in seen if one.scope.name == name)
        if (name.startswith("NCCL_") or known == whole) and len(known) > 1 and having and having < known:
            lacking = ", ".join(sorted(known - having)[:8])
            evidence = tuple(one for one in seen if one.scope.name == name)
            yield _Problem(f"{name} is in {len(having)} of {len(known)} ranks; not in {lacking}.", 0.75, evidence)
        elif name in planned and known and not any(one.scope.name == name for one in seen):
            if name.startswith("NCCL_") or whole or not logged:
                yield _Problem(
                    f"{name} was planned, but 0 of {len(known)} ranks show it.",
                    0.7,
                    cited(planned[name], case.both(Quantity.NCCL_RANK_LOGGED)),
                )
        elif name in planned and not _in_force(planned[name], seen):
            other = next((one for one in seen if one.scope.name == name), None)
            if other is not None:
                text = (
                    f"{name} was planned as {planned[name].value}, but is {other.value} in "
                    f"{_worker(other) or 'a rank'}."
                )
                yield _Problem(text, 0.75, (planned[name], other))


def _not_copied(case: Case, planned: dict[str | None, Evidence], seen: list[Evidence]) -> Iterable[_Problem]:
    for copied in case.both(Quantity.VARIABLES_COPIED):
        names = {part.strip(" '\"[]") for part in str(copied.value).split(",")}
        lost = [
            name
            for name in planned
            if name and name not in names and not any(one.scope.name == name for one in seen)
        ]
        if lost:
            yield _Problem(
                f"The launcher hands a list of variables to its workers, and {', '.join(sorted(lost))} is not "
                f"on it.",
                0.7,
                (copied, *(planned[name] for name in lost)),
            )
        elif not planned and not any(name.startswith("NCCL_") for name in names):
            yield _Problem("The launcher's list of variables for its workers has no NCCL_ name.", 0.3, (copied,))


def _unknown_to(ignored: tuple[Evidence, ...]) -> Iterable[_Problem]:
    for one in ignored:
        yield _Problem(f"The engine does not know {one.scope.name or one.value} and ignores it.", 0.7, (one,))
