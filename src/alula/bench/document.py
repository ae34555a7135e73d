"""The result of a bench as one JSON document (schema 1), with what is needed to judge and repeat it.

Formats figures; computes none. Keys beyond schema 1's list may be added, never renamed.
"""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from alula import __version__
from alula.bench.collectives_report import as_document
from alula.bench.compare import Measurement, Workload
from alula.bench.results import Figures, PromptRun, SideFigures, prompt_speedup
from alula.core.dispatch_paths import Collectives
from alula.core.records import RunRecord

SCHEMA = 1
_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "gguf", "msgspec")


def document(
    run: RunRecord,
    workload: Workload,
    measurement: Measurement,
    figures: Figures,
    collectives: Collectives | None = None,
) -> dict[str, Any]:
    """The keys of schema 1 in its order, then provenance and detail. collectives: None on a single rank."""
    told = None if collectives is None else as_document(collectives)
    return {**_figures(run, figures), **_circumstances(run, workload, measurement), "collectives": told}


def _figures(run: RunRecord, figures: Figures) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": run.model,
        "draft": run.draft,
        "device": run.device,
        "dtype": run.dtype,
        "tp": run.tp,
        "steps": run.steps if figures.eagle3 else None,
        "prompts": figures.num_prompts,
        "looping_prompts": figures.num_looping,
        "plain": _plain(figures.plain),
        "eagle3": _eagle3(figures.eagle3) if figures.eagle3 else None,
        "speedup": figures.speedup,
        "break_even_tokens_per_cycle": figures.break_even_tokens_per_cycle,
        "ceiling_tokens_per_cycle": figures.ceiling_tokens_per_cycle,
        "mismatched_tokens": figures.mismatched_tokens,
        "verify_over_plain_step": figures.verify_over_plain_step,
        "speculation": _speculation(run, figures),
        "forced_tokens_per_cycle": figures.forced_tokens_per_cycle,
        "speedup_per_prompt": msgspec.to_builtins(figures.speedup_spread),
    }


def _circumstances(run: RunRecord, workload: Workload, measurement: Measurement) -> dict[str, Any]:
    return {
        "exact": run.exact,
        "draft_placement": run.draft_placement,
        "sampling": msgspec.to_builtins(workload.sampling),
        "seed": workload.sampling.seed,
        "max_tokens": workload.sampling.max_tokens,
        "raw": workload.raw,
        "exactness_off": _exactness_off(measurement),
        "stopped": measurement.stopped,
        "prompts_asked": len(workload.prompts),
        "skipped": msgspec.to_builtins(measurement.skipped),
        "facts": run.facts,
        "provenance": provenance(),
        "per_prompt": [_per_prompt(entry) for entry in measurement.runs],
    }


def _speculation(run: RunRecord, figures: Figures) -> dict[str, Any] | None:
    if figures.eagle3 is None:
        return None
    return {"mode": run.speculate, **msgspec.to_builtins(figures.eagle3.speculation)}


def provenance() -> dict[str, Any]:
    """Where and with what: versions, processor, commit, time. What cannot be found is null."""
    return {
        "alula": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _plain(side: SideFigures) -> dict[str, Any]:
    return {
        "tokens_per_s": side.tokens_per_s,
        "step_ms": side.cycle_ms,
        "step_ms_median": side.cycle_ms_median,
        "phases_ms": side.phases_ms,
        "prefill_ms": side.prefill_ms,
        "steps": side.num_cycles,
        "tokens": side.emitted_tokens,
        "outcomes": msgspec.to_builtins(side.outcomes),
    }


def _eagle3(side: SideFigures) -> dict[str, Any]:
    return {
        "tokens_per_s": side.tokens_per_s,
        "cycle_ms": side.cycle_ms,
        "tokens_per_cycle": side.tokens_per_cycle,
        "acceptance_per_position": side.acceptance_per_position,
        "phases_ms": side.phases_ms,
        "conditional_acceptance_per_position": side.conditional_acceptance_per_position,
        "cycle_ms_median": side.cycle_ms_median,
        "prefill_ms": side.prefill_ms,
        "cycles": side.num_cycles,
        "truncated_cycles": side.num_truncated_cycles,
        "drafted": side.drafted,
        "accepted": side.accepted,
        "tokens": side.emitted_tokens,
        "outcomes": msgspec.to_builtins(side.outcomes),
    }


def _per_prompt(run: PromptRun) -> dict[str, Any]:
    return {
        "id": run.prompt_id,
        "category": run.category,
        "tokens": len(run.plain.token_ids),
        "looping": run.looping,
        "mismatched_tokens": run.mismatched_tokens,
        "speedup": prompt_speedup(run),
    }


def _exactness_off(measurement: Measurement) -> list[str]:
    """Each distinct reason that a cycle gave for not being exact."""
    answers = [answer for run in measurement.runs for answer in (run.plain, run.eagle3) if answer]
    return sorted({cycle.exactness for answer in answers for cycle in answer.cycles if cycle.exactness})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    """The commit of the checkout this package runs from, with "+" where files differ from it."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    # An installed package may lie inside some other project's checkout: ask only where git knows this very file.
    command = ["git", "-C", str(folder)]
    subprocess.run([*command, "ls-files", "--error-unmatch", Path(__file__).name], capture_output=True, check=True)
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
