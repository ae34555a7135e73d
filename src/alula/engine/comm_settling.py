"""What the ranks of an engine will know of collectives before they start: from a stored profile, a trial, or nothing.

On CUDA backends are tried in processes of their own (engine/comm_trial.py). On a CPU nothing can hang without an end,
so the ranks probe and time for themselves as they join. A profile that holds the sizes of this run spares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from alula.comm.backends.builtin import backend_names, check_collectives
from alula.comm.environment_plan import EnvironmentPlan
from alula.comm.stored_profile import ProfileKey, load_profile, save_profile
from alula.comm.table import MeasuredTable
from alula.comm.tuning_plan import Message, TuningPlan
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption
from alula.core.records import Refusal
from alula.engine.comm_trial import try_backends
from alula.engine.device import device_name, driver_version, nccl_version

# They say what is logged, or what is installed, and change no time.
_SLOW_NOTHING = ("NCCL_DEBUG", "NCCL_VERSION")


def settle(
    plan: EnvironmentPlan, messages: Sequence[Message], dtype: str, say: Callable[[str], None]
) -> TuningPlan:
    """Raises InvalidOption for a profile of another machine, and for a backend that there is not."""
    parallel = plan.parallel
    check_collectives(parallel.collectives)
    left_out = leaving_out(parallel)
    path = profile_path(parallel)
    key = profile_key(plan, dtype)
    known = None if path is None else load_profile(path, key)
    if known is not None and covers(known, messages, backend_names()):
        say(f"collectives: times read from {path}")
        return TuningPlan(messages=tuple(messages), table=known, refused=(*known.refused, *left_out))
    if plan.device == "cpu":
        return TuningPlan(messages=tuple(messages), measure=True, refused=left_out)
    trial = try_backends(plan, messages, say)
    table = trial.table
    if table is not None and known is not None:
        table = known.merged(table)
    # A table in which backends are missing by choice would keep later runs from them.
    if path is not None and table is not None and not parallel.without:
        save_profile(path, key, table)
        say(f"collectives: times written to {path}")
    return TuningPlan(messages=tuple(messages), table=table, refused=trial.refused)


def leaving_out(parallel: ParallelConfig) -> tuple[Refusal, ...]:
    """What --without says, as refusals. Raises InvalidOption for a name that there is not."""
    known = backend_names()
    for name in parallel.without:
        if name not in known:
            raise InvalidOption(f"--without names {name!r}; expected some of {', '.join(known)}")
    return tuple(Refusal(backend=name, reason="left out by --without") for name in parallel.without)


def keep(plan: EnvironmentPlan, dtype: str, table: MeasuredTable | None) -> None:
    """Stores what ranks have measured for themselves, where a file is named and does not exist yet."""
    path = profile_path(plan.parallel)
    if path is not None and table is not None and not path.exists() and not plan.parallel.without:
        save_profile(path, profile_key(plan, dtype), table)


def profile_path(parallel: ParallelConfig) -> Path | None:
    """The file of --comm-profile, where one is named."""
    return None if parallel.comm_profile is None else Path(parallel.comm_profile)


def covers(table: MeasuredTable, messages: Sequence[Message], names: Sequence[str]) -> bool:
    """Whether every message lies at or between sizes at which backends of these names were measured."""
    own = msgspec.structs.replace(table, timings=tuple(t for t in table.timings if t.backend in names))
    for message in messages:
        sizes = own.sizes(message.op)
        if not sizes or not sizes[0] <= message.num_bytes <= sizes[-1]:
            return False
    return True


def profile_key(plan: EnvironmentPlan, dtype: str) -> ProfileKey:
    """What times of collectives depend on here."""
    cuda = plan.device == "cuda"
    device = torch.device(plan.device)
    return ProfileKey(
        processor=device_name(device) if cuda else device_name(device).split(",")[0],
        driver=driver_version() if cuda else "",
        nccl=nccl_version() if cuda else "",
        torch=str(torch.__version__),
        num_ranks=plan.parallel.tp,
        dtype=dtype,
        variables={
            name: value
            for name, value in sorted(plan.alike().items())
            if name.startswith("NCCL_") and not name.startswith(_SLOW_NOTHING)
        },
    )
