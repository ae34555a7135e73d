"""A Hugging Face directory with safetensors weights, in one file or in shards with an index.

Every file is opened (its header is read and checked against its length) when the checkpoint is; tensors are read on
demand. Knows nothing of architectures: config.json is passed on as it is.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from alula.core.errors import CheckpointError
from alula.models.checkpoint import Checkpoint, check_rows, is_lfs_pointer, no_such_tensor, read_json

if TYPE_CHECKING:

    def _is_a_checkpoint(checkpoint: SafetensorsCheckpoint) -> Checkpoint:
        return checkpoint


CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CONVERT = (
    "convert it with `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)` in transformers, "
    "which writes safetensors"
)


class SafetensorsCheckpoint:
    """See `Checkpoint`. Raises CheckpointError at opening where a file is missing, damaged or disagrees with others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = read_json(folder / CONFIG)
        generation = folder / GENERATION_CONFIG
        self.generation_config: dict[str, Any] = read_json(generation) if generation.exists() else {}
        self._files = {path.name: _open(path) for path in _weight_files(folder)}
        self._home = _locate(folder, {name: list(file.keys()) for name, file in self._files.items()})

    @property
    def description(self) -> str:
        kinds = Counter(str(self._slice(name).get_dtype()) for name in self._home)
        stored = ", ".join(f"{kind} x{count}" for kind, count in kinds.most_common())
        plural = "" if len(self._files) == 1 else "s"
        return f"{self.folder.name} (safetensors, {stored}, {len(self._files)} file{plural})"

    def names(self) -> frozenset[str]:
        return frozenset(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        home = self._home_of(name)
        try:
            tensor: torch.Tensor = self._files[home].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{self.folder / home}: tensor {name!r} cannot be read: {error}") from error
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        check_rows(self.folder, name, self.shape(name), start, stop)
        try:
            rows: torch.Tensor = self._slice(name)[start:stop]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{self.folder}: rows of {name!r} cannot be read: {error}") from error
        return rows

    def _slice(self, name: str) -> Any:
        return self._files[self._home_of(name)].get_slice(name)

    def _home_of(self, name: str) -> str:
        home = self._home.get(name)
        if home is None:
            raise no_such_tensor(self.folder, name, self.names())
        return home


class _Index(msgspec.Struct, frozen=True):
    """model.safetensors.index.json: which shard each tensor lies in."""

    weight_map: dict[str, str]


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = msgspec.convert(read_json(path), _Index).weight_map
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}; expected a weight_map of tensor names to shard names") from error
    for name, shard in weight_map.items():
        if Path(shard).name != shard:
            raise CheckpointError(
                f"{path}: tensor {name!r} is said to lie in {shard!r}; expected a file in this folder"
            )
    return weight_map


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a directory, in the order in which Hugging Face looks for them."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        return _shards(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise CheckpointError(f"{folder}: {len(found)} safetensors files but no {INDEX}; fetch the index too")
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in folder.glob(pattern))
    if others:
        raise CheckpointError(f"{folder}: weights in {others[0]!r}, but alula reads safetensors; {CONVERT}")
    raise CheckpointError(f"{folder}: no weights; expected {SINGLE}, {INDEX} with its shards, or a .gguf file")


def _shards(folder: Path) -> list[Path]:
    names = sorted(set(_read_index(folder / INDEX).values()))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(names)} shards that {INDEX} lists are missing: {', '.join(missing)}; "
            "fetch them too"
        )
    if not names:
        raise CheckpointError(f"{folder / INDEX}: lists no tensors; expected a weight_map; fetch it again")
    return [folder / name for name in names]


def _open(path: Path) -> Any:
    try:
        if is_lfs_pointer(path):
            raise CheckpointError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        num_bytes = path.stat().st_size
        raise CheckpointError(
            f"{path}: {num_bytes} bytes that are not a whole safetensors file ({error}); "
            "corrupt or cut off: fetch it again"
        ) from error


def _locate(folder: Path, contents: dict[str, list[str]]) -> dict[str, str]:
    """The file of each tensor. Raises CheckpointError where files hold it twice or the index contradicts them."""
    home: dict[str, str] = {}
    for file, names in contents.items():
        for name in names:
            if name in home:
                raise CheckpointError(
                    f"{folder}: tensor {name!r} lies in both {home[name]!r} and {file!r}; keep one"
                )
            home[name] = file
    if len(contents) > 1 or SINGLE not in contents:
        index = folder / INDEX
        listed = _read_index(index) if index.exists() else {}
        for name, file in listed.items():
            if home.get(name) != file:
                found = f"it lies in {home[name]!r}" if name in home else "no shard holds it"
                raise CheckpointError(
                    f"{index}: tensor {name!r} is said to lie in {file!r}, but {found}; fetch index and shards again"
                )
    return home
