"""`alula explain MODEL`: experiments on a running engine, and the verdict on what they found."""

from __future__ import annotations

import msgspec

from alula.explain.judge import explain
from alula.explain.sink import Sink
from alula.explain.verdict import Verdict
from alula.lab.budget import Budget
from alula.lab.experiment import DONE
from alula.lab.laboratory import Laboratory, Measured, Workload
from alula.lab.runner import Outcome, Say, run_experiments

FEW_CYCLES = 20


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and what became of each experiment."""

    verdict: Verdict
    outcome: Outcome


def explain_live(llm: Measured, workload: Workload, budget: Budget, say: Say = lambda text: None) -> Live:
    """Measures `llm` for as long as the budget says and judges that. Ctrl-C and faults end up in the outcome."""
    laboratory = Laboratory(llm, workload)
    outcome = run_experiments(laboratory, budget, say)
    told = Sink("experiments of this run")
    for ran in outcome.ran:
        if ran.status != DONE:
            told.note(ran.words())
    for name, cycles in (("plain", laboratory.plain_cycles), ("drafted", laboratory.drafted_cycles)):
        if (name == "plain" or laboratory.has_draft) and len(cycles) < FEW_CYCLES:
            told.note(
                f"only {len(cycles)} {name} cycles were measured: too few to establish their time or acceptance; "
                "give it a larger --budget, more --prompts or a larger --max-tokens"
            )
    return Live(verdict=explain([*laboratory.sinks, told]), outcome=outcome)
