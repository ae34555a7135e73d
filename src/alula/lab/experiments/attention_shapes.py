"""Verify through the kernel that is made for a few rows, and through the one that prompts take."""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.second_engine import Served, Variation, serve
from alula.profile.quantities import Quantity

FEWEST_TOKENS, MOST_TOKENS = 12, 96


class AttentionShapes(Experiment):
    name = "attention_shapes"
    least_s = 5.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if not laboratory.device_resident:
            return "attention of a cycle that the host leads has one kernel for every width"
        return None if laboratory.has_draft else "there is no draft, so no verify"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        each_ms = 2.0 * (laboratory.cycle_ms() or 50.0)
        tokens = max(FEWEST_TOKENS, min(MOST_TOKENS, int(1e3 * share.left_s / each_ms)))
        for variant, prefill in (("decode_attention", False), ("prefill_attention", True)):
            specs = laboratory.specs(variant, 1, tokens, laboratory.steps)
            work = partial(serve, specs=specs, variation=Variation(prefill_attention=prefill))
            served: Served = laboratory.llm.experiment(work)[0]
            times = [cycle.phases_ms["verify"] for cycle in served.cycles if cycle.drafted]
            laboratory.times(self.name, Quantity.FORWARD_MS, times, phase="verify", variant=variant)
        laboratory.add(self.name, Quantity.ATTENTION_MODE, "decode")  # what is in use: BlockKernels.attention
