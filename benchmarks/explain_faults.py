"""Plants faults in real runs and compares what `alula explain` says with what removing the fault does.

    python benchmarks/explain_faults.py --out benchmarks/results/explain_faults_cpu.json [--only NAME...] [--budget 30]

Each faulty engine is explained, then served beside the fixed one, prompt by prompt in turn: the plant switched off,
or the setting changed that the finding names. Plants are patches of the engine (fault_plants.py) or settings; the
profiler reads neither their flag nor their duration.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fault_plants  # noqa: E402

from alula import LLM, SamplingParams  # noqa: E402
from alula.bench.prompts import load_prompts  # noqa: E402
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig  # noqa: E402
from alula.explain.verdict import as_document  # noqa: E402
from alula.lab.budget import Budget  # noqa: E402
from alula.lab.laboratory import Workload  # noqa: E402
from alula.lab.live import explain_live  # noqa: E402
from alula.models.source import ModelSource  # noqa: E402

REAL = "smollm2-135m"
WARM_UP_CYCLES, BLOCK_TOKENS, FEWEST_BLOCKS = 3, 96, 4
MS_TOLERANCE, SPEEDUP_TOLERANCE, REMAINDER_SHARE = 0.15, 0.10, 0.15
HOST_MS = 2.0
FORCED = 2.5  # tokens per cycle of random weights
_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
SHAPES = {
    "small": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
    "wide": {"hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16},
    "deep": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 64, "num_attention_heads": 4},
}
LOOPING = (
    "Repeat the word la one thousand times: la la la la la la la la la la la la la la la la la la la la",
    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes yes",
    "ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha ha",
)


@dataclass(frozen=True)
class Setup:
    """One engine and what it decodes."""

    model: str = REAL
    steps: int = 3
    tp: int = 1
    head: str = "trained"
    boundaries: tuple[int, ...] | None = None
    looping: bool = False
    nccl: tuple[tuple[str, str], ...] = ()

    @property
    def real(self) -> bool:
        return self.model == REAL

    def source(self) -> str | ModelSource:
        if self.real:
            return REAL
        config = {**_LLAMA, **SHAPES[self.model], "vocab_size": 2048, "max_position_embeddings": 1024}
        heads = config["num_attention_heads"]
        config |= {"num_key_value_heads": heads // 2, "head_dim": config["hidden_size"] // heads}
        return ModelSource(kind="shape", name=self.model, path=Path(self.model), shape_config=config)

    def config(self) -> EngineConfig:
        return EngineConfig(
            dtype="auto" if self.real else "float32",
            device="cpu",
            kv_memory_bytes=256 << 20,
            max_batch=2,
            threads=None if self.tp > 1 else 1,  # the second core is for whoever else is on this machine
            parallel=ParallelConfig(tp=self.tp, comm_proof="warn", nccl=dict(self.nccl)),
            speculation=SpeculationConfig(
                steps=self.steps,
                speculate="always",
                head=self.head if self.real else "random",
                aux_boundaries=self.boundaries,
                forced_tokens_per_cycle=None if self.real else FORCED,
            ),
        )

    def workload(self) -> Workload:
        if self.looping:
            return Workload(prompts=LOOPING, sampling=SamplingParams(max_tokens=96, ignore_eos=True))
        if self.real:
            prompts = tuple(list(one.messages) for one in load_prompts())
            return Workload(prompts=prompts, sampling=SamplingParams(max_tokens=96))
        prompts = tuple([(7 * i + j) % 2000 for j in range(32)] for i in range(24))
        return Workload(prompts=prompts, sampling=SamplingParams(max_tokens=96, ignore_eos=True), textless=True)


Plant = Callable[[dict[str, Any]], AbstractContextManager[None]]


def _nothing(healthy: dict[str, Any]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Case:
    """A fault. planted: of the engine with it; healthy: without. plant: made from the healthy engine's figures where it
    is `sized` by them.

    expects: ids of findings, in order; () for nothing wrong. has_ms: whether the fault is one of time. fix: the setup
    after the fix that the finding names; None where that is the healthy one.
    """

    name: str
    healthy: Setup
    expects: tuple[str, ...]
    plant: Plant = _nothing
    planted: Setup | None = None
    has_ms: bool = True
    fix: Callable[[Setup, dict[str, Any]], Setup] | None = None
    sized: bool = False
    what: str = ""


def _named_steps(setup: Setup, finding: dict[str, Any]) -> Setup:
    found = re.search(r"--steps (\d+)", finding["fix"] or "")
    if found is None:
        raise ValueError(f"the fix names no number of steps: {finding['fix']}")
    return Setup(**{**vars(setup), "steps": int(found.group(1))})


def _named_boundaries(setup: Setup, finding: dict[str, Any]) -> Setup:
    found = re.search(r"boundaries ([\d,]+)", finding["fix"] or "")
    if found is None:
        raise ValueError(f"the fix names no boundaries: {finding['fix']}")
    return Setup(**{**vars(setup), "boundaries": tuple(map(int, found.group(1).split(",")))})


def _to_half(healthy: dict[str, Any], k: int, more_ms: float = 0.0) -> float:
    """Milliseconds that each of k passes must take longer for the draft's phases to cost half a plain step, which
    another fault makes longer by `more_ms`."""
    return float(max(0.0, 0.5 * (healthy["plain_step_ms"] + more_ms) - healthy["draft_and_extend_ms"]) / k)


def _lost_variable(healthy: dict[str, Any]) -> AbstractContextManager[None]:
    return fault_plants.lost_variable(tempfile.mkdtemp(prefix="alula-fault-"))


def _two(healthy: dict[str, Any]) -> AbstractContextManager[None]:
    from contextlib import ExitStack

    stack = ExitStack()
    stack.enter_context(fault_plants.host_sleep(HOST_MS))
    stack.enter_context(fault_plants.slow_draft(_to_half(healthy, 3, HOST_MS)))
    return stack


_SMALL_TP, _WIDE_TP = Setup(model="small", tp=2), Setup(model="wide", tp=2, steps=4)
CASES: tuple[Case, ...] = (
    Case("none", Setup(), (), what="nothing is wrong", has_ms=False),
    Case(
        "host_sleep",
        Setup(),
        ("host_or_launch_bound",),
        plant=lambda healthy: fault_plants.host_sleep(HOST_MS),
        what="the host sleeps 2 ms in every cycle",
    ),
    Case(
        "allreduce_delay",
        _SMALL_TP,
        ("collectives_slow",),
        plant=lambda healthy: fault_plants.in_ranks(fault_plants.build_delay, 1.0),
        what="every all-reduce begins 1 ms late",
    ),
    Case(
        "allreduce_delay_large",
        _WIDE_TP,
        ("allreduce_paths_differ",),
        plant=lambda healthy: fault_plants.in_ranks(fault_plants.build_delay_of_large, 1.0),
        what="every all-reduce above 32 KiB begins 1 ms late (hidden size 2048, fp32, 5 rows in verify)",
    ),
    Case(
        "slow_rank",
        _SMALL_TP,
        ("rank_skew",),
        plant=lambda healthy: fault_plants.in_ranks(fault_plants.build_slow_rank, 1.0),
        what="the last rank takes 1 ms longer in every MLP",
    ),
    Case(
        "missing_variable",
        Setup(model="small", tp=2, nccl=(("NCCL_BUFFSIZE", "4194304"),)),
        ("variables_not_in_force",),
        plant=_lost_variable,
        has_ms=False,
        what="rank 1 loses NCCL_BUFFSIZE; --comm-proof warn",
    ),
    Case(
        "random_head", Setup(), ("head_broken",), planted=Setup(head="random"), has_ms=False, what="a random head"
    ),
    Case(
        "layers_off_by_one",
        Setup(),
        ("head_broken",),
        planted=Setup(boundaries=(3, 16, 28)),
        has_ms=False,
        fix=_named_boundaries,
        what="the head reads each layer above its own",
    ),
    Case(
        "too_many_drafts",
        Setup(),
        ("draft_length",),
        planted=Setup(steps=8),
        fix=_named_steps,
        what="k = 8 with a weak head (the shipped one, which yields under 2 tokens per cycle)",
    ),
    Case(
        "slow_draft",
        Setup(model="deep"),
        ("draft_too_slow",),
        plant=lambda healthy: fault_plants.slow_draft(_to_half(healthy, 3)),
        sized=True,
        what="the draft is slowed until its phases cost half a plain step",
    ),
    Case(
        "looping_prompts",
        Setup(),
        ("acceptance_too_good",),
        planted=Setup(looping=True),
        has_ms=False,
        what="prompts whose answers loop",
    ),
    Case(
        "two_at_once",
        Setup(model="deep"),
        ("draft_too_slow", "host_or_launch_bound"),
        plant=_two,
        sized=True,
        what="the host sleeps 2 ms in every cycle, and the draft costs half a plain step",
    ),
)
GPU_ONLY = {"verify_without_graph": "a phase without its graph (--eager verify): needs a GPU"}


def explained(llm: LLM, setup: Setup, budget_s: float) -> dict[str, Any]:
    """The verdict on one engine, as a document."""
    found = explain_live(llm, setup.workload(), Budget(budget_s))
    if found.outcome.fault is not None:
        raise found.outcome.fault
    if found.outcome.interrupted:
        raise KeyboardInterrupt
    return as_document(found.verdict)


@dataclass
class Side:
    """Cycles of one side of a comparison."""

    plain_ms: list[float] = field(default_factory=list)
    cycle_ms: list[float] = field(default_factory=list)
    draft_ms: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def serve(self, llm: LLM, prompt: Any, sampling: SamplingParams) -> None:
        """Decodes a prompt plainly and with drafts."""
        for steps in (0, None):
            llm.take_cycles()
            llm.generate([prompt], sampling, steps=steps)
            cycles = [one for one in llm.take_cycles() if one.requests and not one.requests[0].num_prefill]
            for cycle in cycles[WARM_UP_CYCLES:]:
                if cycle.drafted:
                    self.cycle_ms.append(cycle.wall_ms)
                    self.draft_ms.append(cycle.phases_ms["draft"] + cycle.phases_ms["extend"])
                    self.accepted.append(cycle.requests[0].accepted)
                elif steps == 0:
                    self.plain_ms.append(cycle.wall_ms)

    def figures(self) -> dict[str, Any]:
        plain, cycle = statistics.median(self.plain_ms), statistics.median(self.cycle_ms)
        tokens = 1 + statistics.fmean(self.accepted)
        return {
            "plain_step_ms": plain,
            "cycle_ms": cycle,
            "draft_and_extend_ms": statistics.median(self.draft_ms),
            "tokens_per_cycle": tokens,
            "speedup": tokens * plain / cycle,
            "num_cycles": len(self.cycle_ms),
        }


def alternate(faulty: LLM, fixed: LLM | None, setup: Setup, seconds: float) -> dict[str, dict[str, Any]]:
    """Figures with the fault and without it, prompt by prompt in turn, so that a machine whose speed changes changes
    both. fixed: an engine with other settings; None: the plant is switched off and on."""
    sides, workload = {"faulty": Side(), "fixed": Side()}, setup.workload()
    sampling = msgspec.structs.replace(workload.sampling, max_tokens=BLOCK_TOKENS)
    end = time.monotonic() + seconds
    for index in itertools.count():
        for name in sorted(sides, reverse=bool(index % 2)):
            llm = fixed if fixed is not None and name == "fixed" else faulty
            if fixed is None:
                llm.experiment(partial(fault_plants.set_active, on=name == "faulty"))
            sides[name].serve(llm, workload.prompts[index % len(workload.prompts)], sampling)
        if time.monotonic() > end and index >= FEWEST_BLOCKS:
            break
    if fixed is None:
        faulty.experiment(partial(fault_plants.set_active, on=True))
    return {name: side.figures() for name, side in sides.items()}


def measure(case: Case, budget_s: float) -> dict[str, Any]:
    """The verdict on the faulty engine, then that engine beside the fixed one."""
    planted = case.planted or case.healthy
    healthy = _sized(case, budget_s) if case.sized else {}
    with case.plant(healthy), LLM(planted.source(), config=planted.config()) as llm:
        verdict = explained(llm, planted, budget_s)
        first = next(iter(_confirmed(verdict)), None)
        named = first is not None and case.expects and first["id"] == case.expects[0]
        beside = None
        if case.fix is not None and named:
            assert first is not None
            fixed = case.fix(planted, first)
            with LLM(fixed.source(), config=fixed.config()) as other:
                beside = alternate(llm, other, planted, budget_s)
        elif case.has_ms:
            beside = alternate(llm, None, planted, budget_s)
    return _judged(case, verdict, beside)


def _sized(case: Case, budget_s: float) -> dict[str, Any]:
    """What the healthy engine takes, for a plant whose size depends on it."""
    side, workload = Side(), case.healthy.workload()
    with LLM(case.healthy.source(), config=case.healthy.config()) as llm:
        end = time.monotonic() + budget_s / 3
        while time.monotonic() < end:
            side.serve(llm, workload.prompts[0], workload.sampling)
    return side.figures()


def _confirmed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["findings"] if one["status"] == "confirmed"]


def _judged(case: Case, verdict: dict[str, Any], beside: dict[str, Any] | None) -> dict[str, Any]:
    """What was said against what removing the fault does."""
    named = _confirmed(verdict)
    ids = [one["id"] for one in named]
    ours = [one for one in named if one["id"] in case.expects]
    ms = sum(one["ms"] or 0.0 for one in ours) if case.has_ms else None
    removed = beside["faulty"]["cycle_ms"] - beside["fixed"]["cycle_ms"] if beside and case.has_ms else None
    predicted = ours[0]["predicted_speedup"] if len(case.expects) == 1 and ours else None
    achieved = beside["fixed"]["speedup"] if beside else None
    # What the fix is said to multiply the speed-up by, against what it did when both were served in turn.
    predicted_gain = predicted / verdict["speedup"] if predicted else None
    achieved_gain = achieved / beside["faulty"]["speedup"] if beside and achieved else None
    rest = sum(part["ms"] for part in verdict["waterfall"] if "not explained" in part["part"])
    total = sum(part["ms"] for part in verdict["waterfall"])
    return {
        "case": case.name,
        "what": case.what,
        "expected": list(case.expects),
        "named": ids,
        "finding_ms": ms,
        "removing_it_saves_ms": removed,
        "predicted_speedup": predicted,
        "achieved_speedup": achieved,
        "predicted_gain": predicted_gain,
        "achieved_gain": achieved_gain,
        "not_explained_ms": rest,
        "checks": {
            "named_first": ids[: len(case.expects)] == list(case.expects) if case.expects else not ids,
            "ms_within_15_percent": _near(ms, removed, MS_TOLERANCE),
            "speedup_within_10_percent": _near(predicted, achieved, SPEEDUP_TOLERANCE),
            "gain_within_10_percent": _near(predicted_gain, achieved_gain, SPEEDUP_TOLERANCE),
            "remainder_below_15_percent": abs(rest) <= REMAINDER_SHARE * verdict["cycle_ms"],
            "waterfall_adds_up": abs(total - verdict["cycle_ms"]) < 1e-6,
        },
        "verdict": {
            name: verdict[name] for name in ("answer", "speedup", "plain_step_ms", "cycle_ms", "tokens_per_cycle")
        },
        "beside": beside,
        "findings": [{key: one[key] for key in ("id", "ms", "text", "fix")} for one in named],
        "waterfall": verdict["waterfall"],
    }


def _near(said: float | None, measured: float | None, tolerance: float) -> bool | None:
    """Whether what was said is near what was measured; None where one of them is not there."""
    if said is None or measured is None:
        return None
    return measured > 0 and abs(said / measured - 1) <= tolerance


def _provenance(commit: str | None) -> dict[str, Any]:
    if commit is None:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
        commit = asked.stdout.strip() or None
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _write(path: Path, given: argparse.Namespace, results: dict[str, dict[str, Any]]) -> None:
    document = {
        "schema": 1,
        **_provenance(given.commit),
        "budget_s": given.budget,
        "not_run": GPU_ONLY,
        "cases": [results[case.name] for case in CASES if case.name in results],
    }
    path.write_text(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], default=None)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of each run")
    parser.add_argument("--commit", default=None, help="where there is no .git")
    given = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    failed = 0
    known = json.loads(given.out.read_text())["cases"] if given.only and given.out.exists() else []
    results = {one["case"]: one for one in known}
    for case in CASES:
        if given.only and case.name not in given.only:
            continue
        began = time.perf_counter()
        try:
            found = measure(case, given.budget) | {"load_average": os.getloadavg()[0], **_provenance(given.commit)}
            results[case.name] = found
        except Exception:  # noqa: BLE001  # the others go on
            traceback.print_exc()
            failed += 1
            continue
        wrong = [name for name, held in found["checks"].items() if held is False]
        failed += bool(wrong)
        ms = "no ms"
        if found["finding_ms"] is not None:
            ms = f"{found['finding_ms']:.2f} of {found['removing_it_saves_ms']:.2f} ms"
        print(
            f"{case.name}: {', '.join(found['named']) or 'nothing'}; {ms}; predicted {found['predicted_speedup']}, "
            f"achieved {found['achieved_speedup']}; {'wrong: ' + ', '.join(wrong) if wrong else 'as it should be'} "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        _write(given.out, given, results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
