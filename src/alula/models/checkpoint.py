"""What a checkpoint offers, whatever file it lies in: a Hugging Face config and tensors under Hugging Face names.

Knows the kinds of checkpoint, and that each kind brings its own reader. Knows nothing of how a model uses the
tensors, of their sharding over ranks, or whether they fit the config: the loader checks that, strictly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from alula.core.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from alula.models.source import ModelSource

MAX_POINTER_BYTES = 1024  # a Git LFS pointer is three short lines


class Checkpoint(Protocol):
    """One opened checkpoint. Tensors are read on demand, on the CPU; each read returns a tensor of its own."""

    @property
    def config(self) -> dict[str, Any]:
        """config.json as Hugging Face writes it, also for a GGUF file."""
        ...

    @property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, or {} where there is none."""
        ...

    @property
    def description(self) -> str:
        """One line for a report or an error: the file, its format and how the weights are stored."""
        ...

    def names(self) -> frozenset[str]:
        """Every tensor, by its Hugging Face parameter name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, without reading it. Raises CheckpointError where there is no such tensor."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor: in its stored dtype (safetensors) or dequantised to float32 (GGUF)."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` (excluded) of the first dimension, without reading the others where possible."""
        ...


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """The checkpoint behind a resolved source. Reads headers only; a shape's is made of random numbers.

    Raises CheckpointError (corrupt, cut off, incomplete) or UnsupportedModel (architecture, quantisation).
    """
    if source.kind in ("gguf", "builtin"):
        from alula.models.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(source.path)
    if source.kind == "shape":
        from alula.models.random_checkpoint import RandomCheckpoint

        return RandomCheckpoint(source)
    from alula.models.safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(source.path)


def no_such_tensor(where: Path, name: str, names: frozenset[str]) -> CheckpointError:
    """The error for a tensor that a checkpoint lacks; names a few of those it has."""
    some = ", ".join(sorted(names)[:3]) or "none at all"
    return CheckpointError(f"{where}: no tensor {name!r}; it has {len(names)} tensors ({some}, ...)")


def check_rows(where: Path, name: str, shape: tuple[int, ...], start: int, stop: int) -> None:
    """Raises CheckpointError unless `start` to `stop` lies inside the first dimension of `shape`."""
    num_rows = shape[0] if shape else 0
    if not 0 <= start <= stop <= num_rows:
        raise CheckpointError(f"{where}: rows {start} to {stop} of {name!r} were asked for; it has {num_rows}")


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is Git LFS's stand-in for the real one, as `git clone` without git-lfs leaves it."""
    if path.stat().st_size > MAX_POINTER_BYTES:
        return False
    return path.read_bytes().startswith(b"version https://git-lfs.github.com/spec/")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError naming the file, and the position of what is wrong in it."""
    try:
        text = path.read_bytes().decode()
        value = json.loads(text)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path.parent}: no {path.name}; expected a Hugging Face model directory with its config and weights"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text (byte {error.start}); fetch it again") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}; correct it or fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON {type(value).__name__}; expected an object with names and values")
    return value
