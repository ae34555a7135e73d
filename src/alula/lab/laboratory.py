"""What experiments work with: the engine, the prompts, what is known of both, and where evidence goes.

Knows no experiment. Evidence is kept by experiment and by side, in the form that foreign evidence has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from alula.core.dispatch_paths import Collectives
from alula.core.records import CycleRecord, EnvironmentRecord, RunRecord
from alula.core.sampling import SamplingParams
from alula.core.shape import ModelShape
from alula.engine.request import RequestSpec
from alula.explain.sink import Sink
from alula.plan.shapes import HeadShape
from alula.profile.evidence import Label, Scope, Value
from alula.profile.quantities import Quantity

ENGINE = "alula"
READER = "alula experiments"
MAX_TIMES = 2000


class Measured(Protocol):
    """What experiments need of an engine; `alula.LLM` is one."""

    def generate(self, prompts: Any, sampling: SamplingParams, *, steps: int | None = None) -> Sequence[Any]: ...
    def take_cycles(self) -> list[CycleRecord]: ...
    def describe(self) -> RunRecord: ...
    def environment_records(self) -> tuple[EnvironmentRecord, ...]: ...
    def collectives(self) -> Collectives | None: ...
    def experiment(self, work: Callable[[Any], Any]) -> list[Any]: ...


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is decoded: prompts as `LLM.generate` takes them. textless: random weights or forced acceptance, so that
    nothing can be said of the text."""

    prompts: tuple[Any, ...]
    sampling: SamplingParams
    textless: bool = False


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of the loaded engine. boundaries: what the head reads; () without a head or for the last hidden state."""

    target: ModelShape
    head: HeadShape | None = None
    boundaries: tuple[int, ...] = ()


class Laboratory:
    """One engine under examination. `texts` are the served prompts with their plain answers, as token ids."""

    def __init__(self, llm: Measured, workload: Workload) -> None:
        self.llm = llm
        self.workload = workload
        self.described = llm.describe()
        self.plain_cycles: list[CycleRecord] = []
        self.drafted_cycles: list[CycleRecord] = []
        self.texts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.sizes: Sizes | None = None
        self._sinks: dict[tuple[str, Label], Sink] = {}
        self._kept: list[Sink] = []

    @property
    def steps(self) -> int:
        """Drafts a cycle; 0 where nothing drafts."""
        return self.described.steps if self.has_draft else 0

    @property
    def has_draft(self) -> bool:
        return self.described.draft is not None and self.described.speculate != "never"

    @property
    def on_gpu(self) -> bool:
        return self.described.device == "cuda"

    @property
    def device_resident(self) -> bool:
        """Whether cycles stay on the device (engine/device_engine.py)."""
        return bool(self.described.facts.get("device_cycle", {}).get("kernels"))

    @property
    def sinks(self) -> list[Sink]:
        return [*self._kept, *self._sinks.values()]

    def keep(self, sink: Sink) -> None:
        """Evidence that somebody else has put into a sink of its own."""
        self._kept.append(sink)

    def sink(self, experiment: str, label: Label = Label.UNKNOWN) -> Sink:
        """Where an experiment's evidence goes; of one that measured a certain side, apart for that side."""
        key = (experiment, label)
        if key not in self._sinks:
            self._sinks[key] = Sink(f"experiment {experiment}", label)
            self._sinks[key].begin_run(ENGINE, label=label)
        return self._sinks[key]

    def add(
        self,
        experiment: str,
        quantity: Quantity,
        value: Value,
        *,
        label: Label = Label.UNKNOWN,
        count: int = 1,
        **scope: Any,
    ) -> None:
        """One value of an experiment. count: of how many samples it is the mean."""
        sink = self.sink(experiment, label)
        sink.add(quantity, value, engine=ENGINE, reader=READER, scope=Scope(**scope), count=count)

    def times(
        self,
        experiment: str,
        quantity: Quantity,
        values: Sequence[float],
        *,
        label: Label = Label.UNKNOWN,
        **scope: Any,
    ) -> None:
        """A series of one quantity; its median and interval are what counts."""
        sink = self.sink(experiment, label)
        for value in values[:MAX_TIMES]:
            sink.sample(quantity, value, engine=ENGINE, reader=READER, scope=Scope(**scope))

    def specs(self, name: str, count: int, max_tokens: int, steps: int) -> tuple[RequestSpec, ...]:
        """Requests over prompts that were served already, for a second engine inside of the ranks."""
        sampling = msgspec.structs.replace(
            self.workload.sampling, max_tokens=max_tokens, ignore_eos=self.workload.textless
        )
        return tuple(
            RequestSpec(request_id=f"{name}-{index}", prompt_ids=ids, sampling=sampling, steps=steps)
            for index, ids in enumerate(list(self.texts)[:count])
        )

    def plain_ms(self) -> float | None:
        """The median plain step so far."""
        return _median_ms(self.plain_cycles)

    def cycle_ms(self) -> float | None:
        """The median drafted cycle so far."""
        return _median_ms(self.drafted_cycles)


def _median_ms(cycles: Sequence[CycleRecord]) -> float | None:
    times = sorted(cycle.wall_ms for cycle in cycles)
    return times[len(times) // 2] if times else None
