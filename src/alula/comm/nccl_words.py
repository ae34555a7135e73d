"""This process's own log of NCCL, held against what was planned for it. Knows nothing of how the log came about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from alula.comm.communicator_guard import set_for_one
from alula.comm.nccl_log import INVALID, NcclLog, Setting, parse_nccl_log
from alula.comm.nccl_variables import PATH_LEVELS
from alula.core.records import EnvironmentFinding

SPOKEN = "NCCL's own words"
# Read before there is a log to name them in.
_NEVER_NAMED = ("NCCL_DEBUG", "NCCL_CONF_FILE", "NCCL_VERSION")
# NCCL prints the name of a level that was given as a number.
_LEVEL_OF_NUMBER = ("LOC", "PIX", "PXB", "PHB")


def read_log(folder: str | None) -> NcclLog | None:
    """What NCCL has written in this process so far; None where it has written nothing or there is no folder."""
    if folder is None:
        return None
    pid = os.getpid()
    texts = [path.read_text("utf-8", errors="replace") for path in sorted(Path(folder).glob(f"nccl.*.{pid}.log"))]
    return parse_nccl_log("\n".join(texts), pid) if texts else None


def spoken_findings(log: NcclLog, planned: Mapping[str, str]) -> tuple[EnvironmentFinding, ...]:
    """Each variable that NCCL took otherwise than planned, or from elsewhere than the environment."""
    return tuple(
        EnvironmentFinding(
            step=SPOKEN,
            verdict="mismatch",
            variable=setting.name,
            planned=planned.get(setting.name),
            found=setting.value,
            cause=f"NCCL says that {setting.source} set it",
        )
        for setting in log.settings
        if not _as_planned(setting, planned.get(setting.name)) and not set_for_one(setting.name, setting.value)
    )


def unspoken(log: NcclLog, planned: Mapping[str, str]) -> tuple[str, ...]:
    """The planned variables that NCCL has not named, less those that it never does."""
    named = {setting.name for setting in log.settings}
    return tuple(name for name in planned if name not in named and not name.startswith(_NEVER_NAMED))


def _as_planned(setting: Setting, planned: str | None) -> bool:
    if planned is None or setting.source == INVALID or not setting.source.startswith("environment"):
        return False
    return _normal(setting.name, setting.value) == _normal(setting.name, planned)


def _normal(name: str, value: str) -> str:
    """One spelling for values that NCCL takes as the same: numbers of any base, levels by number or name."""
    if name.endswith("_LEVEL"):
        if value in PATH_LEVELS or not value.isdecimal():
            return value
        number = int(value[:6])
        return _LEVEL_OF_NUMBER[number] if number < len(_LEVEL_OF_NUMBER) else "SYS"
    try:
        return str(int(value.strip(), 0))
    except ValueError:
        return value.strip()
