"""Builds `rows.c` for this machine, once, with the C compiler that is here. Knows nothing of what the code does.

The library lands in alula's cache folder under a name made of everything that decides its content (source, compiler,
element type, processor), so that a change of any of them builds anew and several processes may race.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from alula.core.environment import c_compiler, cache_folder

# Read together with the module that calls it: a file edited later must not meet older argument lists.
_SOURCE = Path(__file__).with_name("rows.c").read_text(encoding="utf-8")
_FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_BUILD_SECONDS = 120


class BuildRefused(Exception):
    """No library, and why."""


def load_library(define: str) -> ctypes.CDLL:
    """rows.c with -D`define`, built if it is not in the cache. Raises BuildRefused with the reason."""
    compiler = shutil.which(c_compiler())
    if compiler is None:
        raise BuildRefused(f"no C compiler ({c_compiler()}) on PATH")
    path = cache_folder() / "kernels" / f"rows-{define.lower()}-{_fingerprint(compiler)}.so"
    try:
        if not path.exists():
            _build(compiler, define, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildRefused(f"cannot build or load {path.name}: {error}") from error


def _build(compiler: str, define: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *_FLAGS, f"-D{define}", "-x", "c", "-", "-o", str(built), "-lm"]
        try:
            done = subprocess.run(
                command, input=_SOURCE, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BuildRefused(f"{compiler} did not finish within {_BUILD_SECONDS} s") from error
        if done.returncode:
            first = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise BuildRefused(f"{compiler} failed: {first}")
        os.replace(built, path)


def _fingerprint(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (_SOURCE, version, " ".join(_FLAGS), platform.machine(), _processor_flags())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
