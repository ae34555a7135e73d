"""The GPU suite: what steps and cycles cost on one GPU, against the memory's floor, and whether they are exact.

    PYTHONPATH=src python benchmarks/gpu.py --out DIR [--model MODEL.gguf --head DIR] [--only SECTION ...]

Prints tables, writes DIR/gpu.json after every part, and ends with issue 3's targets beside what was measured. A part
that fails is reported and the others go on; a section whose error leaves the GPU unusable is followed by a new process
for the rest. --dry goes the same ways on a CPU with a tiny shape: its figures mean nothing. docs: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gpu_real
import gpu_shapes
import gpu_targets
import torch
from gpu_engines import reference_kernels_on_cpu
from gpu_report import Report, Section, clocks, machine, say
from gpu_scale import DRY, LARGE, SMALL, Scale

BANDWIDTH, PYTORCH, REAL, AUTO_SMALL, AUTO_LARGE = "bandwidth", "pytorch", "real", "auto-small", "auto-large"
# Those that most rows come from first: a run that is cut short has them.
SECTIONS = (BANDWIDTH, LARGE, REAL, PYTORCH, AUTO_SMALL, SMALL, AUTO_LARGE)

_ONLY = f"run these sections alone: {', '.join(SECTIONS)}; over a gpu.json that is there, only with --resume"
_BUDGET = (
    "after so many seconds (450 where not given; those that --resume takes up count) no further part begins: "
    "those left out say so in the file, and their figures read 'not measured'"
)
_DERIVE = (
    "measure nothing: compute anew the ratios and targets that follow from the values measured in FILE, print them "
    "and write them back; --out, --only and the others have no effect"
)
_RESUME = (
    "add to DIR/gpu.json: its other sections, its command and its date stay, its seconds count for --budget; "
    "sections that run again are replaced"
)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.derive:
        return _derive(options.derive)
    if not options.dry and not torch.cuda.is_available():
        print("no CUDA GPU here; --dry goes the same ways on a CPU", file=sys.stderr)
        return 2
    if _would_lose_sections(options):
        there = options.out / "gpu.json"
        print(
            f"{there} is there, and --only would drop its other sections; add --resume to keep them, or give another "
            "--out",
            file=sys.stderr,
        )
        return 2
    scale = DRY if options.dry else Scale()
    report = Report(options.out / "gpu.json", _head(options))
    if options.resume:
        _take_up(report)
    report.deadline = time.monotonic() + options.budget - report.document.get("seconds_before", 0.0)
    with tempfile.TemporaryDirectory() as folder, reference_kernels_on_cpu() if scale.dry else nullcontext():
        for name in (name for name in SECTIONS if name in options.only):
            run = _sections(report, scale, options, Path(folder))[name]
            report.section(name, partial(_needing, run, name, options))
            if not _device_alive(scale):
                _go_on_elsewhere(report, options, name)
    if not scale.dry:
        report.document["clocks_at_end"] = clocks()
    gpu_targets.show(report.document)
    report.write()
    say(f"{report.document['seconds']:.0f} s; {report.path}")
    return 1 if _failures(report.document) else 0


def _would_lose_sections(options: argparse.Namespace) -> bool:
    return set(options.only) < set(SECTIONS) and not options.resume and (options.out / "gpu.json").exists()


def _derive(path: Path) -> int:
    """What follows from the measured values of a result file, computed anew and written back."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["benchmark"] == "gpu" and document["sections"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        print(f"--derive {path}: not a result of this suite ({error!r})", file=sys.stderr)
        return 2
    twelve = document["sections"].get("real", {}).get("twelve")
    if twelve:
        for row in twelve["rows"]:
            row["speedup_beside_its_plain"] = row["tokens_per_s"] / row["plain_tokens_per_s"]
        twelve |= gpu_real.against_plain(twelve["rows"])
    document["derived"] = {"by": "--derive", "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}
    gpu_targets.show(document)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder that gets gpu.json")
    parser.add_argument("--model", help="the real SmolLM2: GGUF file, folder or built-in name")
    parser.add_argument("--head", help="its EAGLE-3 head's folder; without it, the built-in model's own")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help=_ONLY)
    parser.add_argument("--commit", help="of the sources, where there is no .git beside them")
    parser.add_argument("--budget", type=float, default=450.0, metavar="SECONDS", help=_BUDGET)
    parser.add_argument("--dry", action="store_true", help="on a CPU, a tiny shape, figures without meaning")
    parser.add_argument("--derive", type=Path, metavar="FILE", help=_DERIVE)
    parser.add_argument("--resume", action="store_true", help=_RESUME)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    return options


def _head(options: argparse.Namespace) -> dict[str, Any]:
    command = ["python", "benchmarks/gpu.py", *options.arguments]
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    kernels = len(list(cache.iterdir())) if cache.is_dir() else 0
    # Start-up is another figure where kernels were compiled before.
    return {"dry": options.dry, **machine(options.commit, command), "compiled_kernels_before": kernels}


def _sections(
    report: Report, scale: Scale, options: argparse.Namespace, folder: Path
) -> dict[str, Callable[[Section], None]]:
    read = report.sections.get(BANDWIDTH, {}).get("read_bytes_per_s")
    model, head = options.model, options.head or "auto"
    return {
        BANDWIDTH: lambda s: gpu_shapes.bandwidth(s, scale),
        LARGE: lambda s: gpu_shapes.shape(s, scale, LARGE, folder, read),
        SMALL: lambda s: gpu_shapes.shape(s, scale, SMALL, folder, read),
        PYTORCH: lambda s: gpu_shapes.plain_pytorch(s, scale, folder, read),
        REAL: lambda s: gpu_real.real(s, scale, model, head),
        AUTO_SMALL: lambda s: gpu_real.auto_small(s, scale, model, head, folder),
        AUTO_LARGE: lambda s: gpu_real.auto_large(s, scale, folder),
    }


def _needing(run: Callable[[Section], None], name: str, options: argparse.Namespace, section: Section) -> None:
    if name == REAL and options.model is None:
        section.entry["left_out"] = "no --model"
        say("left out: no --model")
        return
    run(section)


def _device_alive(scale: Scale) -> bool:
    """False after an error that ends every later call of this process too (an illegal access)."""
    if scale.device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(1, device="cuda").item() == 1.0)
    except Exception as error:  # noqa: BLE001  # whatever it is, a new process is the remedy
        say(f"the GPU is lost to this process: {error}")
        return False


def _go_on_elsewhere(report: Report, options: argparse.Namespace, failed: str) -> None:
    """Replaces this process by one for the sections behind `failed`."""
    rest = [name for name in SECTIONS[SECTIONS.index(failed) + 1 :] if name in options.only]
    if not rest:
        return
    report.write()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, __file__, *_arguments_for(options.arguments, rest)])


def _arguments_for(arguments: list[str], rest: list[str]) -> list[str]:
    """The same command for fewer sections."""
    kept = [argument for argument in arguments if argument != "--resume"]
    if "--only" in kept:
        at = kept.index("--only")
        after = next((i for i in range(at + 1, len(kept)) if kept[i] not in SECTIONS), len(kept))
        kept[at:after] = []
    return [*kept, "--resume", "--only", *rest]


def _take_up(report: Report) -> None:
    """Sections of an earlier process of the same run, and the time that it took."""
    if report.path.exists():
        earlier = json.loads(report.path.read_text(encoding="utf-8"))
        report.document["sections"] = earlier["sections"]
        report.document["seconds_before"] = earlier.get("seconds", 0.0)
        for key in ("command", "date", "compiled_kernels_before"):
            report.document[key] = earlier[key]


def _failures(document: dict[str, Any]) -> list[str]:
    """Sections and parts that hold an error."""
    found = []
    for name, entry in document["sections"].items():
        if "error" in entry:
            found.append(name)
        found += [f"{name}/{key}" for key, value in entry.items() if isinstance(value, dict) and "error" in value]
    return found


if __name__ == "__main__":
    sys.exit(main())
