"""From a plain step to a cycle in parts that add up, with what is not explained named as such.

A cycle is a plain step, what verify takes beyond it, the draft's phases, the host's part, and a remainder. Inside a
phase, findings with milliseconds are cut out, in the order of their rank and never more than the phase has left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.explain.case import Case
from alula.explain.finding import Finding, Status
from alula.explain.rates import best
from alula.profile.quantities import Quantity

REMAINDER = "not explained"
_SMALLEST_MS = 1e-9
_LARGE = 0.3  # of a plain step
_SWEPT = (None, "graph")  # variants of a width sweep


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One bar. ms may be negative: a remainder where parts overlap, a verify that is faster than a plain step."""

    part: str
    ms: float


def waterfall(case: Case, findings: Sequence[Finding]) -> tuple[Part, ...]:
    """The parts; their sum is the cycle, or what is known of it. () where the plain step or the cycle is not known."""
    sums = case.sums
    if sums.plain_ms is None or sums.known_cycle_ms is None:
        return ()
    plain, total = sums.plain_ms.value, sums.known_cycle_ms.value
    parts = [Part(part="plain step", ms=plain)]
    left = total - plain
    for name, size in _phases(case, plain):
        left -= size
        rows = _rows(case, size, findings) if name == "verify" else 0.0
        if rows:
            parts.append(Part(part=f"verify: rows 2 to {case.sums.width}, measured alone", ms=rows))
        parts += _cut(name, size - rows, findings, _LARGE * plain)
    if abs(left) > _SMALLEST_MS:
        parts += _rest(left, findings, {name for name, _ in _phases(case, plain)})
    return tuple(parts)


def _phases(case: Case, plain: float) -> list[tuple[str, float]]:
    """Phases whose time is known: what they take beyond the same phase of a plain step.

    Where the plain step's own phases are not known, verify is compared with the whole of it, and the host's part with
    nothing: what the plain step spends there is in its own bar already.
    """
    sums = case.sums
    forward = case.plain.number(Quantity.PHASE_MS, phase="decode", batch=round(sums.batch))
    own_host = best(case.spec, Quantity.HOST_MS, sums.batch)
    plain_host = best(case.plain, Quantity.HOST_MS, sums.batch)
    host = (own_host.number or 0.0) if own_host and sums.cycle_ms else None
    if host is not None and plain_host is not None and forward is not None:
        host -= plain_host.number or 0.0
    known = {
        "verify": sums.verify_ms.value - (plain if forward is None else forward) if sums.verify_ms else None,
        "draft": sums.draft_ms.value if sums.draft_ms else None,
        "extend": sums.extend_ms.value if sums.extend_ms else None,
        "accept": _accept(case),
        "host": host,
    }
    return [(name, ms) for name, ms in known.items() if ms is not None]


def _rows(case: Case, size: float, findings: Sequence[Finding]) -> float:
    """What a width sweep says that verify's further rows cost; 0 where a finding has taken these milliseconds."""
    width = case.sums.width
    if size <= 0 or any(one.part == "verify" and one.ms and one.status is Status.CONFIRMED for one in findings):
        return 0.0
    one, all_rows = (
        next(
            (ms.number or 0.0 for ms in case.both(Quantity.FORWARD_MS, width=w) if ms.scope.variant in _SWEPT), 0.0
        )
        for w in (1, width)
    )
    return min(size, max(0.0, all_rows - one)) if one and all_rows else 0.0


def _accept(case: Case) -> float | None:
    """Accepting and sampling beyond what the plain step spends on it; only where both are known."""
    own, plain = (run.number(Quantity.PHASE_MS, phase="accept") for run in (case.spec, case.plain))
    return own - plain if own is not None and plain is not None else None


_NAMES = {
    "verify": "verify beyond a plain step",
    "draft": "draft",
    "extend": "extend",
    "accept": "accept",
    "host": "host",
}


def _cut(name: str, size: float, findings: Sequence[Finding], large: float) -> list[Part]:
    """A phase, its explained parts first. What verify takes beyond a plain step is no explanation of itself, unless it
    is as little as a few rows cost; what draft, extend and host take is.
    """
    parts, left = _explained(name, size, findings)
    if not parts and (name != "verify" or size <= large):
        return [Part(part=_NAMES[name], ms=size)]
    if abs(left) > _SMALLEST_MS:
        parts.append(Part(part=f"{_NAMES[name]}, {REMAINDER}", ms=left))
    return parts


def _rest(left: float, findings: Sequence[Finding], known: set[str]) -> list[Part]:
    """What lies outside of the known phases, and what findings say of it."""
    parts: list[Part] = []
    for name in _NAMES:
        if name not in known:
            found, left = _explained(name, left, findings)
            parts += found
    return [*parts, Part(part=REMAINDER, ms=left)] if abs(left) > _SMALLEST_MS or not parts else parts


def _explained(name: str, size: float, findings: Sequence[Finding]) -> tuple[list[Part], float]:
    parts: list[Part] = []
    left = size
    for finding in findings:
        counts = finding.status is Status.CONFIRMED or (finding.id == "expert_union" and finding.ms is not None)
        if finding.part != name or not counts or finding.ms is None or finding.ms <= 0 or left <= _SMALLEST_MS:
            continue
        taken = min(finding.ms, left)
        parts.append(Part(part=f"{name}: {_short(finding)}", ms=taken))
        left -= taken
    return parts, left


def _short(finding: Finding) -> str:
    if finding.id == "expert_union":
        return "extra expert weights (arithmetic)"
    title = finding.title[:1].lower() + finding.title[1:]
    return title.removeprefix(f"{finding.part} ")
