"""The environment plan for this host: looks at its topology, and makes the folder that NCCL's own log goes to."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

from alula.comm.environment_plan import EnvironmentPlan, plan_environment
from alula.comm.topology import detect_topology
from alula.core.config import ParallelConfig


def plan_for_host(parallel: ParallelConfig, device: str, base: Mapping[str, str]) -> EnvironmentPlan:
    """`plan_environment` with what this machine says. Raises as that does.

    The plan's log_folder, where it has one, is private to this user; the pool that runs the plan removes it.
    """
    topology = detect_topology() if device == "cuda" else None
    # Once without the folder: a plan that is refused must leave nothing behind.
    plan = plan_environment(parallel, device, base, topology=topology)
    if not wants_log(parallel, device, base):
        return plan
    folder = tempfile.mkdtemp(prefix="alula-nccl-")
    return plan_environment(parallel, device, base, topology=topology, log_folder=folder)


def wants_log(parallel: ParallelConfig, device: str, base: Mapping[str, str]) -> bool:
    """Whether NCCL is to write its log for the proof: not where the user has said what NCCL is to log."""
    decided = any(name.startswith("NCCL_DEBUG") for name in (*base, *parallel.nccl))
    return device == "cuda" and parallel.comm_proof != "off" and not decided
