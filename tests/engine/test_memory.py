"""Memory: what a refused allocation becomes, the room that is left for a device-resident cycle, kernels that a GPU
cannot run. No GPU is needed: what torch says of one is made up.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from device_engines import device_engine, device_parts, load

import engine_spy
import tiny_models
from alula.comm.dispatch import Dispatcher
from alula.comm.group import Group
from alula.core.config import EngineConfig, GraphConfig, SpeculationConfig
from alula.core.errors import InvalidOption, OutOfMemory
from alula.core.sampling import SamplingParams
from alula.engine import setup
from alula.engine.device_engine import DeviceEngine
from alula.engine.graph_runner import GraphKey, GraphRunner
from alula.engine.llm import LLM
from alula.engine.memory import KEPT_POSITIONS, cycle_bytes, memory_errors
from alula.engine.request import RequestSpec
from alula.engine.runner import no_graphs
from alula.kernels.gpu.launch import refusal
from alula.layers.block_kernels import reference_block_kernels

CUDA_SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.20 GiB is "
    "free. "
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF"
)
GPU_FULL = torch.OutOfMemoryError(CUDA_SAID)
MODEL_8B: dict[str, Any] = {"vocab_size": 128256, "num_features": 3 * 4096, "dtype": torch.bfloat16}


@pytest.mark.parametrize(
    "error",
    [GPU_FULL, MemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes")],
)
def test_a_refused_allocation_names_the_setting(error: Exception) -> None:
    with pytest.raises(OutOfMemory, match="out of memory for the KV cache: .*; give it less"):  # noqa: SIM117
        with memory_errors("the KV cache", "give it less"):
            raise error


def test_torch_s_advice_is_left_out() -> None:
    with pytest.raises(OutOfMemory) as caught, memory_errors("x", "y"):
        raise GPU_FULL
    assert "Tried to allocate 2.00 GiB" in str(caught.value) and "ALLOC_CONF" not in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), InvalidOption("no"), ValueError("no")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, memory_errors("x", "y"):
        raise error
    assert caught.value is error


def test_the_room_of_a_cycle() -> None:
    kept = 33 * KEPT_POSITIONS * 3 * 4096 * 2
    whole = cycle_bytes(EngineConfig(), **MODEL_8B)
    assert kept < whole < kept + (1 << 30)
    assert cycle_bytes(EngineConfig(graphs=GraphConfig(batches=(1,))), **MODEL_8B) < whole
    assert cycle_bytes(EngineConfig(graphs=GraphConfig(widths=(9,))), **MODEL_8B) > whole
    assert cycle_bytes(EngineConfig(graphs=GraphConfig(batches=(1, 2, 4, 8, 16, 32, 64))), **MODEL_8B) == whole
    assert cycle_bytes(EngineConfig(max_batch=4), **MODEL_8B) < whole
    assert cycle_bytes(EngineConfig(speculation=SpeculationConfig(steps=8)), **MODEL_8B) > whole
    assert cycle_bytes(EngineConfig(), **{**MODEL_8B, "num_features": 0}) < whole - kept + 1


def _load(**config: Any) -> LLM:
    settings = EngineConfig(dtype="float32", device="cpu", page_tokens=4, threads=1, **config)
    return LLM(str(tiny_models.checkpoint()), draft=None, config=settings)


def test_the_kv_cache_leaves_room_for_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 1 << 20
    monkeypatch.setattr(setup, "free_memory_bytes", lambda device: free)
    with _load() as llm:
        before = llm.describe().facts["kv_tokens"]
    monkeypatch.setattr(setup, "choose_block_kernels", lambda device, ranks: (reference_block_kernels(), None))
    with pytest.raises(
        OutOfMemory, match=r"MiB are free beside the weights.*--kv-memory.*--graph-batches.*--no-graphs"
    ):
        _load()
    monkeypatch.setattr(setup, "cycle_bytes", lambda *_: free - (1 << 16))
    with _load(graphs=GraphConfig(enabled=False)) as llm:
        assert 0 < llm.describe().facts["kv_tokens"] < before


def test_state_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise GPU_FULL

    parts = device_parts(load())
    monkeypatch.setattr("alula.engine.device_engine.DeviceCycle", full)
    with pytest.raises(OutOfMemory, match="the state of running requests: .*--kv-memory"):
        DeviceEngine(parts)


def test_a_cycle_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise GPU_FULL

    engine = device_engine()
    engine.add(RequestSpec(request_id="r", prompt_ids=(1, 2), sampling=SamplingParams(), steps=0))
    monkeypatch.setattr(engine.cycle, "launch", full)
    with pytest.raises(OutOfMemory, match="out of memory for a cycle: .*--kv-memory"):
        engine.step()


class FakeCuda(types.ModuleType):
    """What a graph runner asks of torch.cuda; `graph` fails as a capture does whose work was refused memory."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.replays = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0

    def CUDAGraph(self) -> Any:
        return types.SimpleNamespace(replay=self._replay)

    def _replay(self) -> None:
        self.replays += 1

    @contextmanager
    def graph(self, graph: Any, **_: Any) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def test_a_capture_without_memory_runs_eagerly_and_says_what_to_change(cuda: FakeCuda) -> None:
    runner = GraphRunner(GraphConfig(), torch.device("cuda"))
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first run is eager, the second is the capture
            raise GPU_FULL
        return calls

    key = GraphKey("verify", 32, 4)
    result, outcome = runner.run(key, work)
    assert result == 3 and not outcome.replayed and outcome.reason is not None
    for words in ("capture_failed: out of memory", "Tried to allocate 2.00 GiB", "--kv-memory", "--graph-batches"):
        assert words in outcome.reason
    assert list(runner.failures) == ["verify batch 32 width 4"] and runner.num_captured == 0
    assert runner.run(key, work)[0] == 4  # not tried again
    assert runner.run(GraphKey("verify", 1, 4), lambda: 7) == (7, type(outcome)(replayed=True))
    assert cuda.replays == 1


def test_any_other_capture_error_is_kept_in_short(cuda: FakeCuda) -> None:
    runner = GraphRunner(GraphConfig(), torch.device("cuda"))

    def work() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be ...")

    runner.prepare(GraphKey("draft", 1, 3), work)
    assert runner.failures == {"draft batch 1 width 3": "operation not permitted when stream is capturing"}


def test_why_a_gpu_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    device, capability = torch.device("cuda"), [(7, 5)]
    assert refusal(torch.device("cpu")) == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert "compute capability 7.5" in str(refusal(device))
    capability[0] = (8, 0)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "pip install 'alula[gpu]'" in str(refusal(device))
    target: Any = lambda: (_ for _ in ()).throw(RuntimeError("Failed to find C compiler."))  # noqa: E731
    active = types.SimpleNamespace(get_current_target=target)
    driver = types.SimpleNamespace(active=active)
    fake = types.SimpleNamespace(runtime=types.SimpleNamespace(driver=driver))
    monkeypatch.setitem(sys.modules, "triton", fake)
    assert "Triton cannot launch kernels (Failed to find C compiler.); it needs a C compiler" in str(
        refusal(device)
    )
    active.get_current_target = lambda: "cuda"
    assert refusal(device) is None


def test_a_cycle_that_the_host_leads_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert no_graphs(None).reason == "graphs_not_built"
    assert no_graphs("Triton cannot be imported").reason == "no_device_cycle: Triton cannot be imported"
    # Before the next line: engines of the spy are kept, and must not believe that there is a GPU.
    assert engine_spy.load().facts["device_cycle"] == {"kernels": None, "refusal": "no CUDA device"}
    monkeypatch.setattr(setup, "gpu_refusal", lambda device: None)
    ranks = Group(0, 2, Dispatcher((), 2), "several_ranks_not_captured: gloo waits for the host")
    assert setup.choose_block_kernels(torch.device("cuda"), ranks) == (None, ranks.capture_refusal)
