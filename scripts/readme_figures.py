"""Writes the figures of README.md from the result files, or checks that they are those of the files.

python scripts/readme_figures.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- figures: written by scripts/readme_figures.py from results/ -->"
END = "<!-- end of figures -->"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    return document


def table() -> str:
    bench, versus, acceptance = load("bench.json"), load("against_transformers.json"), load("acceptance.json")
    plain, eagle3 = bench["plain"], bench["eagle3"]
    phases = eagle3["phases_ms"]
    sections = acceptance["sections"]
    mismatched = sum(row["mismatched_tokens"] for row in sections["lossless_fp32"]["rows"])
    tokens = sum(row["tokens"] for row in sections["lossless_fp32"]["rows"])
    return f"""\
SmolLM2-135M-Instruct, bf16, greedy, batch 1, {bench["prompts"]} MT-bench first turns, answers of at most
{bench["max_tokens"]} tokens ({bench["looping_prompts"]} looping ones left out), on {bench["facts"]["processor"]}:

| | plain | EAGLE-3, k = {bench["steps"]} |
|---|---|---|
| tokens/s | {plain["tokens_per_s"]:.1f} | {eagle3["tokens_per_s"]:.1f} (**{bench["speedup"]:.2f}x**) |
| ms a step or cycle | {plain["step_ms"]:.2f} | {eagle3["cycle_ms"]:.2f} |
| tokens per cycle | 1 | {eagle3["tokens_per_cycle"]:.2f}, break-even at {bench["break_even_tokens_per_cycle"]:.2f} |
| of which draft, verify, extend | | {phases["draft"]:.2f}, {phases["verify"]:.2f}, {phases["extend"]:.2f} ms |

Plain decoding is {versus["ratio"]:.2f} times as fast as transformers {versus["transformers"]} on the same weights and
prompts in one run. Of {tokens} tokens in fp32 (24 prompts, built-in, random and adversarial head, greedy and sampled)
{mismatched} differ from plain decoding's. Result files: `results/`; again: `make bench`, `make acceptance`."""


def main() -> int:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" not in sys.argv:
        README.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        print("README.md does not show the figures of results/; run scripts/readme_figures.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
