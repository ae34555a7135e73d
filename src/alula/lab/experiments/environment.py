"""What each rank found in force of the environment that was planned for it."""

from __future__ import annotations

from typing import Any

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.profile.quantities import Quantity

UNSET = "unset"


class EnvironmentProof(Experiment):
    name = "environment_proof"
    least_s = 0.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if laboratory.described.tp == 1:
            return "there is one rank, in this process: nobody could lose a variable on the way"
        if all(record.mode == "off" for record in laboratory.llm.environment_records()):
            return "--comm-proof off: nobody looked"
        return None

    def run(self, laboratory: Laboratory, share: Share) -> None:
        for record in laboratory.llm.environment_records():
            for variable in record.variables:
                if variable.planned is not None and not variable.name.startswith(("RANK", "LOCAL_RANK")):
                    laboratory.add(self.name, Quantity.VARIABLE_PLANNED, variable.planned, name=variable.name)
                scope: dict[str, Any] = {"name": variable.name, "rank": record.rank}
                laboratory.add(self.name, Quantity.VARIABLE_SEEN, variable.found or UNSET, **scope)
            for finding in record.findings:
                if finding.verdict == "mismatch":
                    text = f"rank {record.rank} {finding.text()}"
                    laboratory.add(
                        self.name, Quantity.VARIABLE_MISMATCH, text, name=finding.variable or "", rank=record.rank
                    )
