"""Kineto-like traces made from a few numbers: cycles of phases, graph launches, collectives, several ranks."""

from __future__ import annotations

import json
from typing import Any

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ONE_SHOT = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, int, int)"
GEMM = "nvjet_tst_64x8_64x16_1x4_h_bz_TNT"


class TraceMaker:
    """Events of one rank; `now` is the device's clock in microseconds."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.events: list[dict[str, Any]] = []
        self.now = 1000.0
        self._correlation = 0

    def forward(
        self,
        span: str | None,
        *,
        num_kernels: int,
        kernel_us: float,
        gap_us: float = 0.5,
        launch_us: float | None = 2000.0,
        collective: str | None = None,
        collective_us: float = 20.0,
        num_collectives: int = 0,
        message_elements: int = 0,
    ) -> None:
        """One forward: `num_kernels` kernels, `num_collectives` of them collectives. launch_us None: eagerly."""
        start = self.now
        self._correlation += 1
        graph = self._correlation
        if launch_us is not None:
            self._event("cuda_runtime", "cudaGraphLaunch", start - launch_us, launch_us, {"correlation": graph})
        for index in range(num_kernels):
            if launch_us is None:
                self._correlation += 1
                self._event(
                    "cuda_runtime", "cudaLaunchKernel", self.now - 10, 5, {"correlation": self._correlation}
                )
            is_collective = index < num_collectives
            duration = collective_us if is_collective else kernel_us
            arguments: dict[str, Any] = {"device": self.rank, "stream": 7, "correlation": self._correlation}
            if launch_us is not None:
                arguments |= {"correlation": graph, "graph node id": 100 + index}
            if is_collective and message_elements:
                arguments |= {
                    "In msg nelems": message_elements,
                    "dtype": "BFloat16",
                    "Collective name": "allreduce",
                }
            self._event("kernel", str(collective) if is_collective else GEMM, self.now, duration, arguments)
            self.now += duration + gap_us
        if span is not None:
            self._event("gpu_user_annotation", span, start, self.now - start, {})
            self._event("user_annotation", span, start - 100.0, 90.0, {})

    def idle(self, microseconds: float) -> None:
        self.now += microseconds

    def _event(self, category: str, name: str, start: float, duration: float, arguments: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration}
        self.events.append({**event, "args": arguments})

    def text(self, indent: int | None = 2) -> str:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
                *self.events,
            ],
            "traceName": "trace.json",
        }
        return json.dumps(document, indent=indent)


def sglang_cycles(num_cycles: int = 12, rank: int = 0, world: int = 1, wait_us: float = 0.0) -> TraceMaker:
    """Verify graphs of 200 kernels (10 all-reduces), one draft graph of 20, one extend of 10, 400 us of host."""
    trace = TraceMaker(rank, world)
    for _ in range(num_cycles):
        trace.forward(
            "step[TARGET_VERIFY bs=1]",
            num_kernels=200,
            kernel_us=50.0,
            collective=NCCL,
            collective_us=20.0 + wait_us,
            num_collectives=10,
            message_elements=21504,
        )
        trace.forward("draft_extend", num_kernels=10, kernel_us=20.0, launch_us=None)
        trace.forward("draft", num_kernels=20, kernel_us=30.0, launch_us=100.0)
        trace.idle(400.0)
    return trace
