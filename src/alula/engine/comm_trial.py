"""Tries the backends of collectives in processes of their own, before an engine's ranks start.

A kernel that waits for a peer's memory cannot be stopped from within its process: where the links do not do what they
promise it waits for ever. So each backend is started, probed and timed by ranks that can be killed; one that hangs is
refused with that as its reason, and the trial goes on without it in new processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from alula.comm import nccl_log
from alula.comm.environment_plan import EnvironmentPlan
from alula.comm.table import MeasuredTable
from alula.comm.trial_worker import (
    ChoicesCommand,
    NamesCommand,
    ProbeCommand,
    SpokenCommand,
    TimeCommand,
    TrialPayload,
    VerdictsCommand,
    build_trial_worker,
)
from alula.comm.tuning_plan import Message, TuningPlan
from alula.core.errors import RankFailure
from alula.core.records import EnvironmentRecord, Refusal
from alula.engine.ranks import RankPool

# A rank's deadline, and how long all may be quiet: a first start of a library may compile or search the topology.
TRIAL_DEADLINE_S, TRIAL_QUIET_S = 20.0, 90.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend says of one message; `reason` is None where it takes it."""

    message: Message
    backend: str
    reason: str | None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would send a message through, and by which rule besides speed."""

    message: Message
    backend: str
    rule: str | None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. table: None where nothing was timed (ranks that share a GPU). environment: of the last ranks.
    spoken: how NCCL says that it ran the probes' messages, whichever of its communicators."""

    table: MeasuredTable | None
    refused: tuple[Refusal, ...]
    verdicts: tuple[Verdict, ...]
    choices: tuple[Choice, ...] = ()
    spoken: tuple[nccl_log.Choice, ...] = ()
    environment: tuple[EnvironmentRecord, ...] = ()


def try_backends(
    plan: EnvironmentPlan,
    messages: Sequence[Message],
    say: Callable[[str], None],
    deadline_s: float = TRIAL_DEADLINE_S,
    quiet_s: float = TRIAL_QUIET_S,
    known: MeasuredTable | None = None,
) -> Trial:
    """known: a table that is to count instead of the times of this trial.

    Raises RankFailure where not even a pool of ranks with nothing but shared memory starts."""
    with _Trial(plan, tuple(messages), deadline_s, quiet_s) as trial:
        for name in (name for name in trial.names if name not in plan.parallel.without):
            say(f"trying collectives: {name}")
            trial.try_one(name)
        return trial.result(known)


def telling(plan: EnvironmentPlan) -> EnvironmentPlan:
    """The plan of a trial's ranks: NCCL also tells how it runs each message, which costs a line a call and is nothing
    for a run."""
    if plan.log_folder is None:
        return plan
    return msgspec.structs.replace(plan, shared={**plan.shared, "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"})


class _Trial:
    def __init__(
        self, plan: EnvironmentPlan, messages: tuple[Message, ...], deadline_s: float, quiet_s: float
    ) -> None:
        self._plan = telling(plan)
        self._deadline_s = deadline_s
        self._quiet_s = quiet_s
        self._payload = TrialPayload(
            messages=messages,
            device=plan.device,
            prove=plan.parallel.comm_proof != "off",
            log_folder=plan.log_folder,
        )
        self._refused = dict.fromkeys(plan.parallel.without, "left out by --without")
        self._tables: list[MeasuredTable] = []
        self._pool: RankPool | None = None
        self.names: tuple[str, ...] = self._running().call(NamesCommand())

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def try_one(self, name: str) -> None:
        """Probes and times one backend; what fails or hangs is refused."""
        try:
            reason = self._running().call(ProbeCommand(name))
            if reason is None and not self._plan.parallel.share_gpus:
                self._tables.append(self._running().call(TimeCommand(name)))
        except RankFailure as error:
            reason = f"did not come through its probe: {error}"
            self._pool = None  # ended by its failure; the next backend gets new processes
        if reason is not None:
            self._refused[name] = reason

    def result(self, known: MeasuredTable | None = None) -> Trial:
        verdicts = [
            Verdict(message=message, backend=name, reason=self._refused.get(name) or reason)
            for message, name, reason in self._running().call(VerdictsCommand())
        ]
        refused = tuple(Refusal(backend=name, reason=reason) for name, reason in self._refused.items())
        table = self._table(refused) if known is None else known
        asked = ChoicesCommand(collectives=self._plan.parallel.collectives, table=table, refused=refused)
        choices = [
            Choice(message=message, backend=backend, rule=rule)
            for message, backend, rule in self._running().call(asked)
        ]
        return Trial(
            spoken=tuple(self._running().call(SpokenCommand())),
            table=table,
            choices=tuple(choices),
            refused=refused,
            verdicts=tuple(verdicts),
            environment=self._running().environment_records,
        )

    def _table(self, refused: tuple[Refusal, ...]) -> MeasuredTable | None:
        if self._plan.parallel.share_gpus:
            return None
        timings = tuple(sorted(timing for table in self._tables for timing in table.timings))
        return MeasuredTable(timings=timings, captured=self._plan.device == "cuda", refused=refused)

    def _running(self) -> RankPool:
        if self._pool is None:
            entry = f"{build_trial_worker.__module__}:{build_trial_worker.__name__}"
            size = self._plan.parallel.tp
            nothing = TuningPlan(trial=True)
            self._pool = RankPool(entry, size, self._payload, self._plan, self._deadline_s, nothing, self._quiet_s)
        return self._pool
