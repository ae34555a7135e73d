"""The draft's passes alone, and what they would take at the rate of the target's own layers and output head.

A draft is one decoder layer over twice the input, a fusion, and an output head: the same machine runs such layers in
the target, so the target tells what they cost here. What is far above that is not the draft's size.
"""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.isolated import DRAFT_STEP, EXTEND, FRAME, LOGITS, TARGET, Forwards, time_forwards
from alula.lab.laboratory import Laboratory, Sizes
from alula.profile.quantities import Quantity
from alula.profile.samples import median_interval

FEWEST, MOST = 5, 41


class DraftAlone(Experiment):
    name = "draft_alone"

    def refusal(self, laboratory: Laboratory) -> str | None:
        return None if laboratory.has_draft else "there is no draft"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        each_ms = 2.0 * (laboratory.plain_ms() or 20.0)
        rounds = max(FEWEST, min(MOST, int(1e3 * share.left_s / each_ms) - 2))
        wanted = Forwards(widths=(1,), rounds=rounds, draft=True)
        found: dict[str, list[float]] = laboratory.llm.experiment(partial(time_forwards, wanted=wanted))[0]
        if laboratory.device_resident:  # there a phase holds all draft steps
            self._device(laboratory, found)
            return
        laboratory.times(self.name, Quantity.DRAFT_STEP_MS, found[DRAFT_STEP])
        laboratory.times(self.name, Quantity.FORWARD_MS, found[EXTEND], phase="extend")
        sizes = laboratory.sizes
        if sizes is not None and sizes.head is not None:
            middle = {name: median_interval(times).median for name, times in found.items()}
            alone = middle[f"{TARGET} 1"]
            step, extend = (
                ms * _slower_served(laboratory, alone)
                for ms in expected_ms(sizes, alone, middle[LOGITS], middle[FRAME])
            )
            laboratory.add(self.name, Quantity.EXPECTED_MS, (laboratory.steps - 1) * step, phase="draft")
            laboratory.add(self.name, Quantity.EXPECTED_MS, extend, phase="extend")

    def _device(self, laboratory: Laboratory, found: dict[str, list[float]]) -> None:
        for name, phase in ((DRAFT_STEP, "draft"), (EXTEND, "extend")):
            if name in found:
                laboratory.times(self.name, Quantity.FORWARD_MS, found[name], phase=phase)
        if DRAFT_STEP in found:
            steps = [ms / (laboratory.steps - 1) for ms in found[DRAFT_STEP]]
            laboratory.times(self.name, Quantity.DRAFT_STEP_MS, steps)


def expected_ms(sizes: Sizes, target_ms: float, logits_ms: float, frame_ms: float) -> tuple[float, float]:
    """(one draft step, one extend) in ms, from the target's forward of one row, its output head alone, and what every
    pass takes before it runs.

    target_ms: with the other two. By weights, which is what a few rows read.
    """
    target, head = sizes.target, sizes.head
    assert head is not None
    layer_ms = max(0.0, target_ms - logits_ms - frame_ms) / target.num_layers
    attention = target.hidden_size * target.head_dim * (target.num_heads + 2 * target.num_kv_heads)
    layer = attention + target.num_heads * target.head_dim * target.hidden_size
    layer += 3 * target.hidden_size * target.intermediate_size
    own = 2 * head.hidden_size * head.head_dim * (head.num_heads + 2 * head.num_kv_heads)
    own += head.num_heads * head.head_dim * head.hidden_size + 3 * head.hidden_size * head.intermediate_size
    logits = logits_ms * head.draft_vocab_size * head.hidden_size / (target.vocab_size * target.hidden_size)
    step = frame_ms + layer_ms * own / layer + logits
    return step, step + layer_ms * head.num_features * head.hidden_size / layer


def _slower_served(laboratory: Laboratory, alone_ms: float) -> float:
    """How many times as long the target's forward took in served plain steps: what slows that slows the draft too."""
    served = [cycle.phases_ms["verify"] for cycle in laboratory.plain_cycles]
    return max(1.0, median_interval(served).median / alone_ms) if served else 1.0
