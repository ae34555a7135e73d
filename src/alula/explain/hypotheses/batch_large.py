"""A batch too large for speculation: rows stop being free once the weights' bytes are shared by enough of them."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.graph_batch import running_requests
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_MANY_ROWS, _FEW_ROWS = 192, 48
_TREE_ROWS = 512  # of trees, most of whose rows are rejected by design


class BatchTooLarge(Hypothesis):
    id = "batch_too_large"
    title = "The batch is too large for speculation"
    predicts = "a speed-up that falls with the batch; hundreds of verify rows a step"
    refuted_by = "few rows a step, or a speed-up that holds at larger batches"
    needs = ("num_running", "num_draft_tokens", "tokens_per_s")

    def judge(self, case: Case) -> Finding:
        by_batch = _speedups(case)
        if len(by_batch) > 1:
            return self._by_batch(case, by_batch)
        running, width = running_requests(case), case.sums.width
        if running is None or width is None:
            return self.unknown("The load or the rows a request are not known.", next_step=advise(case, "queue"))
        count, load = running
        rows = count * width
        seen = cited(load, case.spec.all(Quantity.NUM_DRAFT_TOKENS), case.spec.all(Quantity.STEPS))
        tree = " (a tree)" if (case.spec.number(Quantity.TOPK) or 1) > 1 else ""
        told = (
            f"{width} rows{tree} x {count:.0f} requests = {rows:.0f} verify rows a step, where a plain "
            f"step has {count:.0f}."
        )
        if rows <= _FEW_ROWS:
            return self.refuted(told, evidence=seen, confidence=0.7)
        likely = case.sums.pays is False or bool(tree)
        if rows < _MANY_ROWS or case.sums.pays or not likely:
            return self.unknown(
                told, evidence=seen, confidence=0.2, next_step="measure both sides at several loads"
            )
        say = self.confirmed if tree and rows >= _TREE_ROWS else self.suspected
        return say(
            f"{told} With that many rows the forward computes instead of waiting for memory, and rejected "
            f"rows cost as much as "
            "accepted ones.",
            evidence=seen,
            confidence=0.5,
            weight=2.1,  # known rows, where a graph or an all-reduce path is only not known
            fix="smaller k or no tree at this load, speculation only below a batch where it was measured to pay",
            next_step="measure both sides at several loads; " + advise(case, "steps", steps=1),
        )

    def _by_batch(self, case: Case, by_batch: dict[int, tuple[float, tuple[Evidence, ...]]]) -> Finding:
        small, large = min(by_batch), max(by_batch)
        told = (
            "Speed-up by batch: "
            + ", ".join(f"{batch}: {shown(by_batch[batch][0])}x" for batch in sorted(by_batch))
            + "."
        )
        seen = cited(by_batch[small][1], by_batch[large][1])
        if by_batch[small][0] > 1.0 > by_batch[large][0]:
            return self.confirmed(
                f"{told} It pays for few requests and not for many.",
                evidence=seen,
                confidence=0.8,
                fix="draft only below the batch where the two cross",
                next_step="measure the batches between",
            )
        if by_batch[large][0] >= 1.0:
            return self.refuted(told, evidence=seen)
        return self.refuted(f"{told} It does not pay for few requests either.", evidence=seen, confidence=0.7)


def _speedups(case: Case) -> dict[int, tuple[float, tuple[Evidence, ...]]]:
    """Batch -> speed-up, where both sides were measured at it."""
    plain = _rates(case.plain)
    return {
        batch: ((spec.number or 0.0) / (plain[batch].number or 1.0), (plain[batch], spec))
        for batch, spec in _rates(case.spec).items()
        if batch in plain
    }


def _rates(run: RunFacts) -> dict[int, Evidence]:
    found: dict[int, Evidence] = {}
    quantities = (Quantity.TOKENS_PER_S, Quantity.SPEC_TOKENS_PER_S, Quantity.PLAIN_TOKENS_PER_S)
    for one in (one for quantity in quantities for one in run.all(quantity)):
        batch = one.scope.batch
        if batch and one.number and (batch not in found or one.num_samples > found[batch].num_samples):
            found[batch] = one
    return found
