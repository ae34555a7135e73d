"""Peer access between GPUs: switched off, missing, or dead."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_BUSY, _IDLE_POWER = 0.95, 0.4
_IDLE_POWER_W = 130.0  # where the limit is not known: data-centre and workstation cards that wait draw 60 to 130 W


class PeerAccessOff(Hypothesis):
    id = "p2p_off"
    title = "Peer access between the GPUs is off: messages go through host memory"
    predicts = "NCCL_P2P_DISABLE=1, SHM or NET transports, `P2P is disabled`, a driver without peer access"
    refuted_by = "P2P transports on every channel"
    needs = ("p2p", "nccl_transport", "variable_seen")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("One rank: nothing crosses between GPUs.", evidence=cited(case.both(Quantity.TP)))
        variables = tuple(one for run in (case.spec, case.plain) for one in switched_off(run))
        off = tuple(
            one for one in case.both(Quantity.P2P) if str(one.value).lower() in ("off", "false", "disabled")
        )
        transports = case.both(Quantity.NCCL_TRANSPORT)
        slow = tuple(one for one in transports if str(one.value).upper() in ("SHM", "NET"))
        direct = tuple(one for one in transports if str(one.value).upper() == "P2P")
        seen = cited(variables, off, slow, case.both(Quantity.P2P_REASON))
        if variables or off or (slow and not direct):
            return self._confirmed(case, seen, variables, off, slow)
        if slow:
            return self.suspected(
                "Some channels go through host memory or the network, some are direct.",
                evidence=cited(slow, direct),
                next_step=advise(case, "transport"),
            )
        if direct:
            return self.refuted("Channels are direct (P2P).", evidence=cited(direct))
        return self.unknown("How the GPUs reach each other is not known.", next_step=advise(case, "transport"))

    def _confirmed(
        self,
        case: Case,
        seen: tuple[Evidence, ...],
        variables: tuple[Evidence, ...],
        off: tuple[Evidence, ...],
        slow: tuple[Evidence, ...],
    ) -> Finding:
        parts = []
        if variables:
            parts.append(
                f"{variables[0].scope.name}={variables[0].value} is set, perhaps left over from a hang: "
                f"custom all-reduce "
                "cannot engage and NCCL goes through host memory."
            )
        if off:
            reason = case.text(Quantity.P2P_REASON)
            parts.append(
                f"Peer access is off{f' ({reason[:120]})' if reason else ''}: custom all-reduce cannot engage."
            )
        if slow:
            found = ", ".join(sorted({str(one.value).upper() for one in slow}))
            parts.append(f"NCCL's channels go via {found}.")
        walls = _walls(case)
        if walls:
            parts.append("The host redirects peer writes (IOMMU, ACS), which breaks or slows them.")
            seen = cited(seen, walls)
        fix = "cure the cause (IOMMU in pass-through, ACS redirect off, a driver with peer access), then let P2P on"
        if variables:
            fix = f"remove {variables[0].scope.name}; if it then hangs, {fix}"
        return self.confirmed(
            " ".join(parts),
            evidence=seen,
            confidence=0.85 if variables or off else 0.7,
            part="verify",
            weight=1.8,
            fix=fix,
            next_step=advise(case, "transport"),
        )


def switched_off(run: RunFacts) -> tuple[Evidence, ...]:
    """Variables of a run that switch peer access off."""
    found = (*run.all(Quantity.VARIABLE_SEEN), *run.all(Quantity.VARIABLE_PLANNED))
    return tuple(
        one
        for one in found
        if (one.scope.name == "NCCL_P2P_DISABLE" and str(one.value).strip() in ("1", "true", "True"))
        or (one.scope.name == "NCCL_P2P_LEVEL" and str(one.value).strip().upper() == "LOC")
    )


class PeerPathDead(Hypothesis):
    id = "p2p_dead"
    title = "The peer path is dead: ranks spin in an all-reduce that never ends"
    predicts = "full utilisation at idle power; the log ends at the dispatch of an all-reduce"
    refuted_by = "decode goes on after the first all-reduce"
    needs = ("utilisation", "power_w", "last_line", "iommu", "acs_redirect")

    def judge(self, case: Case) -> Finding:
        spinning = _spinning(case)
        last = tuple(one for one in case.both(Quantity.LAST_LINE) if _about_reduction(one))
        walls = _walls(case)
        moving = case.spec.all(Quantity.TOKENS_PER_S) or case.spec.all(Quantity.TOKENS_PER_CYCLE)
        if moving and not (spinning and last):
            return self.refuted("Tokens are produced: nothing hangs.", evidence=cited(moving[:1]), confidence=0.8)
        signs = (bool(spinning), bool(last), bool(walls))
        seen = cited(spinning, last, walls)
        step = (
            "start with NCCL_P2P_DISABLE=1 and custom all-reduce off (--disable-custom-all-reduce): if it "
            "runs, the peer path "
            "is at fault; a kernel that seems to hang after it is only queued behind the all-reduce"
        )
        if sum(signs) >= 2:
            return self.confirmed(
                "GPUs are fully busy at idle power or the log ends in an all-reduce, on a host that redirects "
                "peer writes: "
                "the peer path is dead.",
                tier=Tier.VOID,
                evidence=seen,
                confidence=0.7 if all(signs) else 0.6,
                fix="IOMMU off or in pass-through (iommu=pt), ACS redirect off; until then "
                "NCCL_P2P_DISABLE=1, which is slow",
                next_step=step,
            )
        if any(signs):
            return self.unknown(
                "One sign alone, which has other causes too.", evidence=seen, confidence=0.2, next_step=step
            )
        return self.unknown("No sign of a hang.")


def _walls(case: Case) -> tuple[Evidence, ...]:
    """What stands between two devices: an IOMMU that translates, switches that redirect."""
    found = (*case.both(Quantity.IOMMU), *case.both(Quantity.ACS_REDIRECT))
    return tuple(one for one in found if one.value is True or str(one.value).lower() in ("on", "translated"))


def _spinning(case: Case) -> tuple[Evidence, ...]:
    """Devices at full utilisation that draw little: they wait in a kernel."""
    found: list[Evidence] = []
    for busy in case.both(Quantity.UTILISATION):
        if busy.number is None or busy.number < _BUSY:
            continue
        power = case.number(Quantity.POWER_W, rank=busy.scope.rank)
        limit = case.number(Quantity.POWER_LIMIT_W, rank=busy.scope.rank)
        if power is not None and power < (_IDLE_POWER * limit if limit else _IDLE_POWER_W):
            found += [busy, *case.both(Quantity.POWER_W, rank=busy.scope.rank)]
    return tuple(found)


def _about_reduction(one: Evidence) -> bool:
    text = f"{one.value} {one.text}".lower()
    return any(word in text for word in ("allreduce", "all-reduce", "all_reduce", "graph_capture", "capturing"))
