"""Times of collectives on this machine: inside a CUDA graph on a GPU, in a loop on a CPU; of the slowest rank.

A median of several runs, each begun together. Knows nothing of choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from alula.comm.backends.protocol import SUM_ONTO, Backend, admission
from alula.comm.call import CollectiveCall
from alula.comm.capture import is_capturable
from alula.comm.device_deadline import wait_for
from alula.comm.probe import Place, norm_of, residual_of, run_call
from alula.comm.table import MeasuredTable, Timing

_GRAPH_CALLS, _RUNS = 16, 7
_CPU_CALLS = 8


def time_backends(backends: Iterable[Backend], calls: Sequence[CollectiveCall], place: Place) -> MeasuredTable:
    """Every backend at every call that it takes. A collective; the table is the same on all ranks."""
    timings = [
        Timing(op=call.op, num_bytes=call.num_bytes, backend=backend.name, us=time_call(backend, call, place))
        for backend in backends
        for call in calls
        if admission(backend, call).admitted and (place.device == "cpu" or is_capturable(backend))
    ]
    return MeasuredTable(timings=tuple(sorted(timings)), captured=place.device == "cuda")


def time_call(backend: Backend, call: CollectiveCall, place: Place) -> float:
    """Microseconds of one call: of the slowest rank, the median of several runs."""
    measured = _time_graph(backend, call, place) if place.device == "cuda" else _time_loop(backend, call, place)
    by_rank = place.host.all_gather(torch.tensor([measured], dtype=torch.float64), 0).view(place.num_ranks, -1)
    return float(by_rank.max(0).values.median())


def timed_work(backend: Any, call: CollectiveCall, x: torch.Tensor) -> Callable[[], Any]:
    """The call with everything made that is not part of it."""
    if call.op != SUM_ONTO:
        return lambda: run_call(backend, call, x)
    onto, norm = residual_of(x), norm_of(x)
    return lambda: backend.sum_onto(x, onto, norm)


def _time_graph(backend: Backend, call: CollectiveCall, place: Place) -> list[float]:
    x = _zeros(call, place)
    work = timed_work(backend, call, x)
    work()
    place.settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_GRAPH_CALLS):
            work()
    times = []
    for _ in range(_RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _meet(place)
        graph.replay()  # the ranks' launches are some microseconds apart, which the first replay absorbs
        begin.record()
        graph.replay()
        end.record()
        wait_for(end, place.peers, "timing of collectives")
        times.append(begin.elapsed_time(end) * 1e3 / _GRAPH_CALLS)
    return times


def _time_loop(backend: Backend, call: CollectiveCall, place: Place) -> list[float]:
    x = _zeros(call, place)
    work = timed_work(backend, call, x)
    times = []
    for _ in range(_RUNS):
        _meet(place)
        work()
        begin = time.perf_counter()
        for _ in range(_CPU_CALLS):
            work()
        times.append((time.perf_counter() - begin) * 1e6 / _CPU_CALLS)
    return times


def _zeros(call: CollectiveCall, place: Place) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, call.dtype)
    return torch.zeros(
        call.num_rows, call.num_bytes // dtype.itemsize // call.num_rows, dtype=dtype, device=place.device
    )


def _meet(place: Place) -> None:
    place.host.all_gather(torch.zeros(1, dtype=torch.int64), 0)
