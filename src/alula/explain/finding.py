"""What a hypothesis says in the end. Formats nothing and judges nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum, StrEnum

import msgspec

from alula.explain.case import Case
from alula.profile.evidence import Evidence


class Status(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Tier(IntEnum):
    """What outranks what among findings of one status; inside a tier, milliseconds and confidence decide."""

    VOID = 0  # the numbers themselves cannot be trusted: a clamped device, a hang
    CEILING = 1  # no draft could save this configuration
    FAULT = 2  # something is broken, not slow
    COST = 3  # a part of the cycle costs too much
    TUNING = 4  # a better setting exists
    READING = 5  # how to read the numbers


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis's verdict on a case.

    ms: what it adds to a cycle, where that is known. part: the part of the waterfall that those milliseconds lie in
    (verify, draft, extend, host, "" for none). confidence: 0 to 1; of an undecided one, how strongly the evidence
    points to it without deciding. suspect: something in the evidence points here, so the report shows it in front of
    what was merely not examined. removable: a fix could take the milliseconds away (an expert union's it could not).
    weight: of two findings without milliseconds, which is likely to cost more.
    """

    id: str
    status: Status
    title: str
    text: str
    tier: Tier = Tier.COST
    ms: float | None = None
    part: str = ""
    confidence: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    next_step: str | None = None
    predicted_speedup: float | None = None
    suspect: bool = False
    removable: bool = True
    weight: float = 1.0


class Hypothesis(ABC):
    """One possible cause, which judges any case.

    predicts: what is seen if it holds; refuted_by: what is seen if it does not. needs: quantities or experiments
    ("experiment:eager_against_graph") that decide it.
    """

    id: str
    title: str
    predicts: str
    refuted_by: str
    needs: tuple[str, ...]

    @abstractmethod
    def judge(self, case: Case) -> Finding:
        """Confirmed, refuted or undecided, with the evidence for it."""

    def confirmed(self, text: str, **fields: object) -> Finding:
        return self._finding(Status.CONFIRMED, text, {"confidence": 0.8, "suspect": True, **fields})

    def refuted(self, text: str, **fields: object) -> Finding:
        return self._finding(Status.REFUTED, text, {"confidence": 0.8, **fields})

    def suspected(self, text: str, **fields: object) -> Finding:
        """Undecided, with something that points to it."""
        return self._finding(Status.UNDECIDED, text, {"confidence": 0.4, "suspect": True, **fields})

    def unknown(self, text: str, **fields: object) -> Finding:
        """Undecided, and nothing points to it."""
        return self._finding(Status.UNDECIDED, text, {"confidence": 0.0, **fields})

    def _finding(self, status: Status, text: str, fields: dict[str, object]) -> Finding:
        return msgspec.convert(
            {"id": self.id, "status": status, "title": self.title, "text": text, **fields}, Finding
        )
