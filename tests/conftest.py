"""What every test shares: fixed seeds for hypothesis, Triton interpreted where there is no GPU, and GPU tests that say
when they did not run."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Derandomised: the same examples on every machine and run. No deadline: nothing is timed in this suite.
settings.register_profile(
    "alula", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("alula")

# A suite that a script starts in the background inherits an ignored SIGINT, and so would the commands under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


# Triton reads it where a kernel is defined, its own library's too: so before any test module is imported.
if not _has_gpu():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="not run: needs a CUDA GPU, and this machine has none"))
    if _in_processes(items[0].config if items else None):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


# Tests that start ranks: several processes each, with deadlines. All of them go to one process of the suite.
_RANKS = ("comm", "engine")


def _in_processes(config: pytest.Config | None) -> bool:
    return config is not None and hasattr(config, "workerinput")


def _group(item: pytest.Item) -> str:
    """Files stay whole, for their fixtures."""
    folder = item.path.parent.name
    return "ranks" if folder in _RANKS else str(item.path)
