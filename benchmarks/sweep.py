"""`alula bench` at several numbers of drafts, each in a process of its own; the best is the bench's result.

    python benchmarks/sweep.py [--steps 2 3 4 5] [--out results] [-- further options of alula bench]

Every cycle drafts (--speculate always), so that each number of drafts shows what it costs and brings.
Writes OUT/bench.json and OUT/bench.html (the best number of drafts) and OUT/sweep.json (a line for each).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = "smollm2-135m"
KEPT = ("speedup", "break_even_tokens_per_cycle", "verify_over_plain_step", "mismatched_tokens", "looping_prompts")


def bench(steps: int, folder: Path, options: list[str]) -> dict[str, Any]:
    """One run; its document."""
    result, page = folder / f"{steps}.json", folder / f"{steps}.html"
    command = [sys.executable, "-m", "alula.cli.main", "bench", MODEL, "--steps", str(steps)]
    command += ["--speculate", "always"]
    subprocess.run([*command, "--json", str(result), "--html", str(page), *options], check=True)
    document: dict[str, Any] = json.loads(result.read_text())
    return document


def line(document: dict[str, Any]) -> dict[str, Any]:
    """What a table of the sweep needs."""
    return {
        "steps": document["steps"],
        "plain_tokens_per_s": document["plain"]["tokens_per_s"],
        "eagle3_tokens_per_s": document["eagle3"]["tokens_per_s"],
        "tokens_per_cycle": document["eagle3"]["tokens_per_cycle"],
        **{key: document[key] for key in KEPT},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    known, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]
    known.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = [bench(steps, folder, options) for steps in known.steps]
        best = max(documents, key=lambda document: document["speedup"])
        for ending in ("json", "html"):
            kept = (folder / f"{best['steps']}.{ending}").read_text()
            (known.out / f"bench.{ending}").write_text(kept)
    lines = [line(document) for document in documents]
    (known.out / "sweep.json").write_text(
        json.dumps({"schema": 1, "best": best["steps"], "runs": lines}, indent=2) + "\n"
    )
    for entry in lines:
        print(
            f"k={entry['steps']}: {entry['speedup']:.2f}x, {entry['tokens_per_cycle']:.2f} tokens per cycle, "
            f"break-even {entry['break_even_tokens_per_cycle']:.2f}"
        )


if __name__ == "__main__":
    main()
