"""Runs experiments in order within a budget, says what was not run and why, and keeps what there is after a Ctrl-C.

Judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from alula.core.errors import AlulaError, OutOfMemory, UserError
from alula.lab.budget import Budget
from alula.lab.experiment import DONE, FAILED, NOT_APPLICABLE, NOT_RUN, PARTLY, Experiment, Ran
from alula.lab.isolated import sizes_of
from alula.lab.laboratory import Laboratory
from alula.lab.registry import EXPERIMENTS

Say = Callable[[str], None]


class Outcome(msgspec.Struct, kw_only=True):
    """What became of each experiment. interrupted: by Ctrl-C. fault: an error that ended the run."""

    ran: list[Ran] = []
    interrupted: bool = False
    fault: AlulaError | None = None


def run_experiments(
    laboratory: Laboratory,
    budget: Budget,
    say: Say = lambda text: None,
    experiments: Sequence[Experiment] = EXPERIMENTS,
) -> Outcome:
    """Every experiment that applies, until the budget is over. Short memory or a UserError of one leaves the
    others; any other ends them all, since ranks may be gone."""
    outcome = Outcome()
    waiting = list(experiments)
    try:
        laboratory.sizes = laboratory.llm.experiment(sizes_of)[0]
        while waiting:
            outcome.ran.append(_run(waiting[0], laboratory, budget, say))
            waiting.pop(0)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except AlulaError as error:
        outcome.fault = error
    if waiting:
        status = PARTLY if outcome.interrupted else FAILED
        why = "interrupted" if outcome.interrupted else str(outcome.fault)
        outcome.ran.append(Ran(name=waiting[0].name, status=status, why=why))
        outcome.ran += [Ran(name=one.name, status=NOT_RUN, why=why) for one in waiting[1:]]
    return outcome


def _run(experiment: Experiment, laboratory: Laboratory, budget: Budget, say: Say) -> Ran:
    refusal = experiment.refusal(laboratory)
    if refusal is not None:
        return Ran(name=experiment.name, status=NOT_APPLICABLE, why=refusal)
    if budget.left_s < experiment.least_s:
        why = f"the budget of {budget.seconds:g} s is used up"
        return Ran(name=experiment.name, status=NOT_RUN, why=why)
    say(f"{experiment.name.replace('_', ' ')}")
    began = time.perf_counter()
    try:
        experiment.run(laboratory, budget.share(experiment.share))
    except (UserError, OutOfMemory) as error:  # of this experiment alone: every rank raised it and goes on
        return Ran(name=experiment.name, status=FAILED, why=str(error))
    return Ran(name=experiment.name, status=DONE, seconds=round(time.perf_counter() - began, 2))
