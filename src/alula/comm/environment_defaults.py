"""What a rank's environment should be unless somebody says otherwise, each variable with its reason. Pure.

Two strengths: a default that `holds` replaces an inherited value too (shared machines, threads), advice gives way to
it. `--nccl` is stronger than both.
"""

from __future__ import annotations

import sys

import msgspec

from alula.comm.topology import NVLINK_NONE, Topology
from alula.core.config import ParallelConfig

OWN = "default: each rank has its own"
_MULTICAST = "multicast over NVLink needs rights that shared machines do not give"


class Default(msgspec.Struct, frozen=True, kw_only=True):
    """One variable, equal on all ranks. holds: replaces an inherited value."""

    name: str
    value: str
    reason: str
    holds: bool = True


def default_variables(
    parallel: ParallelConfig, device: str, num_threads: int, topology: Topology | None
) -> tuple[Default, ...]:
    """For `parallel.tp` ranks of one host. topology: None where nobody looked."""
    # MKL and OpenMP each have their own variable, and an inherited one would hold against `--threads`.
    threads, size = "compute threads of a rank", "number of ranks"
    # Gloo joins GPU ranks too, where only a store is needed.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    one_host = "ranks of one host; otherwise gloo resolves the host's name, which many containers cannot"
    common = (
        Default(name="OMP_NUM_THREADS", value=str(num_threads), reason=threads),
        Default(name="MKL_NUM_THREADS", value=str(num_threads), reason=threads),
        Default(name="WORLD_SIZE", value=str(parallel.tp), reason=size),
        Default(name="LOCAL_WORLD_SIZE", value=str(parallel.tp), reason=size),
        Default(name="GLOO_SOCKET_IFNAME", value=loopback, reason=one_host),
    )
    return (*common, *_multicast(parallel), *_one_host(parallel, topology)) if device == "cuda" else common


def rank_variables(parallel: ParallelConfig, device: str) -> tuple[dict[str, str], ...]:
    """What differs between ranks, by rank."""
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(parallel.tp)]
    if device == "cuda" and parallel.share_gpus:
        for rank, variables in enumerate(own):
            # NCCL refuses a GPU that two ranks of one host use, so each rank claims a host of its own.
            variables["NCCL_HOSTID"] = f"alula-rank-{rank}"
    return tuple(own)


def log_variables(folder: str) -> tuple[Default, ...]:
    """What makes NCCL write down, in a file for each process in `folder`, what it read and what it built."""
    reason = "NCCL's own words are part of the proof (--comm-proof)"
    values = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",
    }
    return tuple(Default(name=name, value=value, reason=reason) for name, value in values.items())


def _multicast(parallel: ParallelConfig) -> tuple[Default, ...]:
    if parallel.nccl.get("NCCL_NVLS_ENABLE", "0") != "0":
        return ()  # the user asked for it
    return (
        Default(name="NCCL_NVLS_ENABLE", value="0", reason=_MULTICAST),
        Default(name="NVSHMEM_DISABLE_NVLS", value="1", reason=_MULTICAST),
        Default(name="TORCH_SYMM_MEM_DISABLE_MULTICAST", value="1", reason=_MULTICAST),
    )


def _one_host(parallel: ParallelConfig, topology: Topology | None) -> tuple[Default, ...]:
    found = [
        Default(name="NCCL_IB_DISABLE", value="1", reason="one host: looking for a fabric costs time", holds=False)
    ]
    if parallel.share_gpus:
        name = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
        found.append(Default(name=name, value="1", reason="ranks share GPUs (--share-gpus)"))
    elif topology is not None and _needs_path_level(topology):
        # Up to NCCL 2.30 AMD's host bridges are taken for slow, and pairs across them go through host memory; only
        # for two GPUs does NCCL itself allow any distance there.
        reason = f"{topology.num_gpus} GPUs on PCIe under an AMD CPU, all with peer access: use it at any distance"
        found.append(Default(name="NCCL_P2P_LEVEL", value="SYS", reason=reason, holds=False))
    return tuple(found)


def _needs_path_level(topology: Topology) -> bool:
    return (
        topology.num_gpus > 2
        and topology.cpu_vendor == "amd"
        and topology.nvlink == NVLINK_NONE
        and topology.peer_access is True
    )
