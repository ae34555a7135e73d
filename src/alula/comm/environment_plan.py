"""The environment of each rank, decided before it starts and proven inside it. Starts no process itself.

A plan only says what we meant. The proof asks C's getenv, which is what OpenMP, gloo and NCCL ask, so it also sees a
value that a start-up file of Python, or a configuration file of a library, has changed after the process began.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption, RankFailure

# Multicast over NVLink is left off: it needs rights that shared machines do not give.
CUDA_VARIABLES = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
# Inherited variables of these families steer communication too: they are proven as they were when the rank started.
FAMILIES = ("GLOO_", "NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM", "OMP_", "MKL_")


class EnvironmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank's process is started with.

    base: inherited, of which `shared` (equal on all ranks) and `own` (one mapping a rank) replace a part.
    num_threads: compute threads of a rank.
    """

    device: str
    parallel: ParallelConfig
    num_threads: int
    base: dict[str, str]
    shared: dict[str, str]
    own: tuple[dict[str, str], ...]

    def for_rank(self, rank: int) -> dict[str, str]:
        """The whole environment of one rank."""
        return {**self.base, **self.shared, **self.own[rank]}

    def alike(self) -> dict[str, str]:
        """The part to prove that is equal on all ranks: planned variables, and inherited ones of the families."""
        inherited = {name: value for name, value in self.base.items() if name.startswith(FAMILIES)}
        alike = {**inherited, **self.shared}
        return {name: alike[name] for name in sorted(alike) if name not in self.own[0]}

    def __repr__(self) -> str:
        # Without `base`: it may hold access tokens, and plans end up in logs.
        return f"EnvironmentPlan(device={self.device!r}, shared={self.shared!r}, own={self.own!r})"


class EnvironmentProof(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank found in force of the part that all ranks share, and its hash."""

    rank: int
    found: dict[str, str]
    fingerprint: str


def plan_environment(
    parallel: ParallelConfig, device: str, base: Mapping[str, str], num_threads: int = 1
) -> EnvironmentPlan:
    """The plan for `parallel.tp` ranks of one host. `device`: "cpu" or "cuda". Pure.

    Raises InvalidOption for another device.
    """
    if device not in ("cpu", "cuda"):
        raise InvalidOption(f"--device is {device!r}; ranks run on 'cpu' or 'cuda'")
    # MKL and OpenMP each have their own variable, and an inherited one would hold against `--threads`.
    shared = {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
    size = str(parallel.tp)
    shared |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    if device == "cuda":
        shared |= CUDA_VARIABLES
    else:
        # Ranks of one host. Without it gloo resolves the host's name, which many containers cannot.
        shared["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    own = tuple({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(parallel.tp))
    return EnvironmentPlan(
        device=device, parallel=parallel, num_threads=num_threads, base=dict(base), shared=shared, own=own
    )


def prove_environment(plan: EnvironmentPlan, rank: int) -> EnvironmentProof:
    """Run inside the rank: compares C's getenv with the plan.

    Raises RankFailure that names rank, variable, planned and found value.
    """
    alike = plan.alike()
    found = {}
    for name, planned in {**alike, **plan.own[rank]}.items():
        value = _c_getenv(name)
        if value != planned:
            raise RankFailure(
                f"rank {rank} runs with {name} {_quoted(value)}, planned was {planned!r}; look for what sets it when "
                "Python or a library starts (sitecustomize, .pth files, /etc/nccl.conf)",
                rank=rank,
            )
        if name in alike:
            found[name] = value
    text = "\n".join(f"{name}={value}" for name, value in found.items())
    return EnvironmentProof(rank=rank, found=found, fingerprint=hashlib.sha256(os.fsencode(text)).hexdigest())


def compare_proofs(proofs: Sequence[EnvironmentProof]) -> None:
    """Raises RankFailure where a rank's fingerprint differs from rank 0's, with the variables at odds."""
    first = proofs[0]
    for proof in proofs[1:]:
        if proof.fingerprint == first.fingerprint:
            continue
        names = sorted(first.found.keys() | proof.found.keys())
        odds = [name for name in names if first.found.get(name) != proof.found.get(name)]
        text = "; ".join(
            f"{name} is {_quoted(proof.found.get(name))} in rank {proof.rank} and "
            f"{_quoted(first.found.get(name))} in rank {first.rank}"
            for name in odds
        )
        raise RankFailure(f"ranks run with different environments: {text}", rank=proof.rank)


def _quoted(value: str | None) -> str:
    return "unset" if value is None else repr(value)


def _c_getenv(name: str) -> str | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    getenv.argtypes = [ctypes.c_char_p]
    value = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)
