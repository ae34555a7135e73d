"""The long check of what alula promises: every prompt, every head, statistics with large N. Writes its result file.

    make acceptance                     all sections, into benchmarks/results/acceptance.json
    python benchmarks/acceptance.py --only lossless_fp32 twelve

Sections that are not run this time keep what the file holds of them. Exit code 1 if any section fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alula.core.environment import bind_threads

bind_threads()  # before torch is loaded, as the command line does

import torch  # noqa: E402
from real_model_statistics import compare_laws  # noqa: E402
from toy_statistics import CASES, MIXED, judge  # noqa: E402
from twelve import compare as compare_twelve  # noqa: E402

from alula import LLM, SamplingParams, __version__  # noqa: E402
from alula.bench.prompts import load_prompts  # noqa: E402
from alula.bench.results import mismatched_tokens  # noqa: E402
from alula.comm.group import single_group  # noqa: E402
from alula.core.config import EngineConfig, SpeculationConfig  # noqa: E402
from alula.engine.setup import EngineSpec, load_parts  # noqa: E402
from alula.models.source import resolve_source  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "acceptance.json"
MODEL = "smollm2-135m"
NUM_TOKENS = 128
STEPS = 4
HEADS = ("trained", "random", "adversarial")
WAYS = {
    "greedy": SamplingParams(max_tokens=NUM_TOKENS),
    "sampled": SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.95, seed=1234),
}
NUM_TOY_RUNS = 200_000
NUM_REAL_RUNS = 20_000


def lossless(dtype: str, exact: bool, heads: Sequence[str]) -> dict[str, Any]:
    """Plain against speculative tokens of all prompts, decoded together."""
    conversations = [list(prompt.messages) for prompt in load_prompts(None)]
    rows = []
    for head in heads:
        config = EngineConfig(
            dtype=dtype,
            exact=exact,
            max_batch=8,
            speculation=SpeculationConfig(steps=STEPS, head=head, speculate="always"),
        )
        with LLM(MODEL, config=config) as llm:
            for way, sampling in WAYS.items():
                plain = llm.chat(conversations, sampling, steps=0)
                drafted = llm.chat(conversations, sampling)
                pairs = [(p.token_ids, d.token_ids) for p, d in zip(plain, drafted, strict=True)]
                cycles = sum(d.request.num_cycles for d in drafted)
                row = {
                    "head": head,
                    "sampling": way,
                    "prompts": len(pairs),
                    "tokens": sum(len(p) for p, _ in pairs),
                    "mismatched_tokens": sum(mismatched_tokens(p, d) for p, d in pairs),
                    "tokens_per_cycle": 1 + sum(d.request.accepted for d in drafted) / cycles,
                    "exactness_off": sorted({c.exactness for c in llm.take_cycles() if c.exactness}),
                }
                rows.append(row)
                say(f"{dtype} {head} {way}: {row['mismatched_tokens']} of {row['tokens']} tokens differ")
    return {"rows": rows, "passed": all(row["mismatched_tokens"] == 0 for row in rows)}


def exact_cost() -> dict[str, Any]:
    """What --exact costs in bf16: plain steps and cycles, batch 1, alternating between two engines."""
    times: dict[str, list[float]] = {}
    conversations = [list(prompt.messages) for prompt in load_prompts(None)[:6]]
    speculation = SpeculationConfig(steps=STEPS, speculate="always")
    engines = {
        exact: LLM(MODEL, config=EngineConfig(dtype="bfloat16", exact=exact, speculation=speculation))
        for exact in (False, True)
    }
    for conversation in conversations:
        for exact, llm in engines.items():
            for steps in (0, STEPS):
                llm.take_cycles()
                llm.chat([conversation], SamplingParams(max_tokens=64), steps=steps)
                decode = [c.wall_ms for c in llm.take_cycles() if not any(r.num_prefill for r in c.requests)]
                times.setdefault(
                    f"{'exact' if exact else 'plain_bf16'}_{'step' if steps == 0 else 'cycle'}_ms", []
                ).extend(decode)
    facts = engines[True].describe().facts["exactness"]
    for llm in engines.values():
        llm.close()
    means = {name: sum(values) / len(values) for name, values in times.items()}
    return {
        **means,
        "step_cost": means["exact_step_ms"] / means["plain_bf16_step_ms"],
        "cycle_cost": means["exact_cycle_ms"] / means["plain_bf16_cycle_ms"],
        "padding": facts,
        "passed": facts["off"] is None,
    }


def twelve() -> dict[str, Any]:
    """The head along the reference's ids, fp32, every k: within 1 %."""
    source = resolve_source(MODEL)
    spec = EngineSpec(source=source, head=source.builtin_head, config=EngineConfig(dtype="float32"))
    found = compare_twelve(load_parts(spec, single_group()), [1, 2, 3, 4, 5, 7])
    rows = [
        {
            "steps": one.steps,
            "tokens_per_cycle": one.tokens_per_cycle,
            "reference": one.reference,
            "deviation": one.deviation,
        }
        for one in found
    ]
    for row in rows:
        say(f"k={row['steps']}: {row['tokens_per_cycle']:.4f}, reference {row['reference']:.4f}")
    return {"rows": rows, "passed": all(one.good for one in found)}


def toy_statistics(num_runs: int) -> dict[str, Any]:
    """specs/eagle3.md 4.5, items 1 to 3, with large N."""
    rows = []
    for name, case in {**CASES, "mixed": MIXED}.items():
        for verdict in judge(name, case, num_runs):
            rows.append(
                {
                    "case": verdict.name,
                    "runs": verdict.num_runs,
                    "p_values": [fit.p_value for fit in verdict.fits],
                    "total_variation_over_expected": [fit.tv_ratio for fit in verdict.fits],
                    "acceptance_sigmas": list(verdict.acceptance_sigmas),
                    "good": verdict.good,
                }
            )
            say(f"{verdict.name}: {'good' if verdict.good else 'BAD'}")
    return {"rows": rows, "passed": all(row["good"] for row in rows)}


def real_statistics(num_runs: int) -> dict[str, Any]:
    """4.5 item 5: tokens 1, 2 and 5 of a fixed prompt, plain against speculative, different seeds."""
    return compare_laws(MODEL, num_runs, say)


def long_tests() -> dict[str, Any]:
    """The tests marked `acceptance`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "acceptance"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1]
    say(last)
    return {"summary": last.split(" in ")[0], "passed": done.returncode == 0}


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "twelve": lambda options: twelve(),
    "toy_statistics": lambda options: toy_statistics(options.toy_runs),
    "lossless_fp32": lambda options: lossless("float32", False, HEADS),
    "lossless_bf16_exact": lambda options: lossless("bfloat16", True, HEADS[:1]),
    "exact_cost": lambda options: exact_cost(),
    "real_statistics": lambda options: real_statistics(options.real_runs),
    "long_tests": lambda options: long_tests(),
}


def say(message: str) -> None:
    print(f"    {message}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    from alula.engine.device import device_name

    return {
        "alula": __version__,
        "torch": str(torch.__version__),
        "processor": device_name(torch.device("cpu")),
        "date": datetime.date.today().isoformat(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--toy-runs", type=int, default=NUM_TOY_RUNS, metavar="N")
    parser.add_argument("--real-runs", type=int, default=NUM_REAL_RUNS, metavar="N")
    options = parser.parse_args()
    held = json.loads(options.json.read_text()) if options.json.exists() else {}
    sections = held.get("sections", {})
    for index, name in enumerate(options.only, 1):
        print(f"==> {index}/{len(options.only)} {name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        found = SECTIONS[name](options)
        sections[name] = {"seconds": round(time.monotonic() - started), **machine(), **found}
        document = {"schema": 1, "passed": all(s["passed"] for s in sections.values()), "sections": sections}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    failed = [name for name, section in sections.items() if not section["passed"]]
    print(f"acceptance: {len(sections) - len(failed)} sections passed, {len(failed)} failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
