"""Two ways to run an engine behind one interface: in this process, or as N rank processes in lockstep.

On ranks every process executes the same commands in the same order and reaches the same bits, so no decision is sent
around: the driver only broadcasts what came from outside (new requests, aborts) and what depends on times, which differ
between ranks (whether a cycle drafts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from alula.comm.environment_agreement import environment_facts
from alula.comm.group import Group, single_group
from alula.comm.host_plan import plan_for_host
from alula.core.dispatch_paths import Collectives
from alula.core.environment import inherited
from alula.core.records import DispatchRecord, EnvironmentRecord, RankWaitRecord
from alula.core.shape import parse_shape
from alula.engine.comm_settling import keep, settle
from alula.engine.device import resolve_device
from alula.engine.device_engine import DeviceEngine
from alula.engine.engine import Engine, StepOutput
from alula.engine.messages import collective_messages
from alula.engine.ranks import RankPool
from alula.engine.request import RequestSpec
from alula.engine.setup import EngineSpec, Parts, Progress, load_parts, resolve_dtype
from alula.engine.step_costs import StepCost
from alula.engine.wait_tally import WaitTally
from alula.layers.attention import check_heads
from alula.models.checkpoint import open_checkpoint


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded engine says of itself. environment: what each of its ranks found; empty without ranks."""

    dtype: str
    device: str
    vocab_size: int
    context_tokens: int
    draft_placement: str
    facts: dict[str, Any]
    step_costs: tuple[StepCost, ...] = ()
    environment: tuple[EnvironmentRecord, ...] = ()


class StepCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle, after taking in these requests and aborts.

    speculate: whether it may draft. Decided by the driver, since ranks measure different times; reason is for records.
    """

    adds: tuple[RequestSpec, ...] = ()
    aborts: tuple[str, ...] = ()
    speculate: bool = True
    reason: str = ""


class DescribeCommand(msgspec.Struct, frozen=True):
    """Asks for the Description."""


class DispatchCommand(msgspec.Struct, frozen=True):
    """Asks for the dispatch records of the rank."""


class RulesCommand(msgspec.Struct, frozen=True):
    """Asks for the Rules by which the rank's group chooses its backends."""


class WaitCommand(msgspec.Struct, frozen=True):
    """Asks for the rank's RankWaitRecord."""


class ExperimentCommand(msgspec.Struct, frozen=True):
    """Asks for what `work` returns when it is called with the rank's engine. Pickled by reference: a module's function,
    or a partial of one."""

    work: Callable[[Engine], Any]


class Worker:
    """An engine that answers commands; the same object serves in this process and in a rank."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tally = WaitTally(engine.parts.group)

    def handle(self, command: Any) -> Any:
        if isinstance(command, StepCommand):
            with self._tally.cycle():
                return self._step(command)
        if isinstance(command, WaitCommand):
            return self._tally.record()
        if isinstance(command, DispatchCommand):
            return self._engine.dispatch_records()
        if isinstance(command, RulesCommand):
            return self._engine.parts.group.rules
        if isinstance(command, ExperimentCommand):
            return command.work(self._engine)
        return describe(self._engine)

    def _step(self, command: StepCommand) -> StepOutput:
        for request_id in command.aborts:
            self._engine.abort(request_id)
        for spec in command.adds:
            self._engine.add(spec)
        return self._engine.step(command.speculate, command.reason)


def build_engine(parts: Parts, progress: Progress | None = None) -> Engine:
    """The engine whose cycles stay on the device where there are kernels for it, else the one that the host leads."""
    return Engine(parts) if parts.block is None else DeviceEngine(parts, progress)


def build_rank_worker(spec: EngineSpec, group: Group) -> Worker:
    """Entry point of a rank process."""
    return Worker(build_engine(load_parts(spec, group)))


def describe(engine: Engine) -> Description:
    parts = engine.parts
    return Description(
        dtype=parts.config.dtype,
        device=parts.device.type,
        vocab_size=parts.shape.vocab_size,
        context_tokens=parts.context_tokens,
        draft_placement="none" if parts.drafter is None else parts.drafter.model.placement,
        facts=parts.facts,
        step_costs=engine.step_costs,
    )


class Backend(Protocol):
    """How the driver reaches its engine or engines."""

    def step(self, command: StepCommand) -> StepOutput: ...

    def describe(self) -> Description: ...

    def collectives(self) -> Collectives | None:
        """What became of the collectives so far; None on a single rank, which has none."""

    def experiment(self, work: Callable[[Engine], Any]) -> list[Any]:
        """What `work` returns in each rank, by rank."""

    def close(self) -> None: ...


class LocalBackend:
    """One rank, in this process."""

    def __init__(self, spec: EngineSpec, progress: Progress | None) -> None:
        self._worker = Worker(build_engine(load_parts(spec, single_group(), progress), progress))

    def step(self, command: StepCommand) -> StepOutput:
        output: StepOutput = self._worker.handle(command)
        return output

    def describe(self) -> Description:
        description: Description = self._worker.handle(DescribeCommand())
        return description

    def collectives(self) -> Collectives | None:
        return None

    def experiment(self, work: Callable[[Engine], Any]) -> list[Any]:
        return [self._worker.handle(ExperimentCommand(work))]

    def close(self) -> None:
        """Nothing outlives the object."""


class RankedBackend:
    """N spawned ranks."""

    def __init__(self, spec: EngineSpec, progress: Progress | None) -> None:
        parallel = spec.config.parallel
        config = open_checkpoint(spec.source).config
        shape = parse_shape(config)
        check_heads(shape.num_heads, shape.num_kv_heads, parallel.tp)  # before ranks start in vain
        if progress:
            progress(f"starting {parallel.tp} ranks")
        device = resolve_device(spec.config.device)
        plan = plan_for_host(parallel, device.type, inherited())
        dtype = str(resolve_dtype(spec.config.dtype, config, device)).removeprefix("torch.")
        captured = device.type == "cuda" and spec.config.graphs.enabled
        messages = collective_messages(shape, spec.config, dtype, captured)
        tuning = settle(plan, messages, dtype, progress or (lambda message: None))
        entry = f"{build_rank_worker.__module__}:{build_rank_worker.__name__}"
        self._pool = RankPool(entry, parallel.tp, spec, plan, parallel.rank_deadline_s, tuning)
        keep(plan, dtype, self._pool.call(RulesCommand()).table)

    def step(self, command: StepCommand) -> StepOutput:
        output: StepOutput = self._pool.call(command)
        return output

    def describe(self) -> Description:
        description: Description = self._pool.call(DescribeCommand())
        found = self._pool.environment_records
        facts = description.facts | {"environment": environment_facts(found)}
        return msgspec.structs.replace(description, facts=facts, environment=found)

    def collectives(self) -> Collectives | None:
        dispatched: tuple[DispatchRecord, ...] = self._pool.call(DispatchCommand())
        waits: list[RankWaitRecord] = self._pool.call_all(WaitCommand())
        return Collectives(dispatched=dispatched, waits=tuple(waits))

    def experiment(self, work: Callable[[Engine], Any]) -> list[Any]:
        return self._pool.call_all(ExperimentCommand(work))

    def close(self) -> None:
        self._pool.close()


def start_backend(spec: EngineSpec, progress: Progress | None) -> Backend:
    return RankedBackend(spec, progress) if spec.config.parallel.tp > 1 else LocalBackend(spec, progress)
