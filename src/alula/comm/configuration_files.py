"""The files from which NCCL takes variables that its environment does not have.

Read as NCCL 2.30 reads them: the file that NCCL_CONF_FILE names, else the one in the user's home (of the password
database, not of HOME), then /etc/nccl.conf; "#" begins a comment at a line's start only; nothing is trimmed. Of two
values the first counts. Knows nothing of plans.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from alula.core.environment import c_getenv

SYSTEM_FILE = Path("/etc/nccl.conf")


def configured_variables() -> tuple[tuple[str, str, str], ...]:
    """(path, name, value) of each variable that NCCL would find in this process; a file that is not there has none."""
    found: dict[str, tuple[str, str, str]] = {}
    for path in _files():
        for name, value in parse_configuration(_text(path)).items():
            found.setdefault(name, (str(path), name, value))
    return tuple(found.values())


def parse_configuration(text: str) -> dict[str, str]:
    """The variables of one file's text; of two values for a name the first."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if name and equals and not line.startswith("#"):
            found.setdefault(name, value)
    return found


def _files() -> tuple[Path, ...]:
    named = c_getenv("NCCL_CONF_FILE")
    if named:
        return Path(named), SYSTEM_FILE
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf"), SYSTEM_FILE
    except KeyError:  # a user without an entry, as containers may have: NCCL skips the file too
        return (SYSTEM_FILE,)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
