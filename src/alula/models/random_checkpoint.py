"""A checkpoint without files: random weights of a shape, each made on the device and in the dtype it is wanted in.

For measuring what a model costs where its weights are not there. The numbers depend on the tensor's name, the seed and
the kind of device, so every rank of a run makes the same; they are scaled so that activations keep their size through
any depth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alula.core.errors import UserError
from alula.core.shape import ModelShape, parse_shape
from alula.models.checkpoint import check_rows, no_such_tensor
from alula.models.source import ModelSource
from alula.models.tokenizer import Tokenizer

_NORM_SPREAD, _BIAS_SPREAD = 0.05, 0.02
_NO_TEXT = "this model is a shape with random weights (--shape) and has no tokenizer; give token ids"


class RandomCheckpoint:
    """The tensors that a model of this shape has, under their Hugging Face names."""

    def __init__(self, source: ModelSource, seed: int = 0) -> None:
        assert source.shape_config is not None
        self.config = source.shape_config
        self.generation_config: dict[str, Any] = {}
        self.description = f"random weights of the shape {source.name}"
        self._path = source.path
        self._seed = seed
        self._shapes = tensor_shapes(parse_shape(self.config))

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise no_such_tensor(self._path, name, self.names())
        return self._shapes[name]

    def read(self, name: str) -> Tensor:
        return self.make(name, torch.float32, torch.device("cpu"))

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        check_rows(self._path, name, self.shape(name), start, stop)
        return self.read(name)[start:stop].clone()

    def make(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """One tensor where it is wanted: an 8B model takes seconds on a GPU, and nothing of it on the host."""
        return random_tensor(name, self.shape(name), self._seed, dtype, device)


class NoTokenizer(Tokenizer):
    """Stands in for the tokenizer of a shape: nothing ends an answer, text cannot be encoded, and tokens have none."""

    has_text = False

    def __init__(self, vocab_size: int) -> None:
        self.eos_token_ids = frozenset()
        self.vocab_size = vocab_size
        self.bos_token_id = None

    def encode(self, text: str) -> list[int]:
        raise UserError(_NO_TEXT)

    def encode_chat(self, messages: list[dict[str, Any]], **template_kwargs: Any) -> list[int]:
        raise UserError(_NO_TEXT)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the Llama family's tensors, as its checkpoints have them."""
    size, width = shape.hidden_size, shape.intermediate_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = {"q_proj": (query, size), "k_proj": (kv, size), "v_proj": (kv, size), "o_proj": (size, query)}
    mlp = {"gate_proj": (width, size), "up_proj": (width, size), "down_proj": (size, width)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, size)}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        for part, matrices, biased in (
            ("self_attn", attention, shape.attention_bias),
            ("mlp", mlp, shape.mlp_bias),
        ):
            for name, matrix in matrices.items():
                shapes[f"{prefix}.{part}.{name}.weight"] = matrix
                if biased:
                    shapes[f"{prefix}.{part}.{name}.bias"] = matrix[:1]
        shapes[f"{prefix}.input_layernorm.weight"] = (size,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (size,)
    shapes["model.norm.weight"] = (size,)
    if not shape.tied_embeddings:
        shapes["lm_head.weight"] = (shape.vocab_size, size)
    return shapes


def random_tensor(name: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A matrix that keeps the size of its inputs, a small bias, or a norm's weight near one."""
    own_seed = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) >> 1
    if len(shape) > 1:
        return seeded_normal(shape, own_seed, shape[-1] ** -0.5, dtype, device)
    if name.endswith("bias"):
        return seeded_normal(shape, own_seed, _BIAS_SPREAD, dtype, device)
    return seeded_normal(shape, own_seed, _NORM_SPREAD, dtype, device) + 1.0


def seeded_normal(
    shape: tuple[int, ...], seed: int, spread: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Normal numbers of that standard deviation; on a CPU drawn in fp32, so that every dtype rounds the same ones."""
    drawn = torch.float32 if device.type == "cpu" else dtype
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=drawn, device=device).mul_(spread).to(dtype)
