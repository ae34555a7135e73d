"""Workers that ranks build in the tests of the communication layer: each command is a function's name and arguments."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from alula.comm.group import Group

Step = tuple[str, str, tuple[int, ...], int]  # op, dtype, shape, seed


class CollectiveWorker:
    def __init__(self, group: Group, device: str) -> None:
        self._group = group
        self._device = device

    def handle(self, command: tuple[Any, ...]) -> Any:
        name, *arguments = command
        return getattr(self, name)(*arguments)

    def steps(self, steps: list[Step]) -> list[torch.Tensor]:
        """Runs the operations in order; the first of them may thus meet slots that the one before still fills."""
        return [run_step(self._group, step, self._device) for step in steps]

    def agree(self, steps: list[Step]) -> list[bool]:
        return [self._group.bits_agree(run_step(self._group, step, self._device)) for step in steps]

    def disagree(self) -> tuple[bool, bool, bool]:
        """Different bits in one rank; equal bits under different shapes; zeros of different sign."""
        last = self._group.rank == self._group.size - 1
        values = torch.arange(4.0)
        return (
            self._group.bits_agree(values + last),
            self._group.bits_agree(values.view(2, 2) if last else values),
            self._group.bits_agree(torch.tensor(-0.0 if last else 0.0)),
        )

    def rapid(self, sizes: list[int], rounds: int) -> int:
        """Many small calls of changing size, each checked; returns how many were wrong."""
        wrong = 0
        for number in range(rounds):
            numel = sizes[number % len(sizes)]
            x = torch.full((numel,), float(number + self._group.rank))
            expected = number * self._group.size + sum(range(self._group.size))
            wrong += not bool((self._group.all_reduce(x, "verify") == expected).all())
            gathered = self._group.all_gather(torch.tensor([number * 10 + self._group.rank]), "draft")
            wrong += gathered.tolist() != [number * 10 + rank for rank in range(self._group.size)]
        return wrong

    def strided(self) -> list[torch.Tensor]:
        base = torch.arange(24.0).view(4, 6) + self._group.rank
        results = [
            self._group.all_reduce(base.clone().t(), "other"),
            self._group.all_gather(base.t(), "other", dim=0),
        ]
        column = base.clone()[:, 1]
        return [*results, self._group.broadcast(column, 1, "other")]

    def modes(self) -> float:
        """The same slots from inference mode, from no_grad and from neither."""
        total = 0.0
        for mode in (torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
            with mode:
                total += float(self._group.all_reduce(torch.ones(7), "other").sum())
        return total

    def rules(self) -> Any:
        return self._group.rules

    def expected(self, step: Step) -> torch.Tensor:
        """The sum of every rank's input, in float64 and rounded once."""
        inputs = [step_input(step, rank) for rank in range(self._group.size)]
        return torch.stack(inputs).to(torch.float64).sum(0).to(inputs[0].dtype)

    def records(self) -> Any:
        return self._group.dispatch_records()

    def different_calls(self) -> None:
        self._group.all_reduce(torch.ones(4 + self._group.rank), "verify")

    def unknown_dtype(self) -> float:
        return float(self._group.all_reduce(torch.full((4,), 2, dtype=torch.complex64), "verify")[3].real)

    def sum_of_bool(self) -> None:
        self._group.all_reduce(torch.ones(4, dtype=torch.bool), "verify")

    def captured(self, num_replays: int) -> float:
        """Sums one value over the ranks again and again, by replays of a graph."""
        x = torch.ones(3, device="cuda")
        self._group.all_reduce(x.clone(), "verify")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            x.copy_(self._group.all_reduce(x, "verify"))
        x.fill_(1.0)
        for _ in range(num_replays):
            graph.replay()
        torch.cuda.synchronize()
        return float(x[0])

    def timing_us(self, num_bytes: int, num_calls: int) -> tuple[float, float]:
        """Microseconds of one all-reduce: (least, median) over batches of calls."""
        x = torch.zeros(num_bytes // 4)
        batches = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(num_calls):
                self._group.all_reduce(x, "verify")
            batches.append((time.perf_counter() - start) / num_calls * 1e6)
        return min(batches), statistics.median(batches)


def step_input(step: Step, rank: int) -> torch.Tensor:
    _, dtype, shape, seed = step
    generator = torch.Generator().manual_seed(seed * 64 + rank)
    values = torch.randn(shape, generator=generator) * 8
    return values.to(getattr(torch, dtype))


def run_step(group: Group, step: Step, device: str) -> torch.Tensor:
    op, x = step[0], step_input(step, group.rank).to(device)
    if op == "all_reduce":
        return group.all_reduce(x, "verify")
    if op == "all_gather":
        return group.all_gather(x, "draft")
    return group.broadcast(x, root=step[3] % group.size, phase="other")


def build(payload: str | None, group: Group) -> CollectiveWorker:
    return CollectiveWorker(group, payload or "cpu")
