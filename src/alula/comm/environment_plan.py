"""The environment of each rank, decided before it starts: inherited variables, defaults, and `--nccl` above them.

A plan only says what we meant; comm/environment_proof.py asks each rank. Pure: comm/host_plan.py looks at the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from alula.comm.environment_defaults import OWN, Default, default_variables, log_variables, rank_variables
from alula.comm.nccl_variables import PREFIX, expected_value, is_known, nearest_known
from alula.comm.topology import Topology
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption
from alula.core.records import EnvironmentFinding

# Inherited variables of these families steer communication too: they are proven as they were when the rank started.
FAMILIES = ("GLOO_", "NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM", "TORCH_SYMMMEM", "OMP_", "MKL_")
INHERITED, ASKED = "inherited", "--nccl"


class Origin(msgspec.Struct, frozen=True):
    """A value of a variable and who gave it: "inherited", "default: " with its reason, or "--nccl"."""

    value: str
    source: str


class EnvironmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank's process is started with.

    base: inherited, of which `shared` (equal on all ranks) and `own` (one mapping a rank) replace a part.
    num_threads: compute threads of a rank. origins: for each planned variable who gave it, the strongest first.
    warnings: inherited variables that look misspelt. log_folder: where NCCL's own log goes, if anywhere.
    """

    device: str
    parallel: ParallelConfig
    num_threads: int
    base: dict[str, str]
    shared: dict[str, str]
    own: tuple[dict[str, str], ...]
    origins: dict[str, tuple[Origin, ...]] = {}
    warnings: tuple[EnvironmentFinding, ...] = ()
    log_folder: str | None = None

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


def plan_environment(
    parallel: ParallelConfig,
    device: str,
    base: Mapping[str, str],
    num_threads: int = 1,
    *,
    topology: Topology | None = None,
    log_folder: str | None = None,
) -> EnvironmentPlan:
    """The plan for `parallel.tp` ranks of one host. `device`: "cpu" or "cuda". Pure.

    Raises InvalidOption for another device and, with `--comm-proof strict`, for a variable of `--nccl` that NCCL does
    not have and for a value that it would not take.
    """
    if device not in ("cpu", "cuda"):
        raise InvalidOption(f"--device is {device!r}; ranks run on 'cpu' or 'cuda'")
    own = rank_variables(parallel, device)
    if both := sorted(own[0].keys() & parallel.nccl.keys()):
        raise InvalidOption(f"--nccl gives {both[0]}, and --share-gpus each rank one of its own; drop one of them")
    warnings = tuple(_suspicions(parallel, device, base))
    defaults = default_variables(parallel, device, num_threads, topology)
    if log_folder is not None:
        defaults += log_variables(log_folder)
    origins = _origins(parallel.nccl, defaults, base)
    origins |= {name: (Origin(value, OWN),) for name, value in own[0].items()}
    strongest = {name: ranked[0] for name, ranked in origins.items() if name not in own[0]}
    shared = {name: origin.value for name, origin in strongest.items() if origin.source != INHERITED}
    return EnvironmentPlan(
        device=device,
        parallel=parallel,
        num_threads=num_threads,
        base=dict(base),
        shared=shared,
        own=own,
        origins=origins,
        warnings=warnings,
        log_folder=log_folder,
    )


def _origins(
    asked: Mapping[str, str], defaults: tuple[Default, ...], base: Mapping[str, str]
) -> dict[str, tuple[Origin, ...]]:
    """Everybody who gives a value, by variable, the strongest first."""
    held = {default.name: default for default in defaults if default.holds}
    advice = {default.name: default for default in defaults if not default.holds}
    inherited = [name for name in base if name.startswith(FAMILIES)]
    found: dict[str, tuple[Origin, ...]] = {}
    for name in [*held, *advice, *inherited, *asked]:
        ranked = [Origin(asked[name], ASKED)] if name in asked else []
        ranked += [Origin(held[name].value, f"default: {held[name].reason}")] if name in held else []
        ranked += [Origin(base[name], INHERITED)] if name in base else []
        ranked += [Origin(advice[name].value, f"default: {advice[name].reason}")] if name in advice else []
        found[name] = tuple(ranked)
    return found


def _suspicions(parallel: ParallelConfig, device: str, base: Mapping[str, str]) -> Iterator[EnvironmentFinding]:
    """What looks misspelt. Raises InvalidOption where `--comm-proof strict` is not to let it through.

    An inherited name only warns: plug-ins of NCCL have variables too, and we know NCCL's alone.
    """
    if parallel.comm_proof == "off":
        return
    strict = parallel.comm_proof == "strict"
    inherited = {name: value for name, value in base.items() if name.startswith(PREFIX)}
    for source, variables in ((ASKED, parallel.nccl), (INHERITED, inherited)):
        for name, value in variables.items():
            likely = None if is_known(name) else nearest_known(name)
            expected = expected_value(name, value)
            if not is_known(name) and (likely or source == ASKED):
                cause = f"NCCL has no variable {name}" + (f"; did you mean {likely}?" if likely else "")
                refused = strict and source == ASKED
            elif expected is not None:
                cause = f"{name} is {value!r} ({source}); expected {expected}"
                refused = strict and (source == ASKED or device == "cuda")
            else:
                continue
            if refused:
                raise InvalidOption(f"{cause}; correct it, or let it through with --comm-proof warn")
            yield EnvironmentFinding(
                step="names and values", verdict="warning", variable=name, planned=value, found=value, cause=cause
            )
