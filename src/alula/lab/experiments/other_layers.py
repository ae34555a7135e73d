"""The same head reading the layers below and above those that it reads: whether it was trained with others.

The published formats count layers from 0 or from 1, so a head's config is easily off by one: the text stays right, and
acceptance falls. Every reading is scored along the same answers, so that they can be compared token by token; a better
one is served too, for what it would yield.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from alula.engine.head_check import score_readings
from alula.explain.hypotheses.head_broken import IN_USE, OTHER_LAYERS
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.second_engine import Served, Variation, serve
from alula.profile.quantities import Quantity

Reading = tuple[int, ...]
OFFSETS = (0, -1, 1)
STRETCH = 24  # tokens that make one sample
TOKENS_OF_A_STEP = 12  # of a text that are read in about the time of a plain step
MOST_TEXTS, MOST_SERVED_TOKENS = 24, 64


class OtherLayers(Experiment):
    name = "other_layers"
    share = 0.3
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
        """Scores all readings, then serves the one in use and the best other where that is ahead."""
        assert laboratory.sizes is not None
        depth = laboratory.sizes.target.num_layers
        shifted = [tuple(boundary + offset for boundary in laboratory.sizes.boundaries) for offset in OFFSETS]
        readings = [one for one in shifted if all(0 <= boundary <= depth for boundary in one)]
        texts = self._texts(laboratory, share, len(readings))
        if not texts:
            laboratory.sink(self.name).note("other_layers: no answer is long enough")
            return
        work = partial(score_readings, texts=texts, readings=readings)
        scored: list[list[list[bool]]] = laboratory.llm.experiment(work)[0]
        means = {}
        for reading, by_text in zip(readings, scored, strict=True):
            right = [one for text in by_text for one in text]
            means[reading] = sum(right) / len(right)
            scope = _scope(reading, laboratory)
            laboratory.add(self.name, Quantity.ACCEPTANCE, means[reading], count=len(right), position=0, **scope)
            if reading != readings[0]:
                laboratory.times(self.name, Quantity.ACCEPTANCE_GAIN, gains(by_text, scored[0]), **scope)
        best = max(readings, key=lambda reading: means[reading])
        if best != readings[0]:
            self._serve(laboratory, (readings[0], best), share)

    def _texts(self, laboratory: Laboratory, share: Share, num_readings: int) -> list[tuple[Reading, Reading]]:
        """As many answers as can be read within half of the share."""
        long = [(prompt, answer) for prompt, answer in laboratory.texts.items() if len(answer) > STRETCH]
        steps = 500.0 * share.left_s / (laboratory.plain_ms() or 50.0)
        room = int(steps * TOKENS_OF_A_STEP / num_readings)
        chosen: list[tuple[Reading, Reading]] = []
        for prompt, answer in long[:MOST_TEXTS]:
            room -= len(prompt) + len(answer)
            if chosen and room < 0:
                break
            chosen.append((prompt, answer))
        return chosen

    def _serve(self, laboratory: Laboratory, readings: Sequence[Reading], share: Share) -> None:
        each_ms = (laboratory.cycle_ms() or 50.0) * len(readings)
        prompts = max(1, min(len(laboratory.texts), int(1e3 * share.left_s / each_ms / MOST_SERVED_TOKENS)))
        for reading in readings:
            specs = laboratory.specs(f"layers-{reading[0]}", prompts, MOST_SERVED_TOKENS, laboratory.steps)
            work = partial(serve, specs=specs, variation=Variation(boundaries=reading))
            served: Served = laboratory.llm.experiment(work)[0]
            drafted = [request for cycle in served.cycles for request in cycle.requests if request.drafted]
            if drafted:
                mean = 1 + sum(request.accepted for request in drafted) / len(drafted)
                scope = _scope(reading, laboratory)
                laboratory.add(self.name, Quantity.TOKENS_PER_CYCLE, mean, count=len(drafted), **scope)


def gains(by_text: Sequence[Sequence[bool]], in_use: Sequence[Sequence[bool]]) -> list[float]:
    """For each stretch of text, the share of tokens by which one reading is ahead of the one in use."""
    found = []
    for ours, theirs in zip(by_text, in_use, strict=True):
        for start in range(0, len(ours) - STRETCH + 1, STRETCH):
            stretch = slice(start, start + STRETCH)
            found.append((sum(ours[stretch]) - sum(theirs[stretch])) / STRETCH)
    return found


def _scope(reading: Reading, laboratory: Laboratory) -> dict[str, Any]:
    assert laboratory.sizes is not None
    in_use = reading == laboratory.sizes.boundaries
    return {"variant": OTHER_LAYERS + ",".join(map(str, reading)), "name": IN_USE if in_use else None}
