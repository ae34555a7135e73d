"""The bandwidth of the device's memory, measured here and now, and the floors of each phase that follow from it."""

from __future__ import annotations

from functools import partial

from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.isolated import memory_bytes_per_s
from alula.lab.laboratory import Laboratory
from alula.profile.quantities import Quantity
from alula.profile.roofline import floors

CPU_BYTES, GPU_BYTES = 256 << 20, 512 << 20  # beyond every cache; little beside a KV cache that fills a GPU
ROUNDS = 9


class Ceilings(Experiment):
    name = "memory_bandwidth"
    least_s = 0.5

    def run(self, laboratory: Laboratory, share: Share) -> None:
        num_bytes = GPU_BYTES if laboratory.on_gpu else CPU_BYTES
        work = partial(memory_bytes_per_s, num_bytes=num_bytes, rounds=ROUNDS)
        by_rank: list[float] = laboratory.llm.experiment(work)
        # Ranks of a CPU share one memory, which they read at the same time; each GPU has its own.
        rate = sum(by_rank) / len(by_rank)
        laboratory.add(self.name, Quantity.MEMORY_BYTES_PER_S, rate)
        sizes = laboratory.sizes
        cycles = laboratory.drafted_cycles or laboratory.plain_cycles
        if sizes is None or not cycles:
            return
        kv_tokens = round(sum(request.kv_tokens for one in cycles for request in one.requests) / len(cycles))
        for floor in floors(
            sizes.target,
            sizes.head,
            steps=laboratory.steps,
            kv_tokens=kv_tokens,
            memory_bytes_per_s=rate,
            source=f"experiment {self.name}",
            tp=laboratory.described.tp,
            dtype=laboratory.described.dtype,
        ):
            assert isinstance(floor.value, float)
            laboratory.add(self.name, Quantity.FLOOR_MS, floor.value, phase=floor.scope.phase)
