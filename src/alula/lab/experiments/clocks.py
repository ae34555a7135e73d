"""Clocks, power and throttle reasons of every GPU while it works, read by the reader of nvidia-smi's output."""

from __future__ import annotations

import shutil
import subprocess
import threading
from functools import partial

from alula.explain.readers.gpu_state import GpuState
from alula.explain.sink import Sink
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.isolated import memory_bytes_per_s
from alula.lab.laboratory import Laboratory

_COMMAND = "nvidia-smi"
_FIELDS = (
    "index",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_event_reasons.hw_slowdown",
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.hw_power_brake_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown",
    "clocks_event_reasons.sw_power_cap",
)
_TIMEOUT_S = 10.0
_BUSY_BYTES, _BUSY_ROUNDS = 512 << 20, 2000


class Clocks(Experiment):
    name = "clocks"
    least_s = 3.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if not laboratory.on_gpu:
            return "there is no GPU"
        return None if shutil.which(_COMMAND) else f"{_COMMAND} is not installed"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        """Asks twice while every rank's GPU copies memory."""
        texts: list[str] = []
        asking = threading.Thread(target=_ask, args=(texts, 2), daemon=True)
        asking.start()
        while asking.is_alive() and share.left_s > 0:
            laboratory.llm.experiment(partial(memory_bytes_per_s, num_bytes=_BUSY_BYTES, rounds=_BUSY_ROUNDS))
        asking.join(_TIMEOUT_S)
        for moment, text in enumerate(texts, 1):
            sink = Sink(f"experiment {self.name}: nvidia-smi while busy, {moment}")
            reader = GpuState()
            for number, line in enumerate(text.splitlines(), 1):
                reader.line(number, line, sink)
            laboratory.keep(sink)


def _ask(texts: list[str], times: int) -> None:
    for _ in range(times):
        command = [_COMMAND, f"--query-gpu={','.join(_FIELDS)}", "--format=csv"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return
        if done.returncode == 0:
            texts.append(done.stdout)
