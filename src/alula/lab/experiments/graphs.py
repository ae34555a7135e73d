"""Each phase of a cycle eagerly and as its graph: what launching its kernels one by one would cost, or costs."""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.isolated import DRAFT_STEP, EXTEND, TARGET, Forwards, time_forwards
from alula.lab.laboratory import Laboratory
from alula.profile.quantities import Quantity

FEWEST, MOST = 3, 21


class EagerAgainstGraph(Experiment):
    name = "eager_against_graph"

    def refusal(self, laboratory: Laboratory) -> str | None:
        if not laboratory.on_gpu:
            return "a CPU has no graphs"
        return None if laboratory.device_resident else "no device-resident cycle, so no graphs"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        width = laboratory.steps + 1
        each_ms = 6.0 * (laboratory.plain_ms() or 20.0)
        rounds = max(FEWEST, min(MOST, int(1e3 * share.left_s / each_ms) - 2))
        names = {f"{TARGET} {width}": "verify", DRAFT_STEP: "draft", EXTEND: "extend", f"{TARGET} 1": "decode"}
        for variant, eager in (("graph", False), ("eager", True)):
            widths = (1, width) if width > 1 else (1,)
            wanted = Forwards(widths=widths, rounds=rounds, draft=laboratory.has_draft, eager=eager)
            found: dict[str, list[float]] = laboratory.llm.experiment(partial(time_forwards, wanted=wanted))[0]
            for name, times in found.items():
                laboratory.times(self.name, Quantity.FORWARD_MS, times, phase=names[name], variant=variant)
