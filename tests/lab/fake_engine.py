"""An engine that only says what it would have measured: made-up times, so that verdicts can be tested without a clock.

`FakeEngine` stands in for `alula.LLM`: it answers prompts in invented cycles, and experiments by what they ask for. Its
clock goes forward by the times that it invents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from alula.core.dispatch_paths import Collectives
from alula.core.records import (
    PHASES,
    CycleRecord,
    EnvironmentFinding,
    EnvironmentRecord,
    EnvironmentVariable,
    PhaseOutcome,
    RequestCycle,
    RunRecord,
)
from alula.core.sampling import SamplingParams
from alula.core.shape import ModelShape
from alula.engine.head_check import score_readings
from alula.lab.isolated import memory_bytes_per_s, sizes_of, time_forwards
from alula.lab.laboratory import Sizes, Workload
from alula.lab.listening import Heard
from alula.lab.second_engine import Served, serve
from alula.plan.shapes import HeadShape

TARGET = ModelShape(
    architecture="LlamaForCausalLM",
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=20,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    vocab_size=32000,
    max_position=4096,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
)
HEAD = HeadShape(
    hidden_size=1024,
    intermediate_size=4096,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    draft_vocab_size=8000,
    num_features=3072,
)
BOUNDARIES = (2, 10, 17)
EAGER = PhaseOutcome(replayed=False, reason="graphs_not_built")
REDUCTIONS = 41  # of a forward


@dataclass
class FakeEngine:
    """Times in ms. accepted: how many drafts count, cycle by cycle, over and over. row_ms: of each further row.

    call_ms: of a collective in decode; large_call_ms: in verify; alone_us: by the measured table. late_ms: by which the
    last rank comes late to every call. shift: offset at which the head would be right. dies, interrupts: the name of
    the experiment's function, or the number of the answer, at which that happens.
    """

    steps: int = 3
    draft: str | None = "head"
    tp: int = 1
    plain_ms: float = 10.0
    row_ms: float = 0.2
    draft_step_ms: float = 0.6
    extend_ms: float = 0.6
    host_ms: float = 0.1
    accepted: tuple[int, ...] = (3, 2, 0, 1, 0)
    call_ms: float = 0.02
    large_call_ms: float = 0.02
    alone_us: float = 20.0
    late_ms: float = 0.0
    shift: int = 0
    looping: bool = False
    lost_variable: bool = False
    raises: dict[str | int, BaseException] = field(default_factory=dict)
    now: float = 0.0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cycles: list[CycleRecord] = []
        self._num_answers = 0
        self._at = 0

    def workload(self, num_prompts: int = 8, max_tokens: int = 64) -> Workload:
        prompts = tuple([1, 2, 3, index] for index in range(num_prompts))
        return Workload(prompts=prompts, sampling=SamplingParams(max_tokens=max_tokens))

    def generate(self, prompts: Any, sampling: SamplingParams, *, steps: int | None = None) -> Sequence[Any]:
        self._num_answers += 1
        if (error := self.raises.get(self._num_answers)) is not None:
            raise error
        drafts = self.steps if steps is None and self.draft else 0
        self._cycles += self.cycles(drafts, sampling.max_tokens)
        tokens = range(sampling.max_tokens)
        ids = tuple(7 for _ in tokens) if self.looping else tuple(tokens)
        return [SimpleNamespace(prompt_ids=tuple(prompts[0]), token_ids=ids, error=None)]

    def cycles(self, drafts: int, num_tokens: int) -> list[CycleRecord]:
        found, emitted = [], 0
        while emitted < num_tokens:
            accepted = self.accepted[self._at % len(self.accepted)] if drafts else 0
            self._at += 1
            emitted += accepted + 1
            found.append(self.cycle(drafts, min(accepted, drafts)))
        return found

    def cycle(self, drafts: int, accepted: int) -> CycleRecord:
        phases = dict.fromkeys(PHASES, 0.0)
        calls = REDUCTIONS * (self.large_call_ms if drafts else self.call_ms) if self.tp > 1 else 0.0
        late = REDUCTIONS * self.late_ms if self.tp > 1 else 0.0
        phases["verify"] = self.plain_ms + drafts * self.row_ms + calls + late
        phases["schedule"], phases["emit"] = self.host_ms, 0.02
        if drafts:
            phases |= {"draft": (drafts - 1) * self.draft_step_ms, "extend": self.extend_ms}
        wall = sum(phases.values())
        self.now += wall / 1e3
        request = RequestCycle(
            request_id="r",
            width=drafts + 1,
            num_prefill=0,
            drafted=drafts,
            accepted=accepted,
            emitted=accepted + 1,
            truncated=False,
            kv_tokens=64,
        )
        outcomes = {"verify": EAGER, **({"draft": EAGER, "extend": EAGER} if drafts else {})}
        return CycleRecord(
            index=self._at,
            wall_ms=wall,
            phases_ms=phases,
            requests=(request,),
            outcomes=outcomes,
            num_rows=drafts + 1,
        )

    def take_cycles(self) -> list[CycleRecord]:
        taken, self._cycles = self._cycles, []
        return taken

    def describe(self) -> RunRecord:
        timing = {"op": "all_reduce", "num_bytes": 4096, "backend": "shared_memory", "us": self.alone_us}
        table = {"timings": [timing], "captured": False, "refused": []}
        return RunRecord(
            alula="0.1",
            torch="2.11",
            model="m",
            draft=self.draft,
            device="cpu",
            dtype="float32",
            tp=self.tp,
            draft_placement="replicated",
            steps=self.steps if self.draft else 0,
            exact=True,
            facts={"collectives": {"table": table}} if self.tp > 1 else {},
        )

    def environment_records(self) -> tuple[EnvironmentRecord, ...]:
        return tuple(self._environment(rank) for rank in range(self.tp)) if self.tp > 1 else ()

    def _environment(self, rank: int) -> EnvironmentRecord:
        lost = self.lost_variable and rank == 1
        variable = EnvironmentVariable(
            name="NCCL_PROTO", planned="LL", found=None if lost else "LL", source="--nccl"
        )
        finding = EnvironmentFinding(
            step="C getenv",
            verdict="mismatch",
            variable="NCCL_PROTO",
            planned="LL",
            found=None,
            cause="something changed it",
        )
        return EnvironmentRecord(rank=rank, mode="warn", variables=(variable,), findings=(finding,) if lost else ())

    def collectives(self) -> Collectives | None:
        return Collectives(dispatched=(), waits=()) if self.tp > 1 else None

    def experiment(self, work: Callable[[Any], Any]) -> list[Any]:
        function: Any = work.func if isinstance(work, partial) else work
        keywords = work.keywords if isinstance(work, partial) else {}
        self.asked.append(function.__name__)
        if (error := self.raises.get(function.__name__)) is not None:
            raise error
        answers: dict[Any, Callable[..., Any]] = {
            sizes_of: self._sizes,
            time_forwards: self._forwards,
            memory_bytes_per_s: lambda rank, **given: 2e10,
            serve: self._serve,
            score_readings: self._scores,
        }
        return [answers[function](rank, **keywords) for rank in range(self.tp)]

    def _sizes(self, rank: int) -> Sizes:
        return Sizes(target=TARGET, head=HEAD, boundaries=BOUNDARIES) if self.draft else Sizes(target=TARGET)

    def _forwards(self, rank: int, wanted: Any) -> dict[str, list[float]]:
        """The target's own layers run at `plain_ms` for all, of which 1 ms is the output head."""
        times = {f"target {width}": self.plain_ms + (width - 1) * self.row_ms for width in wanted.widths}
        if wanted.draft:
            times |= {"logits": 1.0, "frame": 0.05, "draft step": self.draft_step_ms, "extend": self.extend_ms}
        self.now += wanted.rounds * sum(times.values()) / 1e3
        return {name: [ms] * wanted.rounds for name, ms in times.items()}

    def _serve(self, rank: int, specs: Any, variation: Any = None, listen: bool = False) -> Served:
        steps = specs[0].steps
        cycles = self.cycles(steps, sum(spec.sampling.max_tokens for spec in specs))
        heard = []
        if listen:
            for index in range(len(cycles)):
                ms = self.large_call_ms if steps else self.call_ms
                waited = self.late_ms if rank < self.tp - 1 else 0.0
                heard += [Heard(index, "all_reduce", "verify", 4096, ms + waited) for _ in range(REDUCTIONS)]
        return Served(rank=rank, cycles=tuple(cycles), heard=tuple(heard))

    def _scores(self, rank: int, texts: Any, readings: Any) -> list[list[list[bool]]]:
        """The right reading is right about four tokens of five, the others about two of five."""
        found = []
        for reading in readings:
            good = reading[0] - BOUNDARIES[0] == self.shift
            found.append([[index % 5 < (4 if good else 2) for index in range(len(a) - 1)] for _, a in texts])
        return found
