"""Sums between CPU ranks: the shared-memory backend beside gloo, in one run, and whether all ranks hold the same bits.

    PYTHONPATH=src python benchmarks/collectives_cpu.py [--json FILE]

"gloo" is torch.distributed's own all_reduce; "torch_distributed" is alula's last resort over it, which gathers and adds
in rank order. Microseconds of one bf16 call, of the slowest rank; the median of 41 runs of 20 calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed

from alula.comm.environment_plan import plan_environment
from alula.comm.group import Group
from alula.comm.probe import Place, probe
from alula.comm.tuning_plan import Message, TuningPlan
from alula.core.config import ParallelConfig
from alula.engine.ranks import RankPool

SIZES = (14_336, 57_344)
RUNS, CALLS = 41, 20


# Commands: {way: {bytes: us}} of each rank; {backend: why its sums are wrong or differ, or None}. Texts, since a rank
# does not know this file under the name that it has where it was started.
TIMES, BITS = "times", "bits"


class Worker:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._backends = {backend.name: backend for backend in group.backends}

    def handle(self, command: Any) -> Any:
        return self._times() if command == TIMES else self._bits()

    def _times(self) -> dict[str, dict[int, float]]:
        last = self._backends["torch_distributed"]
        last.start()  # type: ignore[attr-defined]  # connects gloo, which the plain call uses too
        ways = {
            "shared_memory": self._backends["shared_memory"].all_reduce,
            "torch_distributed": last.all_reduce,
            "gloo": distributed.all_reduce,
        }
        return {name: {size: self._time(way, size) for size in SIZES} for name, way in ways.items()}

    def _time(self, way: Any, size: int) -> float:
        x = torch.zeros(1, size // 2, dtype=torch.bfloat16)
        times = []
        for _ in range(RUNS):
            self._group.all_gather(torch.zeros(1, dtype=torch.int64), "other")
            way(x)
            begin = time.perf_counter()
            for _ in range(CALLS):
                way(x)
            times.append((time.perf_counter() - begin) * 1e6 / CALLS)
        return statistics.median(times)

    def _bits(self) -> dict[str, str | None]:
        group = self._group
        place = Place(rank=group.rank, num_ranks=group.size, device="cpu", host=self._backends["shared_memory"])
        messages = [Message(op="all_reduce", num_bytes=size, dtype="bfloat16") for size in SIZES]
        calls = [message.call(group.size, "cpu") for message in messages]
        return {name: probe(backend, calls, place) for name, backend in self._backends.items()}


def build(payload: None, group: Group) -> Worker:
    """Entry point of a rank process."""
    return Worker(group)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    document: dict[str, Any] = {"torch": str(torch.__version__), "cores": os.cpu_count(), "ranks": {}}
    for size in (2, 3, 4):
        plan = plan_environment(ParallelConfig(tp=size), "cpu", os.environ)
        with RankPool("collectives_cpu:build", size, None, plan, 60.0, TuningPlan(trial=True)) as pool:
            by_rank = pool.call_all(TIMES)
            wrong = pool.call(BITS)
        slowest = {way: {n: max(one[way][n] for one in by_rank) for n in SIZES} for way in by_rank[0]}
        document["ranks"][size] = {"us": slowest, "wrong": wrong}
        for n in SIZES:
            told = ", ".join(f"{way} {slowest[way][n]:.1f}" for way in slowest)
            ratio = slowest["gloo"][n] / slowest["shared_memory"][n]
            print(
                f"{size} ranks, {n} bytes: {told} us; gloo / shared memory {ratio:.1f}; wrong: {wrong}", flush=True
            )
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
