"""Requests that wait: queues, a cap on running requests, pages that run out."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_WAITING = 0.35  # time to first token over the whole request
_PAGES_FULL = 0.95


class Queueing(Hypothesis):
    id = "queueing_or_pages"
    title = "Requests wait for a seat or for pages"
    predicts = (
        "a first token that takes a large part of the request; waiting requests; a cap under the load; preemptions"
    )
    refuted_by = "no waiting requests and a quick first token"
    needs = ("ttft_ms", "request_ms", "num_queued", "max_running", "concurrency", "kv_usage")

    def judge(self, case: Case) -> Finding:
        signs = _signs(case)
        step = advise(case, "queue")
        if signs:
            text, sure = " ".join(sign[0] for sign in signs), max(sign[1] for sign in signs)
            plain_cap = case.plain.number(Quantity.MAX_RUNNING)
            own_cap = case.spec.number(Quantity.MAX_RUNNING)
            if own_cap and plain_cap and own_cap < plain_cap:
                text += f" The plain run has {plain_cap:.0f} seats, the speculative one {own_cap:.0f}."
            elif "sglang" in case.engine and not own_cap:
                text += (
                    " With speculation SGLang caps running requests by itself (48, earlier 32); the plain "
                    "run has no such cap."
                )
            fields = {"evidence": cited(*(sign[2] for sign in signs)), "next_step": step, "weight": 1.7}
            if sure < 0.5:
                return self.suspected(text, confidence=sure, **fields)
            return self.confirmed(
                text,
                confidence=sure,
                fix=f"compare at the same number of running requests: {advise(case, 'max_running', size='N')}",
                **fields,
            )
        queued, ttft = case.spec.all(Quantity.NUM_QUEUED), case.spec.all(Quantity.TTFT_MS)
        if queued or (ttft and case.spec.all(Quantity.REQUEST_MS)):
            return self.refuted("Requests hardly wait.", evidence=cited(queued, ttft))
        return self.unknown("Whether requests wait is not known.", next_step=step)


def _signs(case: Case) -> list[tuple[str, float, tuple[Evidence, ...]]]:
    run = case.spec
    found = [sign for sign in (_first_token(run), _cap(run), _pages(run)) if sign is not None]
    queued = [one for one in run.all(Quantity.NUM_QUEUED) if (one.number or 0) >= 1]
    if queued:
        worst = max(queued, key=lambda one: one.num_samples)
        often = worst.num_samples > 1 or len(queued) > 1
        found.append(
            (f"{shown(worst.number or 0)} requests wait in the queue.", 0.6 if often else 0.4, tuple(queued[:3]))
        )
    return found


def _first_token(run: RunFacts) -> tuple[str, float, tuple[Evidence, ...]] | None:
    first, whole = run.first(Quantity.TTFT_MS), run.first(Quantity.REQUEST_MS)
    if first is None or whole is None or not first.number or not whole.number:
        return None
    share = first.number / whole.number
    if share < _WAITING or first.number < 500:
        return None
    text = (
        f"The first token takes {shown(first.number)} of {shown(whole.number)} ms, {100 * share:.0f} % of a "
        f"request: "
        "requests wait, or prompts are long."
    )
    return text, 0.65, (first, whole)


def _cap(run: RunFacts) -> tuple[str, float, tuple[Evidence, ...]] | None:
    cap, load = run.first(Quantity.MAX_RUNNING), run.first(Quantity.CONCURRENCY)
    if cap is None or load is None or not cap.number or not load.number or load.number <= cap.number:
        return None
    text = f"{shown(load.number)} requests at once for {shown(cap.number)} seats: the rest waits."
    return text, 0.7, (cap, load)


def _pages(run: RunFacts) -> tuple[str, float, tuple[Evidence, ...]] | None:
    preempted = run.first(Quantity.NUM_PREEMPTIONS)
    if preempted is not None and (preempted.number or 0) > 0:
        return f"{shown(preempted.number or 0)} requests were preempted: pages ran out.", 0.7, (preempted,)
    usage = run.first(Quantity.KV_USAGE)
    if usage is not None and (usage.number or 0) >= _PAGES_FULL:
        return f"The KV cache is {100 * (usage.number or 0):.0f} % full.", 0.4, (usage,)
    return None
