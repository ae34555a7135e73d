"""Acceptance forced to nothing and to everything: what a cycle costs, whatever the head is worth."""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.second_engine import Served, Variation, serve
from alula.profile.quantities import Quantity

MOST_CYCLES, FEWEST_CYCLES = 40, 8


class ForcedAcceptance(Experiment):
    name = "forced_acceptance"

    def refusal(self, laboratory: Laboratory) -> str | None:
        return None if laboratory.has_draft else "there is no draft"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        """Cycles that accept no draft, and cycles that accept all."""
        each_ms = laboratory.cycle_ms() or 50.0
        cycles = max(FEWEST_CYCLES, min(MOST_CYCLES, int(500.0 * share.left_s / each_ms)))
        for name, tokens in (("none", 1.0), ("all", float(laboratory.steps + 1))):
            specs = laboratory.specs(f"forced-{name}", 1, round(cycles * tokens), laboratory.steps)
            work = partial(serve, specs=specs, variation=Variation(forced=tokens))
            served: Served = laboratory.llm.experiment(work)[0]
            times = [cycle.wall_ms for cycle in served.cycles if cycle.drafted]
            laboratory.times(self.name, Quantity.CYCLE_MS, times, variant=f"accepted {name}")
