"""A number that was worked out, with the formula and the numbers it came from. Knows no formula itself."""

from __future__ import annotations

import msgspec

from alula.profile.evidence import Evidence


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """value in `unit`. at_least: a lower bound. confidence: 1 for what was measured, less for what is approximate."""

    name: str
    value: float
    unit: str
    formula: str
    evidence: tuple[Evidence, ...] = ()
    at_least: bool = False
    confidence: float = 1.0

    def words(self) -> str:
        """ "cycle in plain steps at least 2.38 = 29 ms / 12.2 ms"."""
        bound = "at least " if self.at_least else ""
        return f"{self.name} {bound}{shown(self.value)}{f' {self.unit}' if self.unit else ''} = {self.formula}"


def measured(name: str, evidence: Evidence, unit: str) -> Figure | None:
    """Evidence as a figure; None where it is not a positive number."""
    number = evidence.number
    if number is None or number <= 0:
        return None
    where = f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source
    spread = ""
    if evidence.low is not None and evidence.high is not None:
        spread = f", {shown(evidence.low)} to {shown(evidence.high)}"
    samples = f", median of {evidence.num_samples}{spread}" if evidence.num_samples > 1 else ""
    formula = f"{evidence.quantity} of {where or 'the input'}{samples}"
    return Figure(name=name, value=number, unit=unit, formula=formula, evidence=(evidence,))


def derived(
    name: str, value: float, unit: str, formula: str, *inputs: Figure | None, at_least: bool = False
) -> Figure:
    """A figure from others: it cites all their evidence and is no surer than the least sure of them."""
    known = [one for one in inputs if one is not None]
    return Figure(
        name=name,
        value=value,
        unit=unit,
        formula=formula,
        evidence=_cited(known),
        at_least=at_least or any(one.at_least for one in known),
        confidence=min((one.confidence for one in known), default=1.0),
    )


def _cited(figures: list[Figure]) -> tuple[Evidence, ...]:
    cited: list[Evidence] = []
    for figure in figures:
        cited += [one for one in figure.evidence if one not in cited]
    return tuple(cited)


def shown(value: float) -> str:
    """A number as people read it: three or four digits that count, no exponent for ordinary sizes."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        return f"{value:.3g}"
    if size >= 100:
        return f"{value:.1f}".rstrip("0").rstrip(".")
    return (f"{value:.2f}" if size >= 1 else f"{value:.3f}").rstrip("0").rstrip(".")
