"""A fast all-reduce backend that was refused, switched off, or claimed and not engaged."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, kilobytes, message_bytes, reductions, verify_rows
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_MAIN = ("custom", "custom_v2", "")
_WHERE = "in plain steps and in verify"


class BackendRefused(Hypothesis):
    id = "allreduce_backend_refused"
    title = "A fast all-reduce backend does not run"
    predicts = "a line that refuses it, or a switch that turns it off; every all-reduce goes through NCCL"
    refuted_by = "addresses registered for it (more than 0), or its kernels in a trace"
    needs = ("allreduce_refused", "allreduce_engaged", "custom_allreduce_disabled")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("One rank: there are no all-reduces.", evidence=cited(case.both(Quantity.TP)))
        refused = case.both(Quantity.ALLREDUCE_REFUSED)
        engaged = (*_engaged(case.spec), *_engaged(case.plain))
        plain, spec = (_off(run) for run in (case.plain, case.spec))
        if plain and not spec and _runs_fast(case.spec, plain):
            return self.refuted(
                "It runs in the speculative run; only the plain run has it off, which slows plain steps.",
                evidence=cited(plain, engaged),
                confidence=0.6,
            )
        if plain or spec:
            alone = bool(spec) and not plain and _runs_fast(case.plain, spec)
            return self._confirmed(case, (*spec, *plain), engaged if not alone else (), alone)
        if engaged:
            return self.refuted(
                f"{engaged[0].scope.name or 'a fast backend'} was engaged.",
                evidence=cited(engaged),
                confidence=0.75,
            )
        timed, cost = _table(case)
        if cost is not None:
            return self.suspected(
                f"The measured latencies leave something to gain.{timed}", ms=None, evidence=_timed_evidence(case)
            )
        if refused:
            return self.suspected(
                f"Refused: {_reasons(refused)} Others may run instead.",
                evidence=cited(refused),
                confidence=0.2,
                next_step=advise(case, "allreduce_path"),
            )
        return self.unknown(
            "No line refuses a backend; that no warning was printed does not prove that the backend ran.",
            next_step=advise(case, "allreduce_path"),
        )

    def _confirmed(
        self,
        case: Case,
        off: tuple[Evidence, ...],
        engaged: tuple[Evidence, ...],
        alone: bool,
    ) -> Finding:
        """off: what says so. alone: the plain run has the fast backend, so verify alone pays."""
        refused = tuple(one for one in off if one.quantity is Quantity.ALLREDUCE_REFUSED)
        what = "Custom all-reduce is off"
        why = f": {_reasons(refused)}" if refused else ": it was switched off by an option."
        count = reductions(case)
        number = f"All {count} all-reduces of a forward" if count else "All all-reduces"
        where = "in the speculative run alone: the plain run has the fast backend" if alone else _WHERE
        text = f"{what}{why} {number} go through NCCL, {where}."
        claims = tuple(one for one in case.both(Quantity.ALLREDUCE_CLAIMED) if _positive(one))
        if claims and refused:
            text += (
                f" A launcher claims otherwise ({claims[0].text[:120] or claims[0].value}); the engine's "
                f"line counts."
            )
        timed, cost = _table(case)
        return self.confirmed(
            f"{text}{timed}",
            ms=cost,
            part="verify",
            confidence=0.5 if engaged else 0.8,
            evidence=cited(off, claims, engaged, _timed_evidence(case)),
            weight=2.2 if alone else 1.2,
            fix=_fix(case, refused),
            next_step=advise(case, "allreduce_path"),
            predicted_speedup=None,
        )


def _off(run: RunFacts) -> tuple[Evidence, ...]:
    """What says of this run that its fast all-reduce does not run."""
    refused = tuple(one for one in run.all(Quantity.ALLREDUCE_REFUSED) if (one.scope.name or "") in _MAIN)
    return (*refused, *(one for one in run.all(Quantity.CUSTOM_ALLREDUCE_DISABLED) if one.value is True))


def _engaged(run: RunFacts) -> tuple[Evidence, ...]:
    """What says that a fast backend ran. NCCL's kernels in a trace say the opposite."""
    found = (one for one in run.all(Quantity.ALLREDUCE_ENGAGED) if one.value is True)
    return tuple(one for one in found if "nccl" not in (one.scope.name or "").lower())


def _runs_fast(run: RunFacts, off: tuple[Evidence, ...]) -> bool:
    """Whether this run has what is off in the other: it engaged, or the other's option alone makes the difference."""
    if _engaged(run):
        return True
    option = Quantity.CUSTOM_ALLREDUCE_DISABLED
    return all(one.quantity is option for one in off) and any(one.value is False for one in run.all(option))


# What a refusal's reason calls for, where no other backend on the same ranks would do.
_CURES = (
    ("world size", "a number of ranks that it supports, or data parallelism over groups of that many"),
    ("across nodes", "keep a tensor-parallel group within one node"),
    ("library", "an installation that has its library"),
)


def _fix(case: Case, refused: tuple[Evidence, ...]) -> str:
    if not refused:
        return "remove the option that switches custom all-reduce off, unless it cures a hang"
    reasons = _reasons(refused).lower()
    cure = next((cure for word, cure in _CURES if word in reasons), None)
    return cure or f"an all-reduce over peer memory that works on this box: {advise(case, 'custom_allreduce')}"


def _reasons(refused: tuple[Evidence, ...]) -> str:
    found = dict.fromkeys(str(one.value).strip().rstrip(".") for one in refused)
    return "; ".join(list(found)[:3])[:300] + "."


def _positive(one: Evidence) -> bool:
    if isinstance(one.value, bool):
        return one.value
    return str(one.value).lower() not in ("off", "no", "disabled", "false")


def _timed_evidence(case: Case) -> tuple[Evidence, ...]:
    return case.both(Quantity.ALLREDUCE_US)


def _table(case: Case) -> tuple[str, float | None]:
    """What a table of latencies says: NCCL against the fastest other at verify's size, and where they cross."""
    by_size: dict[int, dict[str, float]] = {}
    for one in _timed_evidence(case):
        if one.scope.num_bytes and one.number is not None:
            by_size.setdefault(one.scope.num_bytes, {})[(one.scope.name or "").lower()] = one.number
    gains = {size: _gain(times) for size, times in by_size.items()}
    known = {size: gain for size, gain in gains.items() if gain is not None}
    if not known:
        return "", None
    size = message_bytes(case, verify_rows(case)) or message_bytes(case, 1) or min(known)
    nearest = min(known, key=lambda known_size: abs(known_size - size))
    count = reductions(case)
    text = (
        f" At {kilobytes(nearest)} NCCL is {shown(known[nearest])} µs slower a call than the fastest other backend."
    )
    crossing = [known_size for known_size, gain in sorted(known.items()) if gain <= 0]
    if crossing:
        text += f" From about {kilobytes(crossing[0])} on NCCL is the faster one."
    if count is None or known[nearest] <= 0:
        return text, None
    cost = count * known[nearest] / 1000.0
    return f"{text} {count} calls x {shown(known[nearest])} µs = {shown(cost)} ms a forward.", cost


def _gain(times: dict[str, float]) -> float | None:
    nccl = next((time for name, time in times.items() if "nccl" in name), None)
    others = [time for name, time in times.items() if "nccl" not in name]
    return nccl - min(others) if nccl is not None and others else None
