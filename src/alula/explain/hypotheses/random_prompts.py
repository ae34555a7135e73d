"""Random prompts: their acceptance says nothing about real text, in either direction."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis, Tier
from alula.explain.hypotheses.support import cited
from alula.profile.quantities import Quantity


class RandomPrompts(Hypothesis):
    id = "random_prompts"
    title = "Measured on random prompts"
    predicts = "a load generator with random token ids or random text"
    refuted_by = "a data set of real text"
    needs = ("dataset",)

    def judge(self, case: Case) -> Finding:
        found = case.both(Quantity.DATASET)
        random = tuple(one for one in found if "random" in str(one.value).lower())
        if random:
            return self.confirmed(
                "Random prompts make acceptance meaningless: a head sees no text it was trained on (too low), "
                "or the model "
                "falls into a loop (too high).",
                tier=Tier.TUNING,
                evidence=cited(random),
                confidence=0.8,
                weight=0.4,
                fix="measure with real prompts and the chat template (sharegpt, mt-bench, your own traffic)",
            )
        if found:
            return self.refuted(f"The data set is {found[0].value}.", evidence=cited(found))
        return self.unknown("What the prompts were is not known.")
