"""The verdict: schema 1, for live and foreign evidence alike. Ranks what the hypotheses found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from alula.explain.answer import answer
from alula.explain.case import Case
from alula.explain.derived import further_figures
from alula.explain.figures import Figure
from alula.explain.finding import Finding, Status
from alula.explain.hypotheses.registry import HYPOTHESES
from alula.explain.known_faults import fields_to_read_with_care
from alula.explain.waterfall import Part, waterfall
from alula.profile.evidence import Evidence

SCHEMA = 1
PAYS_NOT = 3  # exit code of a command whose verdict is that speculation does not pay
_STATUS_ORDER = {Status.CONFIRMED: 0, Status.UNDECIDED: 1, Status.REFUTED: 2}
_WORTH_SAYING = 0.5  # a suspicion about a run that pays
_DOUBT = 0.75  # what contradictions leave of a confidence


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a case. findings: ranked. case: what it was judged from."""

    answer: str
    findings: tuple[Finding, ...]
    waterfall: tuple[Part, ...]
    case: Case

    @property
    def exit_code(self) -> int:
        return PAYS_NOT if self.case.sums.pays is False else 0

    @property
    def remainder_ms(self) -> float | None:
        """Milliseconds of the waterfall that nothing explains; None without a waterfall."""
        if not self.waterfall:
            return None
        return sum(part.ms for part in self.waterfall if "not explained" in part.part)


def judge(case: Case) -> Verdict:
    """Puts every hypothesis to the case and ranks what they find."""
    findings = [_doubted(hypothesis.judge(case), case) for hypothesis in HYPOTHESES]
    kept = [finding for finding in findings if not finding.id.startswith("known.") or finding.suspect]
    ranked = tuple(sorted(kept, key=rank))
    return Verdict(answer=answer(case, ranked), findings=ranked, waterfall=waterfall(case, ranked), case=case)


def rank(finding: Finding) -> tuple[int, int, float, float, float]:
    """Confirmed, then undecided with a suspicion, refuted, not examined; inside, by tier and milliseconds."""
    order = _STATUS_ORDER[finding.status]
    if finding.status is Status.UNDECIDED and not finding.suspect:
        order = 3
    ms = finding.ms if finding.ms is not None and finding.removable else 0.0
    return order, int(finding.tier), -ms, -finding.weight, -finding.confidence


def _doubted(finding: Finding, case: Case) -> Finding:
    """Less sure where the run contradicts itself; no vague suspicion where speculation pays."""
    if case.sums.pays and finding.status is Status.UNDECIDED and finding.confidence < _WORTH_SAYING:
        return msgspec.structs.replace(finding, suspect=False)
    if not case.contradicts_itself or finding.id == "contradictory_evidence":
        return finding
    return msgspec.structs.replace(finding, confidence=finding.confidence * _DOUBT)


def as_document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON-able values, with the keys of schema 1. Absent values are null."""
    sums = verdict.case.sums
    return {
        "schema": SCHEMA,
        "answer": verdict.answer,
        "pays": sums.pays,
        "speedup": _value(sums.speedup),
        "plain_step_ms": _value(sums.plain_ms),
        "cycle_ms": _value(sums.cycle_ms),
        "tokens_per_cycle": _value(sums.tokens_per_cycle),
        "break_even_tokens_per_cycle": _value(sums.break_even),
        "ceiling_tokens_per_cycle": _value(sums.ceiling),
        "waterfall": [{"part": part.part, "ms": part.ms} for part in verdict.waterfall],
        "findings": [_finding(finding) for finding in verdict.findings],
        "facts": _facts(verdict.case),
        "recognised": [
            {"reader": name, "values": count} for name, count in sorted(verdict.case.recognised.items())
        ],
    }


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "status": finding.status.value,
        "title": finding.title,
        "text": finding.text,
        "ms": finding.ms,
        "confidence": round(finding.confidence, 3),
        "evidence": [{"source": one.source, "line": one.line, "text": shown_text(one)} for one in finding.evidence],
        "fix": finding.fix,
        "next_step": finding.next_step,
        "predicted_speedup": finding.predicted_speedup,
    }


def shown_text(evidence: Evidence) -> str:
    """The line as found; what it says where there is no line."""
    return evidence.text or evidence.words()


def _facts(case: Case) -> dict[str, Any]:
    lower_bounds = [figure.name for figure in case.sums.figures() if figure.at_least]
    return {
        "derived": [figure.words() for figure in (*case.sums.figures(), *further_figures(case))],
        "lower_bounds": lower_bounds,
        "acceptance_by_position": list(case.sums.by_position),
        "plain": _known(case.plain),
        "speculative": _known(case.spec),
        "other_runs": [_known(run) for run in case.others],
        "contradictions": [one.words() for one in case.contradictions],
        "read_with_care": list(fields_to_read_with_care(case)),
        "notes": list(case.notes),
    }


def _known(run: Iterable[Evidence]) -> dict[str, Any]:
    """A run's facts, shortest form: quantity -> value, or values."""
    found: dict[str, list[Any]] = {}
    for one in run:
        scope = one.scope.words()
        name = f"{one.quantity.value}[{scope}]" if scope else one.quantity.value
        values = found.setdefault(name, [])
        if one.value not in values and len(values) < 8 and one.quantity.value != "command":
            values.append(one.value)
    limited = list(found.items())[:200]
    return {name: values[0] if len(values) == 1 else values for name, values in limited if values}
