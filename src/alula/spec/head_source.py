"""The tensors of an EAGLE-3 head under one set of names, whatever file they came from.

Accepted: `model.safetensors` (also sharded) and `pytorch_model.bin` (read with weights_only), an optional `model.`
prefix, `midlayer.` for `layers.0.`. The draft-to-target map is checked on the way in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alula.core.errors import CheckpointError, HeadMismatch, ModelNotFound
from alula.layers.weights import TensorSource
from alula.models.checkpoint import is_lfs_pointer, read_json
from alula.models.random_checkpoint import seeded_normal
from alula.models.safetensors_checkpoint import SafetensorsCheckpoint

# Training leftovers and derived tensors.
IGNORED_TENSORS = (
    *(f"rotary_emb.{name}" for name in ("inv_freq", "cos_cached", "sin_cached")),
    *("verifier_lm_head.weight", "verifier_norm.weight", "t2d", "d2t"),
)


class HeadSource:
    """A `TensorSource` over a head's folder."""

    def __init__(self, path: Path, tensors: dict[str, Tensor]) -> None:
        self.description = f"head {path}"
        self._tensors = tensors

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


class RandomSource:
    """Normal weights for any name it is asked about: a head that knows nothing (tests, experiments).

    The same name, shape and seed give the same numbers on every rank. `vocabulary` holds d2t (and t2d), kept as it is.
    """

    description = "random head"

    def __init__(self, shapes: dict[str, tuple[int, ...]], vocabulary: dict[str, Tensor], seed: int) -> None:
        self._shapes = shapes
        self._vocabulary = vocabulary
        self._seed = seed

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes) | frozenset(self._vocabulary)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name] if name in self._shapes else tuple(self._vocabulary[name].shape)

    def read(self, name: str) -> Tensor:
        if name in self._vocabulary:
            return self._vocabulary[name]
        return self.make(name, torch.float32, torch.device("cpu"))

    def make(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A weight where it is wanted; of the kind of device, the same on every rank."""
        shape = self._shapes[name]
        if "norm" in name:
            return torch.ones(shape, dtype=dtype, device=device)
        key = self._seed * 1_000_003 + sum(ord(c) * 31**i for i, c in enumerate(name))
        return seeded_normal(shape, key % 2**63, 0.02, dtype, device)


class NegatedHeadSource:
    """Another head with its output weights negated: it proposes what that head finds least likely.

    A head that shares the target's output weights has its final norm negated instead, which has the same effect.
    """

    def __init__(self, source: TensorSource) -> None:
        self.description = f"adversarial {source.description}"
        self._source = source
        self._negated = "lm_head.weight" if "lm_head.weight" in source.names() else "norm.weight"

    def names(self) -> frozenset[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def read(self, name: str) -> Tensor:
        tensor = self._source.read(name)
        return -tensor if name == self._negated else tensor


def read_head_config(path: Path) -> dict[str, Any]:
    """config.json of a head's folder. Raises ModelNotFound or CheckpointError."""
    if not path.is_dir():
        raise ModelNotFound(f"no EAGLE-3 head at {path}; expected a folder with config.json and its weights")
    if not (path / "config.json").exists():
        raise ModelNotFound(f"{path} holds no config.json; expected the folder of an EAGLE-3 head")
    return read_json(path / "config.json")


def open_head(path: Path) -> HeadSource:
    """All tensors of a head's folder, renamed. Raises CheckpointError naming a file that cannot be read."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in sorted(_read_tensors(path).items()):
        if canonical_name(name) in tensors:
            raise CheckpointError(
                f"head {path}: tensor {canonical_name(name)} is there twice, once as {name}; keep one"
            )
        tensors[canonical_name(name)] = tensor
    return HeadSource(path, tensors)


def canonical_name(name: str) -> str:
    """`model.midlayer.self_attn.q_proj.weight` -> `layers.0.self_attn.q_proj.weight`."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def hot_token_ids(source: TensorSource, draft_vocab_size: int, vocab_size: int) -> Tensor:
    """The target id of each draft id, int64 [Vd]. `d2t` holds offsets: target = draft + d2t[draft].

    Raises HeadMismatch or CheckpointError where d2t and t2d contradict each other or the sizes.
    """
    names = source.names()
    if "d2t" not in names:
        if draft_vocab_size == vocab_size:
            return torch.arange(vocab_size)
        raise CheckpointError(
            f"{source.description}: tensor d2t is missing, though the draft vocabulary ({draft_vocab_size}) is not the "
            f"target's ({vocab_size})"
        )
    offsets = source.read("d2t")
    if tuple(offsets.shape) != (draft_vocab_size,) or offsets.is_floating_point():
        raise CheckpointError(
            f"{source.description}: d2t is {offsets.dtype} {list(offsets.shape)}; expected whole numbers "
            f"[{draft_vocab_size}]"
        )
    hot = torch.arange(draft_vocab_size) + offsets.to(torch.int64)
    if bool((hot < 0).any()) or bool((hot >= vocab_size).any()):
        raise HeadMismatch(f"{source.description}: d2t points outside the target's {vocab_size} tokens")
    if bool((hot.diff() <= 0).any()):
        raise CheckpointError(f"{source.description}: d2t does not give strictly ascending target ids")
    if "t2d" in names:
        _check_t2d(source, hot, vocab_size)
    return hot


def _check_t2d(source: TensorSource, hot: Tensor, vocab_size: int) -> None:
    mask = source.read("t2d")
    if mask.numel() != vocab_size:
        raise HeadMismatch(
            f"{source.description}: t2d covers {mask.numel()} tokens; this target has {vocab_size}: "
            "it was made for another model"
        )
    if not torch.equal(mask.bool().nonzero().flatten(), hot):
        raise CheckpointError(f"{source.description}: t2d and d2t name different tokens")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    pickled = path / "pytorch_model.bin"
    if any(path.glob("*.safetensors*")):
        checkpoint = SafetensorsCheckpoint(path)
        return {name: checkpoint.read(name) for name in checkpoint.names()}
    if pickled.exists():
        return _read_pickled(pickled)
    raise ModelNotFound(f"{path} holds neither model.safetensors nor pytorch_model.bin")


def _read_pickled(file: Path) -> dict[str, Tensor]:
    """Tensors only: a pickle can name any function, and with `weights_only` none is called."""
    if is_lfs_pointer(file):
        raise CheckpointError(f"{file}: a Git LFS pointer, not the weights; run `git lfs pull` in its folder")
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle makes Python raise nearly anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{file}: not tensors alone ({reason}); it is corrupt or cut off, or holds Python objects, which are "
            "never run: fetch it again, or convert it to safetensors"
        ) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file}: holds a {type(loaded).__name__}; expected tensors by name")
    return {name: tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}
