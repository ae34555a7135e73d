"""What an experiment is: a name that hypotheses know, a bound in time, a reason where it does not apply.

Knows no experiment and no engine; `registry.py` lists them, `runner.py` runs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from alula.lab.budget import Share
from alula.lab.laboratory import Laboratory

DONE, PARTLY, NOT_APPLICABLE, NOT_RUN, FAILED = "done", "partly", "not applicable", "not run", "failed"


class Experiment(ABC):
    """One measurement. name: as in a hypothesis's `needs` ("experiment:NAME"). share: of the budget that it may take.
    least_s: with less time left it is not begun.
    """

    name: str
    share: float = 0.08
    least_s: float = 0.5

    def refusal(self, laboratory: Laboratory) -> str | None:
        """Why it says nothing here ("one rank"); None where it applies."""
        del laboratory
        return None

    @abstractmethod
    def run(self, laboratory: Laboratory, share: Share) -> None:
        """Measures within the share and leaves evidence in the laboratory. The engine is afterwards as before."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one experiment. why: where it was not done."""

    name: str
    status: str
    why: str = ""
    seconds: float = 0.0

    def words(self) -> str:
        return f"{self.name}: {self.status}{f': {self.why}' if self.why else ''}"
