"""Graphs of phases: what is captured, replayed, or refused, with a made-up CUDA; on a GPU real captures, and engines
whose tokens do not depend on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from device_engines import Told, run

import tiny_models
from alula.comm.dispatch import Recording
from alula.comm.group import single_group
from alula.core.config import EngineConfig, GraphConfig, SpeculationConfig
from alula.core.sampling import SamplingParams
from alula.engine.device_engine import DeviceEngine
from alula.engine.graph_runner import GraphKey, GraphRunner
from alula.engine.request import RequestSpec
from alula.engine.setup import EngineSpec, Parts, load_parts
from alula.models.source import resolve_source

KEY = GraphKey("verify", 2, 4, "greedy")


class FakeCuda:
    """Says yes to everything that GraphRunner asks of torch.cuda, and counts."""

    def __init__(self) -> None:
        self.replays = 0
        self.stream = "main"
        self.capturing = False
        self.reserved = 1000
        self.cached = 300  # what emptying the cache frees
        self.num_pools = 0
        self.unfinished: set[int] = set()  # pools whose capture failed

    def CUDAGraph(self) -> FakeCuda:
        return self

    def replay(self) -> None:
        self.replays += 1

    @contextmanager
    def graph(self, graph: Any, pool: Any = None) -> Iterator[None]:
        assert pool not in self.unfinished
        self.unfinished.add(pool)
        self.stream, self.capturing = "capture", True
        try:
            yield
        finally:
            self.capturing = False
        self.unfinished.remove(pool)
        self.reserved += 50
        self.stream = "main"  # not where the capture failed, as torch's own

    def empty_cache(self) -> None:
        self.reserved, self.cached = self.reserved - self.cached, 0

    def memory_reserved(self, device: Any = None) -> int:
        return self.reserved

    def current_stream(self, device: Any = None) -> str:
        return self.stream

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    def graph_pool_handle(self) -> int:
        self.num_pools += 1
        return self.num_pools

    def synchronize(self, device: Any = None) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in (
        *("CUDAGraph", "graph", "empty_cache", "memory_reserved", "current_stream", "set_stream"),
        *("graph_pool_handle", "synchronize"),
    ):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


class Work:
    """Counts its runs; returns a result for each."""

    def __init__(self, cuda: FakeCuda | None = None, fails: bool = False) -> None:
        self.runs = 0
        self._cuda, self._fails = cuda, fails

    def __call__(self) -> str:
        if self._fails and self._cuda is not None and self._cuda.capturing:
            raise RuntimeError("operation not permitted when stream is capturing\nwith more to say")
        self.runs += 1
        return f"run {self.runs}"


def on_cuda(**config: Any) -> GraphRunner:
    return GraphRunner(GraphConfig(**config), torch.device("cuda"))


def test_replays_are_told_to_the_recording_of_the_capture(cuda: FakeCuda) -> None:
    told: list[tuple[str, str]] = []
    recordings: list[Recording] = []
    settled: list[int] = []

    @contextmanager
    def recording(phase: str, name: str) -> Iterator[Recording]:
        assert not cuda.capturing
        told.append((phase, name))
        recordings.append(Recording())
        yield recordings[-1]
        assert not cuda.capturing

    runner = GraphRunner(
        GraphConfig(), torch.device("cuda"), settle=lambda: settled.append(work.runs), recording=recording
    )
    work = Work()
    runner.prepare(KEY, work)
    for _ in range(3):
        runner.run(KEY, work)
    assert told == [("verify", "the graph of verify, batch 2, width 4")]
    assert [one.num_replays for one in recordings] == [3] == [cuda.replays]
    assert settled == [1]  # after the run that comes before the capture, and before CUDA is waited for


def test_a_phase_is_captured_once_and_replayed(cuda: FakeCuda) -> None:
    runner, work = on_cuda(), Work()
    runner.prepare(KEY, work)
    assert (runner.num_captured, work.runs, cuda.replays) == (1, 2, 0)  # once for real, once while recording
    for count in (1, 2):
        result, outcome = runner.run(KEY, work)
        assert (result, outcome.replayed, outcome.reason, cuda.replays) == ("run 2", True, None, count)
    assert work.runs == 2
    runner.prepare(KEY, work)
    assert work.runs == 2
    assert runner.memory_bytes == 50  # not what the cache of others gave back


def test_a_first_use_captures_where_nobody_sees_it(cuda: FakeCuda) -> None:
    seen: list[tuple[str, int]] = []
    work = Work()

    @contextmanager
    def quiet() -> Iterator[None]:
        seen.append(("in", work.runs))
        yield
        seen.append(("out", work.runs))

    runner = on_cuda()
    for _ in range(2):
        assert runner.run(KEY, work, quiet=quiet)[1].replayed
    assert seen == [("in", 0), ("out", 2)] and cuda.replays == 2


def test_a_capture_that_fails_says_why_and_the_run_goes_on(cuda: FakeCuda) -> None:
    runner, work = on_cuda(), Work(cuda, fails=True)
    for count in (2, 3):  # tried once only
        result, outcome = runner.run(KEY, work)
        assert (result, outcome.replayed) == (f"run {count}", False)
        assert outcome.reason == "capture_failed: operation not permitted when stream is capturing"
        assert cuda.stream == "main"
    assert list(runner.failures) == ["verify batch 2 width 4 (greedy)"] and runner.num_captured == 0
    for width in (2, 3):
        assert runner.run(GraphKey("draft", 2, width), Work())[1].replayed
    assert cuda.num_pools == 2  # the one that may still count as recorded to is left alone


@pytest.mark.parametrize(
    ("make", "over", "reason"),
    [
        (lambda: GraphRunner(GraphConfig(), torch.device("cpu")), False, "device_has_no_graphs"),
        (lambda: on_cuda(enabled=False), False, "capture_disabled"),
        (lambda: on_cuda(eager=("verify",)), False, "eager_by_option"),
        (on_cuda, True, "batch_over_captured"),
    ],
)
def test_why_a_phase_runs_eagerly(cuda: FakeCuda, make: Callable[[], GraphRunner], over: bool, reason: str) -> None:
    runner, work = make(), Work()
    if not over:
        runner.prepare(KEY, work)
        assert work.runs == 0
    result, outcome = runner.run(KEY, work, over=over)
    assert (result, outcome.replayed, outcome.reason, cuda.replays) == ("run 1", False, reason, 0)
    if reason == "eager_by_option":
        assert runner.run(GraphKey("draft", 2, 3), work)[1].replayed


# On a GPU


PROMPTS = [tiny_models.random_ids(5 + 7 * i, i) for i in range(16)]


def gpu_parts(family: str = "plain", head: str = "bigram", graphs: GraphConfig | None = None) -> Parts:
    config = EngineConfig(
        dtype="bfloat16",
        device="cuda",
        max_batch=16,
        kv_memory_bytes=64 * 2**20,
        speculation=SpeculationConfig(steps=3),
        graphs=graphs or GraphConfig(batches=(1, 2, 16)),
    )
    source = resolve_source(str(tiny_models.checkpoint(family, torch.bfloat16)))
    return load_parts(EngineSpec(source=source, head=tiny_models.head(family, head), config=config), single_group())


def specs(count: int, steps: int, sampled: bool, num_tokens: int = 48) -> list[RequestSpec]:
    temperature = 0.9 if sampled else 0.0
    return [
        RequestSpec(
            request_id=f"r{i}",
            prompt_ids=tuple(PROMPTS[i]),
            sampling=SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=temperature, seed=i),
            steps=steps,
        )
        for i in range(count)
    ]


def tokens_of(told: dict[str, Told]) -> dict[str, list[int]]:
    return {name: one.token_ids for name, one in told.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("family", ["plain", "wide_heads", "group4_llama3"])
def test_no_token_differs_with_drafts_or_company(family: str, sampled: bool) -> None:
    """bf16, the kernels that serve: alone and plain, with drafts, sixteen at once that join one by one, with detours,
    in graphs or without."""
    engine = DeviceEngine(gpu_parts(family))
    eager = DeviceEngine(gpu_parts(family, graphs=GraphConfig(enabled=False)))
    plain: dict[str, list[int]] = {}
    for spec in specs(16, 0, sampled):
        plain |= tokens_of(run(engine, [spec])[0])
    drafted: dict[str, list[int]] = {}
    for spec in specs(16, 3, sampled):
        drafted |= tokens_of(run(engine, [spec])[0])
    assert drafted == plain
    for own in (engine, eager):
        for steps in (0, 3):
            together, _ = run(own, specs(16, steps, sampled), arrivals=[2 * i for i in range(16)])
            assert tokens_of(together) == plain
        detours, records = run(own, specs(16, 3, sampled), decisions=[True, True, False, False, False])
        assert tokens_of(detours) == plain
        assert any(record.num_caught_up for record in records)
    assert engine._scheduler.pages.num_free == engine.parts.num_pages - 1


@pytest.mark.gpu
def test_every_phase_of_decoding_is_replayed() -> None:
    engine = DeviceEngine(gpu_parts())
    captured = engine.cycle.graphs.num_captured
    assert captured and not engine.cycle.graphs.failures and engine.step_costs
    assert engine.parts.facts["graphs"]["captured"] == captured
    _, records = run(engine, specs(2, 3, False))
    for record in records[2:]:
        assert {phase: outcome.replayed for phase, outcome in record.outcomes.items()} == dict.fromkeys(
            ("draft", "verify", "extend"), True
        )
    assert engine.cycle.graphs.num_captured == captured  # greedy requests need nothing that the start did not make


@pytest.mark.gpu
@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_eager_by_option(phase: str) -> None:
    expected = tokens_of(run(DeviceEngine(gpu_parts()), specs(2, 3, True))[0])
    engine = DeviceEngine(gpu_parts(graphs=GraphConfig(batches=(1, 2), eager=(phase,))))
    told, records = run(engine, specs(2, 3, True))
    assert tokens_of(told) == expected
    for record in records[2:]:
        for name, outcome in record.outcomes.items():
            wanted = (False, "eager_by_option") if name == phase else (True, None)
            assert (outcome.replayed, outcome.reason) == wanted


@pytest.mark.gpu
def test_another_width_and_kind_of_draw_are_captured_at_their_first_use() -> None:
    """While others decode: their tokens do not notice."""
    engine = DeviceEngine(gpu_parts())
    expected = tokens_of(run(engine, specs(3, 0, True))[0])
    before = engine.cycle.graphs.num_captured
    mixed = [*specs(2, 3, True), specs(3, 5, True)[2]]
    told, records = run(engine, mixed, arrivals=[0, 0, 6])
    assert tokens_of(told) == expected
    assert engine.cycle.graphs.num_captured > before and not engine.cycle.graphs.failures
    assert {part.width for record in records for part in record.requests if part.drafted} == {4, 6}
    assert all(
        outcome.replayed
        for r in records
        for name, outcome in r.outcomes.items()
        if name not in ("prompt", "catch_up")
    )


@pytest.mark.gpu
def test_more_requests_than_the_largest_graph() -> None:
    engine = DeviceEngine(gpu_parts(graphs=GraphConfig(batches=(1, 2))))
    expected = tokens_of(run(engine, specs(1, 0, False))[0])
    told, records = run(engine, specs(5, 3, False))
    assert told["r0"].token_ids == expected["r0"]
    assert {"batch_over_captured"} <= {o.reason for record in records for o in record.outcomes.values()}


@pytest.mark.gpu
def test_a_real_capture_that_fails_leaves_a_device_that_works() -> None:
    runner = GraphRunner(GraphConfig(), torch.device("cuda"))
    source = torch.arange(4.0, device="cuda")
    stream = torch.cuda.current_stream()

    def asks_the_host() -> float:
        return float(source.sum())  # not permitted while recording

    result, outcome = runner.run(KEY, asks_the_host)
    assert result == 6.0 and not outcome.replayed and (outcome.reason or "").startswith("capture_failed: ")
    assert torch.cuda.current_stream() == stream
    doubled, outcome = runner.run(GraphKey("draft", 1, 1), lambda: source * 2)
    assert outcome.replayed and doubled.tolist() == [0.0, 2.0, 4.0, 6.0]
    source += 1
    doubled, _ = runner.run(GraphKey("draft", 1, 1), lambda: source * 2)
    assert doubled.tolist() == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.gpu
def test_wall_time_counts_no_pause_between_answers() -> None:
    engine = DeviceEngine(gpu_parts())
    run(engine, specs(1, 3, False))
    time.sleep(0.5)
    _, records = run(engine, specs(1, 3, False))
    assert all(sum(r.phases_ms.values()) == pytest.approx(r.wall_ms, rel=1e-3, abs=1e-3) for r in records)
    assert records[0].wall_ms < 200


@pytest.mark.gpu
def test_the_same_tokens_as_transformers_where_no_tie_is_near() -> None:
    """Each token of the answer is within rounding of the largest logit of transformers' fp32 model."""
    told, _ = run(DeviceEngine(gpu_parts("wide_heads")), specs(4, 3, False))
    for one in told.values():
        ids = [*one.spec.prompt_ids, *one.token_ids]
        logits_TV = tiny_models.reference_logits("wide_heads", ids)[len(one.spec.prompt_ids) - 1 : -1]
        chosen_T = logits_TV[torch.arange(len(one.token_ids)), torch.tensor(one.token_ids)]
        assert float((logits_TV.amax(-1) - chosen_T).max()) < 0.05 * float(logits_TV.std())
