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
BEGIN = "<!-- figures: written by scripts/readme_figures.py from benchmarks/results/ -->"
END = "<!-- end of figures -->"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))
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
{mismatched} differ from plain decoding's. Again: `make bench`, `make acceptance`."""


def gpu_table() -> str:
    document = load("gpu.json")
    sections = document["sections"]
    large, real = sections["llama-3.1-8b"], sections["real"]["twelve"]
    first = next(row for row in large["replays"] if row["batch"] == 1 and row["kv_tokens"] == 512)
    plain, verify = first["plain"], first["cycle"]["phases"]["verify"]
    served, start = large["served_kv512_batch1"], large["start_up"]
    graphs, compiled = start["graphs"], document["compiled_kernels_before"]
    best = next(row for row in real["rows"] if row["k"] == real["best_k"])
    differing = sections["real"]["exactness"]["mismatched_tokens"] + real["mismatched_tokens"]
    kept = 100 * sections["auto-small"]["tokens"]["auto_over_plain"]
    rows = [
        ("plain step", f"{plain['ms']:.3f} ms", f"{plain['over_floor']:.3f} times the floor"),
        ("plain PyTorch in a graph", f"{sections['pytorch']['graph_ms']:.3f} ms", "same run"),
        ("verify, 4 rows", f"{verify['ms']:.3f} ms", f"{first['verify_over_plain']:.3f} plain steps"),
        (
            "cycle, k = 3",
            f"{first['cycle']['ms']:.3f} ms",
            f"{first['cycle_over_plain']:.3f} plain steps; served: {served['cycle']['tokens_per_s']:.0f} tokens/s",
        ),
        (
            "from weights to ready",
            f"{start['seconds_after_weights']:.1f} s",
            f"{graphs['captured']} graphs, {graphs['memory_bytes'] / 2**20:.0f} MiB; {compiled} files in Triton's "
            "cache",
        ),
    ]
    torch_version = document["torch"].split("+")[0]
    plain_rate, best_rate = real["plain_tokens_per_s"], best["tokens_per_s"]
    rates = f"{plain_rate:.0f} tokens/s; with k = {best['k']} drafts {best_rate:.0f} tokens/s"
    lines = "\n".join(f"| {name} | {value} | {note} |" for name, value, note in rows)
    return f"""\
On one {document["hardware"]["device"]} (torch {torch_version}, Triton {document["triton"]}), bf16, every
phase a CUDA graph. Llama-3.1-8B's shape with random weights and a random head of the published shape, batch 1, KV 512,
acceptance forced to 2.8 tokens a cycle; the floor is bytes over 4.3 TB/s:

| | | |
|---|---|---|
{lines}

The real SmolLM2-135M with its head, twelve prompts ({best["looping"]} looping answers left out), greedy:
{real["plain_ms"]:.3f} ms a plain step,
{rates} (**{best["speedup"]:.2f}x**).
Over 64 prompts, greedy and seeded, alone and together, {differing} tokens differ from plain decoding's. A random head
under `--speculate auto` keeps {kept:.1f} % of plain tokens/s. Everything else: `benchmarks/results/gpu.json` and
[benchmarks/README.md](benchmarks/README.md)."""


def two_gpu_table() -> str:
    document = load("two_gpus.json")
    sections, figures = document["sections"], document["figures"]
    rows = [
        ("8B, NVLink", sections["8b"]["nvlink"]),
        ("8B, NVLink, NCCL alone", sections["8b"]["nvlink_by_nccl"]),
        ("8B, peer-to-peer off", sections["8b"]["pcie_like"]),
        ("70B, NVLink", sections["70b"]["nvlink"]),
        ("70B, peer-to-peer off", sections["70b"]["pcie_like"]),
    ]
    lines = "\n".join(
        f"| {name} | {one['plain_ms']:.3f} ms | {one['replays']['3']['phases_ms']['verify']:.3f} ms "
        f"({one['verify_3_rows_over_plain']:.3f}) | {one['replays']['3']['ms']:.3f} ms | "
        f"{one['replays']['4']['ms']:.3f} ms |"
        for name, one in rows
    )
    us = {
        (one["backend"], one["num_bytes"]): one["us"]
        for one in sections["collectives"]["nvlink"]["captured_us"]
        if one["op"] == "all_reduce"
    }
    chosen, nccl = us["peer_push", 14336], us["nccl", 14336]
    off = {
        (one["backend"], one["num_bytes"]): one["us"]
        for one in sections["collectives"]["pcie_like"]["captured_us"]
        if one["op"] == "all_reduce"
    }
    exact, fp32 = sections["exact"]["bf16_tokens"], sections["one_rank"]["fp32"]
    tokens = exact["greedy"]["tokens"] + exact["seeded"]["tokens"]
    wrong = exact["greedy"]["mismatched_tokens"] + exact["seeded"]["mismatched_tokens"]
    killed, stopped = (sections["faults"][name]["seconds_to_end"] for name in ("killed", "stopped"))
    return f"""\
Over two H200s (TP 2, random weights of Llama-3.1's shapes, batch 1, KV 512, graphs). With peer-to-peer off messages go
through the host's memory, as on a box of PCIe cards:

| | plain step | verify, 3 rows (of plain) | cycle, k = 2 | k = 3 |
|---|---|---|---|---|
{lines}

A sum of one row of 7168 bf16 takes {chosen:.1f} us in a graph by alula's own kernel,
{us["symmetric_one_shot", 14336]:.1f} by torch's one-shot, {nccl:.1f} by NCCL
({off["nccl", 14336]:.1f} with peer-to-peer off); at 1 to 4 rows the chosen one is at least
{figures["nccl_over_choice_1_to_4_rows"]:.2f} times as fast as NCCL. With peer-to-peer off,
{100 * figures["collective_share_of_verify_8b_pcie_like"]:.0f} % of the 8B verify step are collectives.
Of {tokens} tokens (bf16, greedy and seeded, batch 16) {wrong} differ with speculation; in fp32
{fp32["mismatched_tokens"]} of {fp32["tokens"]} differ from one rank's. A rank killed in the middle of replays ends
the run after {killed:.1f} s, one that is stopped after {stopped:.1f} s, each by its number.
All of it: `benchmarks/results/two_gpus.json`."""


def main() -> int:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n\n{gpu_table()}\n\n{two_gpu_table()}\n{END}{after}"
    if "--check" not in sys.argv:
        README.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        print(
            "README.md does not show the figures of the result files; run scripts/readme_figures.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
