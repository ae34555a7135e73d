"""Plants faults in real runs and compares what `alula explain` says with what removing the fault does.

    python benchmarks/explain_faults.py --out benchmarks/results/explain_faults_cpu.json [--only NAME...] [--budget 30]

Each case runs without the fault, with it, and with the fix that the report names. Plants are patches of the engine
(fault_plants.py) or settings; the profiler reads neither their flag nor their duration. Times are of the verdicts:
median cycles and plain steps of served requests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
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
MS_TOLERANCE, SPEEDUP_TOLERANCE, REMAINDER_SHARE = 0.15, 0.10, 0.15
DRIFT = 0.12
FORCED = 2.5  # tokens per cycle of random weights
_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
SHAPES = {
    "small": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
    "wide": {"hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16},
    "deep": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 32, "num_attention_heads": 4},
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
    """A fault. planted: of the engine with it; healthy: without. plant: made from the healthy run's verdict.

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


def _to_half(healthy: dict[str, Any], k: int) -> float:
    """Milliseconds that each of k passes must take longer for the draft's phases to cost half a plain step."""
    facts = healthy["facts"]["speculative"]
    own = facts["draft_ms[batch 1]"] + facts["extend_ms[batch 1]"]
    return max(0.0, 0.5 * healthy["plain_step_ms"] - own) / k


def _lost_variable(healthy: dict[str, Any]) -> AbstractContextManager[None]:
    return fault_plants.lost_variable(tempfile.mkdtemp(prefix="alula-fault-"))


def _two(healthy: dict[str, Any]) -> AbstractContextManager[None]:
    from contextlib import ExitStack

    stack = ExitStack()
    stack.enter_context(fault_plants.host_sleep(2.0))
    stack.enter_context(fault_plants.slow_draft(_to_half(healthy, 3)))
    return stack


_SMALL_TP, _WIDE_TP = Setup(model="small", tp=2), Setup(model="wide", tp=2, steps=4)
CASES: tuple[Case, ...] = (
    Case("none", Setup(), (), what="nothing is wrong", has_ms=False),
    Case(
        "host_sleep",
        Setup(),
        ("host_or_launch_bound",),
        plant=lambda healthy: fault_plants.host_sleep(2.0),
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
        what="the host sleeps 2 ms in every cycle, and the draft costs half a plain step",
    ),
)
GPU_ONLY = {"verify_without_graph": "a phase without its graph (--eager verify): needs a GPU"}


def run(setup: Setup, budget_s: float) -> dict[str, Any]:
    """The verdict on one engine, as a document."""
    with LLM(setup.source(), config=setup.config()) as llm:
        found = explain_live(llm, setup.workload(), Budget(budget_s))
    if found.outcome.fault is not None:
        raise found.outcome.fault
    if found.outcome.interrupted:
        raise KeyboardInterrupt
    return as_document(found.verdict)


def attempt(case: Case, budget_s: float, last: bool) -> dict[str, Any]:
    """The case without its fault, with it, and fixed, one right after the other. Unless it is the last attempt, it ends
    early where the machine's speed has changed."""
    healthy = run(case.healthy, budget_s)
    if not case.expects:
        return _judged(case, healthy, healthy, healthy)
    planted = case.planted or case.healthy
    with case.plant(healthy):
        faulty = run(planted, budget_s)
    if not last and _drift((healthy, faulty)) > DRIFT:
        return {"machine_drift": _drift((healthy, faulty))}
    first = _confirmed(faulty)[:1]
    named = bool(first) and first[0]["id"] == case.expects[0]
    fixed = run(case.fix(planted, first[0]) if case.fix is not None and named else case.healthy, budget_s)
    return _judged(case, healthy, faulty, fixed)


def measure(case: Case, budget_s: float, attempts: int) -> dict[str, Any]:
    """The first attempt in which the machine kept its speed, or the last one; how many there were stands in it."""
    for number in range(1, attempts + 1):
        found = attempt(case, budget_s, number == attempts) | {"attempts": number}
        if found["machine_drift"] <= DRIFT:
            break
        print(f"{case.name}: the machine's speed changed by {100 * found['machine_drift']:.0f} %", flush=True)
    return found


def _drift(documents: Sequence[dict[str, Any]]) -> float:
    """By how much the target's forward of one row, alone, differs between the runs: no fault is planted in it."""
    name = "forward_ms[phase verify, width 1]"
    times = [document["facts"]["speculative"].get(name) for document in documents]
    known = [time for time in times if time]
    return max(known) / min(known) - 1 if known else 0.0


def _apart(healthy: dict[str, Any], fixed: dict[str, Any]) -> float:
    """By how much two runs of the same healthy engine differ, in plain steps and in cycles."""
    ratios = [fixed[name] / healthy[name] for name in ("plain_step_ms", "cycle_ms")]
    return max(max(ratio, 1 / ratio) for ratio in ratios) - 1


def _confirmed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["findings"] if one["status"] == "confirmed"]


def _judged(case: Case, healthy: dict[str, Any], faulty: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """What was said against what removing the fault does."""
    named = _confirmed(faulty)
    ids = [one["id"] for one in named]
    # A fault that is simply taken away was measured against a run before it and one behind it.
    without = fixed["cycle_ms"] if case.fix else (healthy["cycle_ms"] + fixed["cycle_ms"]) / 2
    removed = faulty["cycle_ms"] - without
    ms = sum(one["ms"] or 0.0 for one in named if one["id"] in case.expects)
    rest = sum(part["ms"] for part in faulty["waterfall"] if "not explained" in part["part"])
    first = next((one for one in named if case.expects and one["id"] == case.expects[0]), None)
    predicted = first["predicted_speedup"] if first and len(case.expects) == 1 else None
    checks: dict[str, bool | None] = {
        "named_first": ids[: len(case.expects)] == list(case.expects) if case.expects else not ids,
        "ms_within_15_percent": abs(ms / removed - 1) <= MS_TOLERANCE if case.has_ms and removed > 0 else None,
        "speedup_within_10_percent": (
            abs(fixed["speedup"] / predicted - 1) <= SPEEDUP_TOLERANCE if predicted and fixed["speedup"] else None
        ),
        "remainder_below_15_percent": abs(rest) <= REMAINDER_SHARE * faulty["cycle_ms"],
        "waterfall_adds_up": (
            abs(sum(part["ms"] for part in faulty["waterfall"]) - faulty["cycle_ms"]) < 1e-6
            if faulty["waterfall"]
            else None
        ),
    }
    return {
        "case": case.name,
        "what": case.what,
        "expected": list(case.expects),
        "named": ids,
        "finding_ms": ms if case.has_ms else None,
        "removing_it_saves_ms": removed if case.has_ms else None,
        "predicted_speedup": predicted,
        "achieved_speedup": fixed["speedup"] if case.expects else None,
        "not_explained_ms": rest,
        "checks": checks,
        "machine_drift": max(_drift((healthy, faulty, fixed)), 0.0 if case.fix else _apart(healthy, fixed)),
        "healthy": _figures(healthy),
        "faulty": _figures(faulty),
        "fixed": _figures(fixed),
        "findings": [{key: one[key] for key in ("id", "ms", "text", "fix")} for one in named],
        "waterfall": faulty["waterfall"],
    }


def _figures(document: dict[str, Any]) -> dict[str, Any]:
    names = ("answer", "speedup", "plain_step_ms", "cycle_ms", "tokens_per_cycle")
    return {name: document[name] for name in names}


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
    parser.add_argument("--attempts", type=int, default=4, help="of a case, while the machine's speed changes")
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
            results[case.name] = found = measure(case, given.budget, given.attempts)
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
