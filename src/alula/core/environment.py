"""The one reader of environment variables. Nobody else in the package touches os.environ to decide something."""

from __future__ import annotations

import os
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
