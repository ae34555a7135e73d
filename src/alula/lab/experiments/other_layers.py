"""The same head reading the layers below and above those that it reads: whether it was trained with others.

The published formats count layers from 0 or from 1, so a head's config is easily off by one: the text stays right, and
acceptance falls. All readings are served alike, the one in use too, so that they can be compared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from alula.explain.hypotheses.head_broken import IN_USE, OTHER_LAYERS
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.second_engine import Served, Variation, serve
from alula.profile.quantities import Quantity

OFFSETS = (0, -1, 1)
MOST_TOKENS, FEWEST_TOKENS = 96, 24
MOST_PROMPTS = 6


class OtherLayers(Experiment):
    name = "other_layers"
    share = 0.2
    least_s = 2.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if not laboratory.has_draft:
            return "there is no draft"
        if laboratory.workload.textless:
            return "random weights or forced acceptance: no reading is better than another"
        if laboratory.sizes is None or not laboratory.sizes.boundaries:
            return "the head reads the last hidden state only"
        return None

    def run(self, laboratory: Laboratory, share: Share) -> None:
        assert laboratory.sizes is not None
        depth = laboratory.sizes.target.num_layers
        each_ms = (laboratory.cycle_ms() or 50.0) * len(OFFSETS)
        tokens = int(1e3 * share.left_s / each_ms)
        prompts = max(1, min(MOST_PROMPTS, tokens // FEWEST_TOKENS, len(laboratory.asked)))
        each = max(FEWEST_TOKENS, min(MOST_TOKENS, tokens // prompts))
        for offset in OFFSETS:
            boundaries = tuple(boundary + offset for boundary in laboratory.sizes.boundaries)
            if any(not 0 <= boundary <= depth for boundary in boundaries):
                continue
            specs = laboratory.specs(f"layers{offset:+d}", prompts, each, laboratory.steps)
            work = partial(serve, specs=specs, variation=Variation(boundaries=boundaries))
            served: Served = laboratory.llm.experiment(work)[0]
            drafted = [request for cycle in served.cycles for request in cycle.requests if request.drafted]
            if not drafted:
                continue
            accepted = sum(request.accepted > 0 for request in drafted) / len(drafted)
            yielded = 1 + sum(request.accepted for request in drafted) / len(drafted)
            scope: dict[str, Any] = {
                "variant": OTHER_LAYERS + ",".join(map(str, boundaries)),
                "name": IN_USE if offset == 0 else None,
            }
            count = len(drafted)
            laboratory.add(self.name, Quantity.ACCEPTANCE, accepted, count=count, position=0, **scope)
            laboratory.add(self.name, Quantity.TOKENS_PER_CYCLE, yielded, count=count, **scope)
