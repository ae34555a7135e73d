"""The two-GPU suite: tensor parallel over real links, and the PCIe-like box made on purpose (peer-to-peer off).

    PYTHONPATH=src python benchmarks/two_gpus.py --out DIR [--only SECTION ...]

Prints tables and writes DIR/two_gpus.json after every part. --one-gpu lets both ranks share one GPU: it goes the same
ways, and its times mean nothing. --dry goes them on a CPU with a tiny shape. docs: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import two_gpu_sections as sections
from gpu_report import Report, clocks, machine
from two_gpu_scale import DRY, Scale

COLLECTIVES, EIGHT, SEVENTY, PLANS = "collectives", "8b", "70b", "plans"
EXACT, ONE_RANK, FAULTS = "exact", "one_rank", "faults"
SECTIONS = (COLLECTIVES, EIGHT, PLANS, EXACT, ONE_RANK, FAULTS, SEVENTY)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    needed = 1 if options.one_gpu else 2
    if not options.dry and torch.cuda.device_count() < needed:
        print(
            f"needs {needed} GPUs and {torch.cuda.device_count()} are here; --one-gpu shares one, --dry needs none",
            file=sys.stderr,
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    profiles = tempfile.mkdtemp(prefix="alula-profiles-") if options.profiles is None else str(options.profiles)
    scale = replace(DRY, profiles=profiles) if options.dry else Scale(share_gpus=options.one_gpu, profiles=profiles)
    command = ["python", "benchmarks/two_gpus.py", *(sys.argv[1:] if arguments is None else arguments)]
    head = {"benchmark": "two_gpus", **machine(options.commit, command), "scale": scale.told()}
    report = Report(options.out / "two_gpus.json", head)
    if options.resume and report.path.exists():
        report.sections.update(json.loads(report.path.read_text(encoding="utf-8"))["sections"])
    report.deadline = time.monotonic() + options.budget
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            COLLECTIVES: sections.collectives,
            EIGHT: partial(sections.shape, name="llama-3.1-8b"),
            SEVENTY: partial(sections.shape, name="llama-3.1-70b"),
            PLANS: sections.plans,
            EXACT: sections.exact,
            ONE_RANK: sections.one_rank,
            FAULTS: sections.faults,
        }
        for name in (name for name in SECTIONS if name in options.only):
            report.section(name, partial(_run, runs[name], scale=scale, folder=Path(folder)))
    if not options.dry:
        report.document["clocks_at_end"] = clocks()
    sections.judge(report.document)
    report.write()
    return 1 if any("error" in section for section in report.sections.values()) else 0


def _run(section_run, section, *, scale, folder):  # type: ignore[no-untyped-def]
    section_run(section, scale=scale, folder=folder)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of two_gpus.json")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="run these sections alone")
    parser.add_argument("--profiles", type=Path, help="folder that keeps measured collectives from run to run")
    parser.add_argument("--resume", action="store_true", help="keep the other sections of a two_gpus.json there")
    parser.add_argument("--commit", help="what the tree is, where git cannot say")
    parser.add_argument("--budget", type=float, default=520.0, help="after so many seconds no further part begins")
    parser.add_argument("--one-gpu", action="store_true", help="both ranks on one GPU; times mean nothing")
    parser.add_argument("--dry", action="store_true", help="on a CPU, with a tiny shape")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
