"""Clocks, power and heat: a device that is held down makes every number void."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited
from alula.plan.gpus import find_gpu
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_CLAMPED, _APART, _BUSY, _FINE = 0.6, 0.15, 0.3, 0.85
_GENTLE = ("power cap", "power capping", "idle", "applications", "none")


class ClocksHeldDown(Hypothesis):
    id = "clocks_held_down"
    title = "A device runs below its clock: power, heat or a clamp"
    predicts = "an SM clock far under the maximum while busy, throttle reasons, one device slower than the others"
    refuted_by = "clocks near the maximum on every device under load, no throttle reason"
    needs = ("clock_mhz", "clock_max_mhz", "throttle", "utilisation", "gemm_tflops")

    def judge(self, case: Case) -> Finding:
        signs = (*_low_clocks(case), *_throttles(case), *_uneven(case, Quantity.GEMM_TFLOPS, "matrix products"))
        step = advise(case, "clocks")
        if signs:
            sure = max(sign[1] for sign in signs)
            text = " ".join(sign[0] for sign in signs[:6])
            seen = cited(*(sign[2] for sign in signs))
            if sure >= 0.5:
                return self.confirmed(
                    f"{text} Stop comparing: every number taken in this state is void.",
                    tier=Tier.VOID,
                    confidence=sure,
                    evidence=seen,
                    fix="find what holds the device down (power limit, cooling, a firmware clamp: a full "
                    "power cycle clears "
                    "one that no reset does), then measure again",
                    next_step=step,
                )
            return self.suspected(text, confidence=sure, evidence=seen, tier=Tier.VOID, next_step=step)
        clocks = case.both(Quantity.CLOCK_MHZ)
        if clocks and all((_share(case, one) or 0.0) >= _FINE for one in clocks):
            return self.refuted("Clocks are near their maximum.", evidence=cited(clocks))
        if clocks:
            return self.unknown(
                "Clocks were seen, but not whether the device was busy.", evidence=cited(clocks), next_step=step
            )
        return self.unknown(
            "Clocks are not known; where a monitor shows nothing, time one large matrix product on every device.",
            next_step=step,
        )


def _share(case: Case, clock: Evidence) -> float | None:
    """A clock over its maximum, as printed beside it or as the data sheet has it."""
    most = case.number(Quantity.CLOCK_MAX_MHZ, rank=clock.scope.rank) or case.number(Quantity.CLOCK_MAX_MHZ)
    if most is None and (name := case.text(Quantity.GPU)):
        gpu = find_gpu(name)
        most = gpu.clock_max_mhz if gpu else None
    return clock.number / most if most and clock.number is not None else None


def _low_clocks(case: Case) -> list[tuple[str, float, tuple[Evidence, ...]]]:
    found = []
    for clock in case.both(Quantity.CLOCK_MHZ):
        share = _share(case, clock)
        busy = case.number(Quantity.UTILISATION, rank=clock.scope.rank)
        low = (share is not None and share < _CLAMPED) or (share is None and (clock.number or 1e9) < 900)
        if not low or (busy is not None and busy < _BUSY):
            continue
        power = case.number(Quantity.POWER_W, rank=clock.scope.rank)
        text = f"SM clock {shown(clock.number or 0.0)} MHz"
        text += f" ({100 * share:.0f} % of its maximum)" if share is not None else ""
        text += f" at {shown(power)} W" if power is not None else ""
        sure = 0.8 if busy is not None and share is not None else 0.6 if busy is not None else 0.4
        text += "." if busy is not None else ", if it was busy then."
        found.append((text, sure, (clock, *case.both(Quantity.POWER_W, rank=clock.scope.rank))))
    return found or _uneven(case, Quantity.CLOCK_MHZ, "SM clocks")


def _throttles(case: Case) -> list[tuple[str, float, tuple[Evidence, ...]]]:
    active = [one for one in case.both(Quantity.THROTTLE) if one.value is True]
    hard = [one for one in active if not any(word in (one.scope.name or "").lower() for word in _GENTLE)]
    if hard:
        names = ", ".join(sorted({one.scope.name or "throttle" for one in hard}))
        return [(f"Throttle reasons are active: {names}.", 0.75, tuple(hard))]
    capped = [one for one in active if "power cap" in (one.scope.name or "").lower()]
    return [("The power cap is reached, which is usual under full load.", 0.2, tuple(capped))] if capped else []


def _uneven(case: Case, quantity: Quantity, what: str) -> list[tuple[str, float, tuple[Evidence, ...]]]:
    """Devices of one box that differ, all of them busy as far as known."""
    found = [one for one in case.both(quantity) if one.scope.rank is not None and one.number]
    busy = [one for one in found if (case.number(Quantity.UTILISATION, rank=one.scope.rank) or 1.0) >= _BUSY]
    if len(busy) < 2:
        return []
    ordered = sorted(busy, key=lambda one: one.number or 0.0)
    low, high = ordered[0], ordered[-1]
    if (low.number or 0.0) >= (1 - _APART) * (high.number or 0.0):
        return []
    told = (
        f"{what} differ between devices: {shown(low.number or 0)} on {low.scope.rank}, "
        f"{shown(high.number or 0)} on {high.scope.rank}."
    )
    return [(told, 0.6, (low, high))]
