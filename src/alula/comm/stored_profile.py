"""A measured table in a file, with what it depends on: another machine's table is worse than none.

Knows nothing of how it was measured.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from alula.comm.table import MeasuredTable
from alula.core.errors import InvalidOption, RecordWriteError

SCHEMA = 1


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True):
    """What times of collectives depend on. variables: those of NCCL that were planned."""

    processor: str
    driver: str
    nccl: str
    torch: str
    num_ranks: int
    dtype: str
    variables: dict[str, str] = {}


class CommProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What `--comm-profile FILE` holds."""

    schema: int = SCHEMA
    key: ProfileKey
    table: MeasuredTable


def load_profile(path: Path, key: ProfileKey) -> MeasuredTable | None:
    """The stored table; None where there is no such file yet, in a folder that can hold one.

    Raises InvalidOption for a file that is none of ours, and naming the fields where its key is another."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise InvalidOption(
                f"--comm-profile {path} is not there and cannot be written: {path.parent} is no folder that can be "
                "written to; name another file"
            ) from None
        return None
    except OSError as error:
        raise InvalidOption(f"--comm-profile {path} cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(text, type=CommProfile)
    except msgspec.DecodeError as error:
        raise InvalidOption(
            f"--comm-profile {path} is no profile of collectives ({error}); name another file, or one that does not "
            "exist yet to have it measured"
        ) from error
    if found.schema != SCHEMA:
        raise InvalidOption(f"--comm-profile {path} has schema {found.schema}; this alula reads {SCHEMA}")
    if odd := [timing for timing in found.table.timings if not 0 < timing.us < math.inf]:
        raise InvalidOption(
            f"--comm-profile {path} says that {odd[0].op} of {odd[0].num_bytes} bytes takes {odd[0].us} us through "
            f"{odd[0].backend}; expected a positive number: remove the file to have it measured anew"
        )
    if found.key != key:
        raise InvalidOption(f"--comm-profile {path} was measured elsewhere: {differences(found.key, key)}")
    return found.table


def save_profile(path: Path, key: ProfileKey, table: MeasuredTable) -> None:
    """Writes the file whole or not at all. Raises RecordWriteError where the disk refuses."""
    text = msgspec.json.format(msgspec.json.encode(CommProfile(key=key, table=table)), indent=1)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(text + b"\n")
        partial.replace(path)
    except OSError as error:
        raise RecordWriteError(
            f"cannot write the profile {path}: {error.strerror}; choose another --comm-profile"
        ) from error


def differences(stored: ProfileKey, here: ProfileKey) -> str:
    """Each field at odds, with both values."""
    fields = ProfileKey.__struct_fields__
    odds = [name for name in fields if getattr(stored, name) != getattr(here, name)]
    return "; ".join(f"{name} was {getattr(stored, name)!r} and is {getattr(here, name)!r}" for name in odds)
