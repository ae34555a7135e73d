"""A GGUF file of the `llama` architecture as a checkpoint with Hugging Face names, shapes and row order.

Tensors are dequantised to float32 one at a time, from a memory map. Knows llama.cpp's tensor names and its order of
the Q and K rows; knows nothing of the tokenizer (tokenizer_gguf.py) or of metadata keys (gguf_config.py).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from alula.core.errors import CheckpointError, UnsupportedModel
from alula.models.checkpoint import Checkpoint, check_rows, no_such_tensor
from alula.models.gguf_config import ROPE_FACTORS, build_config, build_generation_config, check_architecture
from alula.models.gguf_file import GgufFile, GgufTensor

if TYPE_CHECKING:

    def _is_a_checkpoint(checkpoint: GgufCheckpoint) -> Checkpoint:
        return checkpoint


OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INSIDE_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
}
# gguf works through 16 rows at a time; rows of this many bytes keep its temporaries in the cache (5x faster than 612).
CHUNK_BYTES = 32768


class GgufCheckpoint:
    """See `Checkpoint`. Opening reads the metadata and the directory; `file` gives the tokenizer its metadata.

    Raises CheckpointError or UnsupportedModel at opening, also for a quantisation that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        check_architecture(self.file)
        _check_kinds(self.file)
        factors = self.file.tensors.get(ROPE_FACTORS)
        self.config: dict[str, Any] = build_config(
            self.file, None if factors is None else self._decode(factors, 0, 1)
        )
        self.generation_config: dict[str, Any] = build_generation_config(self.file)
        self._tensors = {
            _hugging_face_name(self.file, tensor.name): tensor
            for tensor in self.file.tensors.values()
            if tensor.name != ROPE_FACTORS
        }
        self._heads = {
            "q_proj": self.config["num_attention_heads"],
            "k_proj": self.config["num_key_value_heads"],
        }

    @property
    def description(self) -> str:
        kinds = Counter(tensor.kind.name for tensor in self._tensors.values())
        stored = ", ".join(f"{kind} x{count}" for kind, count in kinds.most_common())
        dequantised = ", dequantised" if set(kinds) - {"F32", "F16", "BF16"} else ""
        return f"{self.file.path.name} (GGUF, {stored}{dequantised})"

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def read(self, name: str) -> torch.Tensor:
        return self.read_rows(name, 0, self._tensor(name).shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        tensor = self._tensor(name)
        check_rows(self.file.path, name, tensor.shape, start, stop)
        if len(tensor.shape) == 1 and not self._is_interleaved(name):
            return torch.from_numpy(self._decode(tensor, 0, 1)[start:stop].copy())
        if not self._is_interleaved(name):
            return torch.from_numpy(self._decode(tensor, start, stop))
        head_dim = self._interleaved_head_dim(name, tensor)
        first, last = start // head_dim * head_dim, -(-stop // head_dim) * head_dim
        stored = (
            self._decode(tensor, first, last) if len(tensor.shape) > 1 else self._decode(tensor, 0, 1)[first:last]
        )
        rows = _halves_from_pairs(stored, head_dim)
        return torch.from_numpy(rows[start - first : stop - first].copy())

    def _tensor(self, name: str) -> GgufTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise no_such_tensor(self.file.path, name, self.names())
        return tensor

    def _is_interleaved(self, name: str) -> bool:
        return name.split(".")[-2] in self._heads

    def _interleaved_head_dim(self, name: str, tensor: GgufTensor) -> int:
        num_heads, head_dim = self._heads[name.split(".")[-2]], int(self.config["head_dim"])
        if tensor.shape[0] != num_heads * head_dim or head_dim % 2:
            raise CheckpointError(
                f"{self.file.path}: tensor {tensor.name!r} has {tensor.shape[0]} rows; "
                f"expected {num_heads} heads of {head_dim} (an even number): convert the model again"
            )
        return head_dim

    def _decode(self, tensor: GgufTensor, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows `start` to `stop` as float32, in the file's row order. A vector counts as one row."""
        lead, width = tensor.shape[:-1], tensor.shape[-1]
        if len(lead) > 1:
            raise UnsupportedModel(
                f"{self.file.path}: tensor {tensor.name!r} has {len(lead) + 1} dimensions; expected 2"
            )
        stored = self.file.raw(tensor)[start * tensor.row_bytes : stop * tensor.row_bytes]
        values = _dequantise(stored, tensor.kind, stop - start)
        return values.reshape((stop - start, width) if lead else (width,))


def _dequantise(
    stored: npt.NDArray[np.uint8], kind: GGMLQuantizationType, num_rows: int
) -> npt.NDArray[np.float32]:
    """Flat float32 values, in memory of their own, of `num_rows` rows of stored bytes."""
    if stored.size == 0:
        return np.empty(0, np.float32)
    if kind in PLAIN:
        plain: npt.NDArray[np.float32] = stored.view(PLAIN[kind]).astype(np.float32)
        return plain
    group = max(1, min(num_rows, CHUNK_BYTES * num_rows // stored.size))
    while num_rows % group:
        group -= 1
    chunks = stored.reshape(num_rows // group, -1)
    # Some kinds compute in the file's own float16, where a corrupt scale may overflow: that is a value, not a fault.
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(dequantize(chunks, kind), np.float32).reshape(-1)


def _halves_from_pairs(rows: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """llama.cpp rotates neighbouring rows (2i, 2i + 1) of a head, Hugging Face rows (i, i + head_dim / 2).

    Row 2i + s of each head therefore moves to row s * head_dim / 2 + i.
    """
    order = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)
    first_rows = np.arange(0, rows.shape[0], head_dim)
    picked: npt.NDArray[np.float32] = rows[(first_rows[:, None] + order).reshape(-1)]
    return picked


def is_readable(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package can dequantise this kind, found by trying it on one block of zeros."""
    if kind in PLAIN:
        return True
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _check_kinds(file: GgufFile) -> None:
    unreadable = {kind for kind in {tensor.kind for tensor in file.tensors.values()} if not is_readable(kind)}
    for tensor in file.tensors.values():
        if tensor.kind in unreadable:
            raise UnsupportedModel(
                f"{file.path}: tensor {tensor.name!r} is stored as {tensor.kind.name}; "
                f"alula reads {', '.join(kind.name for kind in GGMLQuantizationType if is_readable(kind))}"
            )


def _hugging_face_name(file: GgufFile, name: str) -> str:
    """The Hugging Face parameter of a GGUF tensor. Raises UnsupportedModel for one that a Llama does not have."""
    stem, _, suffix = name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in OUTSIDE_LAYERS:
            return f"{OUTSIDE_LAYERS[stem]}.{suffix}"
        block, _, part = stem.partition(".")
        number, _, part = part.partition(".")
        if block == "blk" and number.isdecimal() and part in INSIDE_LAYERS:
            return f"model.layers.{number}.{INSIDE_LAYERS[part]}.{suffix}"
    raise UnsupportedModel(
        f"{file.path}: tensor {name!r} has no place in a dense Llama; alula reads {', '.join(INSIDE_LAYERS)} in each "
        f"block and {', '.join(OUTSIDE_LAYERS)} outside"
    )
