"""CUDA graphs of one engine: captured by key, replayed, or a reason why a phase ran eagerly (DESIGN 4.2).

A phase is a function without arguments over tensors that never move. Its results are the tensors it returned while it
was captured: a replay writes into them again. Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from alula.comm.dispatch import Recording, unrecorded
from alula.core.config import GraphConfig
from alula.core.errors import RankFailure
from alula.core.records import PhaseOutcome
from alula.engine.memory import CYCLE, in_short, out_of_memory

T = TypeVar("T")
ELSEWHERE = "another rank could not capture it"
REPLAYED = PhaseOutcome(replayed=True)
NO_CUDA, DISABLED, BY_OPTION, OVER_CAPTURED = (
    "device_has_no_graphs",
    "capture_disabled",
    "eager_by_option",
    "batch_over_captured",
)


@dataclass(frozen=True, order=True)
class GraphKey:
    """What distinguishes captures of a phase: batch bucket, width (or drafts), and which sampling it contains."""

    phase: str
    batch: int
    width: int
    variant: str = ""


@dataclass(frozen=True)
class _Captured:
    graph: Any
    result: Any
    recording: Recording


class GraphRunner:
    """Captures at first use or ahead of it, all graphs in one memory pool; replays in the order of the stream.

    agree: whether a capture that worked here worked on every rank: a collective may run otherwise inside a graph than
    outside, so either all ranks replay or none. Called after each capture. settle: waits for the device, with the
    ranks' deadline. recording: around a capture, (phase, name of the graph) -> what is told of its replays.
    """

    def __init__(
        self,
        config: GraphConfig,
        device: torch.device,
        agree: Callable[[bool], bool] = lambda worked: worked,
        settle: Callable[[], None] = lambda: None,
        recording: Callable[[str, str], AbstractContextManager[Recording]] = unrecorded,
    ) -> None:
        self._config = config
        self._device = device
        self._agree = agree
        self._settle = settle
        self._recording = recording
        self._captured: dict[GraphKey, _Captured] = {}
        self._refused: dict[GraphKey, str] = {}
        self._pool: Any = None
        self.memory_bytes = 0

    @property
    def num_captured(self) -> int:
        return len(self._captured)

    @property
    def failures(self) -> dict[str, str]:
        """Captures that failed, as facts: what was to be captured -> the error."""
        return {
            f"{k.phase} batch {k.batch} width {k.width}{f' ({k.variant})' if k.variant else ''}": why
            for k, why in sorted(self._refused.items())
        }

    def refusal(self, phase: str) -> str | None:
        """Why no graph of a phase is ever made here; None where it may be."""
        if self._device.type != "cuda":
            return NO_CUDA
        if not self._config.enabled:
            return DISABLED
        return BY_OPTION if phase in self._config.eager else None

    def run(
        self,
        key: GraphKey,
        work: Callable[[], T],
        over: bool = False,
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> tuple[T, PhaseOutcome]:
        """The work's result and how it ran. over: the batch is larger than the largest that is captured. quiet: within
        it the work may run once more than it should without leaving a trace; for a capture at first use."""
        reason = self.refusal(key.phase) or (OVER_CAPTURED if over else None)
        if reason is None:
            captured = self._captured.get(key)
            if captured is None:
                with quiet():
                    captured = self._capture(key, work)
            if captured is not None:
                captured.recording.replayed()
                captured.graph.replay()
                return captured.result, REPLAYED
            reason = f"capture_failed: {self._refused[key]}"
        return work(), PhaseOutcome(replayed=False, reason=reason)

    def prepare(self, key: GraphKey, work: Callable[[], Any]) -> None:
        """Captures ahead of use, where this phase may be captured."""
        if self.refusal(key.phase) is None and key not in self._captured:
            self._capture(key, work)

    def _capture(self, key: GraphKey, work: Callable[[], Any]) -> _Captured | None:
        if key in self._refused:
            return None
        stream = torch.cuda.current_stream(self._device)
        captured, why = None, ELSEWHERE
        try:
            captured = self._try(key, work)
        except RankFailure:  # the ranks are out of step, so there is nothing to go on with
            raise
        except Exception as error:  # noqa: BLE001  # whatever refuses to be captured runs eagerly, and says why
            # A capture that fails at its end leaves its own stream current, and its pool as if still recorded to.
            torch.cuda.set_stream(stream)
            self._pool = None
            self._settle()
            torch.cuda.synchronize(self._device)
            why = _why(error)
        if not self._agree(captured is not None) or captured is None:
            self._refused[key] = why
            return None
        self._captured[key] = captured
        return captured

    def _try(self, key: GraphKey, work: Callable[[], Any]) -> _Captured:
        """Runs once eagerly, so that every kernel is compiled and loaded and library handles exist, then captures."""
        work()
        self._settle()
        torch.cuda.synchronize(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()  # as a capture does: what it frees of others is not to count against this one
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        name = f"the graph of {key.phase}, batch {key.batch}, width {key.width}"
        with self._recording(key.phase, name) as recording, torch.cuda.graph(graph, pool=self._pool):
            result = work()
        self.memory_bytes += torch.cuda.memory_reserved(self._device) - before
        return _Captured(graph, result, recording)


def _why(error: Exception) -> str:
    """The reason that a record keeps, with the setting to change where memory is short."""
    refused = out_of_memory(error)
    return in_short(error) if refused is None else f"out of memory ({in_short(refused)}): {CYCLE}"
