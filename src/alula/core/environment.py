"""The one reader of environment variables. Nobody else in the package touches os.environ to decide something."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where alula keeps what it downloaded: $ALULA_CACHE, else $XDG_CACHE_HOME/alula, else ~/.cache/alula."""
    if own := os.environ.get("ALULA_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "alula"


def inherited() -> dict[str, str]:
    """A copy of the whole environment, to build a rank's environment from."""
    return dict(os.environ)


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Within it these variables are set, for libraries too: Python sets them through C's setenv. For what a library
    reads anew each time that something is made."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def bind_threads() -> None:
    """Asks OpenMP to keep each of its threads on a core of its own, unless the user decided something.

    Only before torch is loaded, since OpenMP reads this once. Without it a kernel may run two spinning threads on one
    core while another is idle: a decode step of 25 ms was seen to take 700 ms on a virtual machine with two cores.
    Processes started later inherit the first thread's core: not for an engine of several ranks.
    """
    if not any(name in os.environ for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")):
        os.environ["OMP_PROC_BIND"] = "true"


def c_compiler() -> str:
    """The command of the C compiler: $CC, else cc."""
    return os.environ.get("CC") or "cc"


def c_getenv(name: str) -> str | None:
    """What C's getenv answers in this process: what OpenMP, gloo and NCCL ask. `os.environ` is a copy of it that
    Python took when it started, and does not see what a C library has set since."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    getenv.argtypes = [ctypes.c_char_p]
    value = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def c_environment() -> dict[str, str]:
    """All variables as C sees them now. Of a name that is there twice the first counts, as for getenv."""
    library, pointers = ctypes.CDLL(None), ctypes.POINTER(ctypes.c_char_p)
    if sys.platform == "darwin":
        library._NSGetEnviron.restype = ctypes.POINTER(pointers)
        block = library._NSGetEnviron().contents
    else:
        block = pointers.in_dll(library, "environ")
    entries: list[bytes] = []
    while block and (entry := block[len(entries)]) is not None:
        entries.append(entry)
    return _by_name(entries)


def exec_environment() -> dict[str, str] | None:
    """What this process was started with, whatever has been set since. None where the kernel does not tell."""
    try:
        return _by_name(Path("/proc/self/environ").read_bytes().split(b"\0"))
    except OSError:
        return None


def _by_name(entries: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = os.fsdecode(entry).partition("=")
        if equals:
            found.setdefault(name, value)
    return found
