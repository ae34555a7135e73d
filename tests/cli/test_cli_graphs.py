"""What `run` and `bench` say of graphs: notes of a loaded engine, how phases ran, and nothing of it on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alula.cli.notes import notes
from alula.cli.options import EngineOptions
from alula.core.records import PhaseOutcome
from fake_llm import FakeLLM

Alula = Callable[..., Any]
GRAPHS = {
    "captured": 40,
    "seconds": 12.34,
    "memory_bytes": 512 << 20,
    "batches": [1, 2],
    "eager_by_option": [],
    "refusal": None,
    "failures": {},
}
TRITON = {"kernels": "triton", "refusal": None}
REPLAYED = PhaseOutcome(replayed=True)
BY_OPTION = PhaseOutcome(replayed=False, reason="eager_by_option")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the fake engine one of a GPU."""

    def set_up(
        graphs: dict[str, Any] | None = GRAPHS, refusal: str | None = None, **outcomes: PhaseOutcome
    ) -> None:
        facts = {"device_cycle": {**TRITON, "refusal": refusal}} | ({} if graphs is None else {"graphs": graphs})
        monkeypatch.setattr(FakeLLM, "device", "cuda")
        monkeypatch.setattr(FakeLLM, "facts", facts)
        monkeypatch.setattr(FakeLLM, "outcomes", outcomes)

    return set_up


def test_nothing_is_said_on_a_cpu(alula: Alula, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = PhaseOutcome(replayed=False, reason="graphs_not_built")
    monkeypatch.setattr(FakeLLM, "outcomes", {"verify": eager, "draft": eager})
    for outcome in (alula("run", "m", "--prompt", "hi"), alula("bench", "m", "--limit", 1)):
        assert "graph" not in outcome.out + outcome.err and "eager" not in outcome.out + outcome.err
    told = alula("bench", "m", "--limit", 1, "--json", "-").json
    assert told["plain"]["outcomes"]["verify"]["eager_because"] == {"graphs_not_built": 72}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-graphs"], "--no-graphs"),
        (["--eager", "draft", "--eager", "verify"], "--eager"),
        (["--graph-batches", "1,2", "--graph-widths", "3"], "--graph-batches, --graph-widths"),
    ],
)
def test_options_without_effect_are_named(alula: Alula, arguments: list[str], named: str) -> None:
    outcome = alula("run", "m", "--prompt", "hi", *arguments)
    assert outcome.code == 0
    assert f"{named}: no effect on a CPU, which has no CUDA graphs" in outcome.err


def test_run_says_how_phases_ran(alula: Alula, gpu: Callable[..., None]) -> None:
    gpu(verify=REPLAYED, draft=REPLAYED, extend=BY_OPTION)
    outcome = alula("run", "m", "--prompt", "hi")
    assert "phases: draft, verify replayed; extend eager (eager_by_option 24)" in outcome.err
    told = alula("run", "m", "--prompt", "hi", "--json", "-").json["answers"][0]["outcomes"]
    assert told["draft"] == {"cycles": 24, "replayed": 24, "replayed_share": 1.0, "eager_because": {}}


def test_bench_says_how_phases_ran(alula: Alula, gpu: Callable[..., None], tmp_path: Path) -> None:
    gpu(verify=REPLAYED, draft=REPLAYED, extend=BY_OPTION)
    page = tmp_path / "page.html"
    outcome = alula("bench", "m", "--limit", 1, "--html", page, "--json", tmp_path / "r.json")
    for text in (outcome.out, page.read_text()):
        assert "On the plain side: verify replayed." in text
        assert "On the EAGLE-3 side: draft, verify replayed; extend eager (eager_by_option 24)." in text
        assert "40 CUDA graphs, captured in 12.3 s, take 512 MiB." in text
    assert '"eager_by_option": 24' in (tmp_path / "r.json").read_text()


def test_failed_captures_are_told_when_the_model_is_loaded(alula: Alula, gpu: Callable[..., None]) -> None:
    failures = {f"verify batch {size} width 4": "out of memory (x): --no-graphs" for size in (4, 8, 16, 32)}
    gpu(GRAPHS | {"failures": failures}, verify=REPLAYED)
    outcome = alula("bench", "m", "--limit", 1)
    assert "CUDA graphs that could not be captured run eagerly, slower: verify batch 4 width 4" in outcome.err
    assert "and 1 more (facts.graphs in the JSON)" in outcome.err
    assert "Not captured: verify batch 32 width 4: out of memory (x): --no-graphs." in outcome.out
    told = alula("bench", "m", "--limit", 1, "--json", "-").json
    assert told["facts"]["graphs"]["failures"] == failures


def test_graphs_that_were_turned_off(alula: Alula, gpu: Callable[..., None]) -> None:
    disabled = PhaseOutcome(replayed=False, reason="capture_disabled")
    gpu(GRAPHS | {"captured": 0, "refusal": "capture_disabled"}, verify=disabled)
    outcome = alula("bench", "m", "--limit", 1, "--no-graphs", "--draft", "none")
    assert "No CUDA graphs: capture_disabled." in outcome.out and "no effect" not in outcome.err
    assert "On the plain side: verify eager (capture_disabled 72)." in outcome.out


def test_a_gpu_without_kernels_is_told(alula: Alula, gpu: Callable[..., None]) -> None:
    reason = "compute capability 7.5; the kernels need 8.0 (Ampere) or later"
    gpu(None, reason, verify=PhaseOutcome(replayed=False, reason=f"no_device_cycle: {reason}"))
    outcome = alula("bench", "m", "--limit", 1, "--eager", "draft")
    assert f"the GPU's own kernels cannot be used: {reason}. Plain torch runs instead" in outcome.err
    assert "--eager: no effect, since no graphs are captured" in outcome.err
    assert f"The host leads every cycle: {reason}." in outcome.out


def test_several_ranks_run_eagerly_on_gpus() -> None:
    refusal = "several_ranks_not_captured: no backend of all_reduce can be captured (gloo: waits for the host)"
    facts = {"device_cycle": {"kernels": None, "refusal": refusal}}
    (said,) = notes("cuda", facts, EngineOptions(tp=2))
    assert said.startswith("--tp 2 on GPUs: every phase runs eagerly") and "--tp 1" in said and refusal in said
    assert notes("cpu", facts, EngineOptions(tp=2)) == []
