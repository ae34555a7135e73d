"""The target alone at every width up to k + 1, everything else equal: what rows cost."""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.isolated import TARGET, Forwards, time_forwards
from alula.lab.laboratory import Laboratory
from alula.profile.quantities import Quantity

WIDEST = 4  # without a draft
FEWEST, MOST = 5, 41


class WidthSweep(Experiment):
    name = "width_sweep"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        """With collectives left out where there are several ranks: their cost is another experiment's."""
        widths = tuple(range(1, (laboratory.steps or WIDEST - 1) + 2))
        each_ms = 1.3 * (laboratory.plain_ms() or 20.0) * len(widths)
        rounds = max(FEWEST, min(MOST, int(1e3 * share.left_s / each_ms) - 2))
        wanted = Forwards(widths=widths, rounds=rounds, silent=laboratory.described.tp > 1)
        by_rank = laboratory.llm.experiment(partial(time_forwards, wanted=wanted))
        for width in widths:
            name = f"{TARGET} {width}"
            quickest = min(by_rank, key=lambda times: sorted(times[name])[rounds // 2])
            laboratory.times(self.name, Quantity.FORWARD_MS, quickest[name], phase="verify", width=width)
