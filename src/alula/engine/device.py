"""The device of one engine: which one, how much memory it has, and a clock that can cut its timeline.

One of the few files that may name torch.cuda. Knows nothing of models.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import torch

from alula.core.errors import InvalidOption
from alula.core.records import PHASES


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """CUDA for "auto" where torch sees one, else the CPU. Raises InvalidOption for a device that is not there."""
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    if name == "cuda" and not available:
        raise InvalidOption(
            "--device cuda: torch sees no CUDA device here; use --device cpu or another torch build"
        )
    if name not in ("cpu", "cuda"):
        raise InvalidOption(f"--device is {name!r}; expected 'auto', 'cpu' or 'cuda'")
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """The marketing name of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return f"cpu: {line.split(':', 1)[1].strip()}, {torch.get_num_threads()} threads"
    except OSError:
        pass
    return f"cpu, {torch.get_num_threads()} threads"


def nccl_version() -> str:
    """Of the library that torch is linked with; empty without CUDA."""
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else ""


def driver_version() -> str:
    """The version of NVIDIA's kernel module; empty where it does not say."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.readline())
    except OSError:
        return ""
    return found.group() if found else ""


def free_memory_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: the device's free memory, or what the kernel calls available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2**32  # not Linux: assume 4 GiB


class PhaseClock:
    """Cuts one cycle into consecutive phases. On CUDA the cuts are events, resolved once at the end.

    settle: waits for the device, with the deadline of the ranks where there are several.
    """

    def __init__(self, device: torch.device, settle: Callable[[], None] = lambda: None) -> None:
        self._device = device
        self._settle = settle
        self._start_s = time.perf_counter()
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self.enter("other")

    def enter(self, phase: str) -> None:
        """Ends the phase under way and begins `phase`."""
        self._marks.append((phase, self._now()))

    def finish(self) -> tuple[float, dict[str, float]]:
        """(wall ms, ms by phase); what no phase covers is `other`, so that the phases add up to the wall time."""
        self._marks.append(("end", self._now()))
        if self._device.type == "cuda":
            self._settle()
            torch.cuda.synchronize(self._device)
        wall_ms = (time.perf_counter() - self._start_s) * 1e3
        phases = dict.fromkeys(PHASES, 0.0)
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            phases[phase] += _between_ms(begin, end)
        phases["other"] += max(0.0, wall_ms - sum(phases.values()))
        return wall_ms, phases

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between_ms(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return (end - begin) * 1e3
    assert isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return begin.elapsed_time(end)
