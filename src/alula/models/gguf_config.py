"""A Hugging Face config from the metadata of a GGUF file of the `llama` architecture.

Knows llama.cpp's metadata keys and which of them alula's Llama family cannot honour; those are refused by name.
Recovers Llama 3's rope scaling, which llama.cpp stores as a tensor of factors, as the parameters it was made from.
Knows nothing of tensor names or of the tokenizer beyond its special ids.

Source: llama.cpp's convert_hf_to_gguf.py (LlamaModel) and gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from alula.core.errors import CheckpointError, UnsupportedModel
from alula.models.gguf_file import GgufFile

ARCHITECTURES = ("llama",)
ROPE_FACTORS = "rope_freqs.weight"
CONTROL = 3  # a token type of `tokenizer.ggml.token_type`
# Tokens that end a turn but that many files do not name in their metadata; Llama 3.1's generation_config lists them.
END_TOKENS = frozenset({"<|eot_id|>", "<|eom_id|>", "<|im_end|>"})
# Keys whose value, unless it is the neutral one, changes the forward in a way that alula's Llama family does not have.
NEUTRAL = {
    "expert_count": (0,),
    "attention.scale": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.causal": (True,),
}
# Of Llama 3.1 and later: factor 8 or 32 (3.2's small models), bands from 1 to 4 of 8192 positions.
LLAMA3_FACTORS = (8.0, 32.0)
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192
LLAMA3_TOLERANCE = 1e-3


def check_architecture(file: GgufFile) -> None:
    """Raises UnsupportedModel unless alula runs what the file holds."""
    architecture = file.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path}: GGUF architecture {architecture!r}; alula reads {', '.join(map(repr, ARCHITECTURES))} "
            "(Llama, Mistral, SmolLM2 and other models of that shape)"
        )
    num_parts = file.whole("split.count", 1)
    if num_parts > 1:
        raise UnsupportedModel(
            f"{file.path}: one of {num_parts} parts of a split GGUF; join them with `llama-gguf-split --merge`"
        )
    for key, neutral in NEUTRAL.items():
        value = file.metadata.get(f"llama.{key}")
        if value is not None and value not in neutral:
            raise UnsupportedModel(
                f"{file.path}: llama.{key} is {value!r}; alula's dense Llama family has only {neutral[0]!r} there"
            )


def build_config(file: GgufFile, rope_factors: npt.NDArray[np.float32] | None) -> dict[str, Any]:
    """config.json of the model as Hugging Face would write it. `rope_factors`: the tensor rope_freqs.weight, if any."""
    num_heads, hidden_size = _count(file, "attention.head_count"), _count(file, "embedding_length")
    head_dim = _head_dim(file, hidden_size, num_heads)
    theta = file.real("llama.rope.freq_base", 10000.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": _count(file, "feed_forward_length"),
        "num_hidden_layers": _count(file, "block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _count(file, "attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _count(file, "context_length"),
        "rms_norm_eps": file.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(file, theta, head_dim, rope_factors),
        "sliding_window": file.metadata.get("llama.attention.sliding_window"),
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "bos_token_id": special_id(file, "bos"),
        "eos_token_id": special_id(file, "eos"),
        "pad_token_id": special_id(file, "padding"),
        "torch_dtype": _dtype(file),
    }


def build_generation_config(file: GgufFile) -> dict[str, Any]:
    """generation_config.json: the special ids, and every token that ends an answer."""
    ends = [special_id(file, name) for name in ("eos", "eot", "eom")]
    if "tokenizer.ggml.token_type" in file.metadata:
        tokens = file.texts("tokenizer.ggml.tokens")
        kinds = file.numbers("tokenizer.ggml.token_type", len(tokens))
        ends += [i for i, kind in enumerate(kinds) if kind == CONTROL and tokens[i] in END_TOKENS]
    unique = list(dict.fromkeys(token for token in ends if token is not None))
    return {
        "bos_token_id": special_id(file, "bos"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique or None,
        "pad_token_id": special_id(file, "padding"),
    }


def special_id(file: GgufFile, name: str) -> int | None:
    """The id of a special token ("bos", "eos", "unknown", "padding", ...), or None where the file names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    token, num_tokens = file.whole(key), len(file.texts("tokenizer.ggml.tokens"))
    if not 0 <= token < num_tokens:
        raise CheckpointError(f"{file.path}: {key} is {token}, but the vocabulary has {num_tokens} tokens")
    return token


def llama3_factors(theta: float, head_dim: int, factor: float) -> npt.NDArray[np.float64]:
    """What Llama 3's scaling divides each rotary frequency by: 1 for short waves, `factor` for long, smooth between."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    share = (LLAMA3_ORIGINAL / wavelengths - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    share = np.clip(share, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - share) / factor + share))


def _count(file: GgufFile, name: str, default: int | None = None) -> int:
    """A positive size; llama.cpp may write it once or as a list with one entry a layer, which must then agree."""
    key = f"llama.{name}"
    value = file.metadata.get(key)
    if isinstance(value, list) and value:
        if len(set(value)) > 1:
            raise UnsupportedModel(
                f"{file.path}: {key} differs between layers ({sorted(set(value))}); expected one"
            )
        value = value[0]
        if isinstance(value, int) and value >= 1:
            return value
    size = file.whole(key, default)
    if size < 1:
        raise CheckpointError(f"{file.path}: {key} is {size}; expected a positive whole number")
    return size


def _head_dim(file: GgufFile, hidden_size: int, num_heads: int) -> int:
    head_dim = _count(file, "attention.key_length", hidden_size // num_heads or 1)
    for name in ("attention.value_length", "rope.dimension_count"):
        other = _count(file, name, head_dim)
        if other != head_dim:
            raise UnsupportedModel(
                f"{file.path}: llama.{name} is {other} where a head has {head_dim}; alula expects them equal"
            )
    return head_dim


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(
            f"{file.path}: no tensor 'token_embd.weight'; expected a whole model: convert it again"
        )
    num_tokens = len(file.texts("tokenizer.ggml.tokens"))
    if num_tokens > embedding.shape[0]:
        raise CheckpointError(
            f"{file.path}: the vocabulary has {num_tokens} tokens, but the embedding only {embedding.shape[0]} rows"
        )
    return embedding.shape[0]


def _dtype(file: GgufFile) -> str:
    """The dtype that loses nothing that the file holds: that of most of its matrices; bfloat16 where quantised."""
    kinds = Counter(tensor.kind.name for tensor in file.tensors.values() if len(tensor.shape) > 1)
    most = kinds.most_common(1)[0][0] if kinds else "F32"
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")


def _rope_scaling(
    file: GgufFile, theta: float, head_dim: int, factors: npt.NDArray[np.float32] | None
) -> dict[str, Any] | None:
    linear = _linear_scaling(file)
    if factors is None:
        return linear
    llama3 = fit_llama3(file, theta, head_dim, factors)
    if linear and llama3:
        raise UnsupportedModel(
            f"{file.path}: both {ROPE_FACTORS} and linear rope scaling; alula knows one at a time"
        )
    return llama3 or linear


def _linear_scaling(file: GgufFile) -> dict[str, Any] | None:
    kind = file.text(
        "llama.rope.scaling.type", "none" if "llama.rope.scale_linear" not in file.metadata else "linear"
    )
    if kind not in ("none", "linear"):
        raise UnsupportedModel(
            f"{file.path}: rope scaling {kind!r}; alula reads 'linear' and Llama 3's from GGUF files"
        )
    factor = file.real("llama.rope.scaling.factor", file.real("llama.rope.scale_linear", 1.0))
    if kind == "none" or factor in (0.0, 1.0):
        return None
    return {"rope_type": "linear", "factor": factor}


def fit_llama3(
    file: GgufFile, theta: float, head_dim: int, factors: npt.NDArray[np.float32]
) -> dict[str, Any] | None:
    """The published parameters that reproduce `factors`, or None where they scale nothing.

    Raises UnsupportedModel where no parameters reproduce the tensor to a relative 1e-3.
    """
    if factors.shape != (head_dim // 2,):
        raise UnsupportedModel(
            f"{file.path}: {ROPE_FACTORS} has shape {factors.shape}; expected ({head_dim // 2},)"
        )
    if np.allclose(factors, 1.0, rtol=LLAMA3_TOLERANCE, atol=0.0):
        return None
    largest = float(np.round(factors.max())) if np.isfinite(factors).all() else 0.0
    for factor in dict.fromkeys((largest, *LLAMA3_FACTORS)):
        if factor > 1 and np.allclose(
            llama3_factors(theta, head_dim, factor), factors, rtol=LLAMA3_TOLERANCE, atol=0.0
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": LLAMA3_ORIGINAL,
            }
    raise UnsupportedModel(
        f"{file.path}: {ROPE_FACTORS} ({factors.min():.4g} to {factors.max():.4g}) is not Llama 3's rope scaling "
        f"(factor 8 or 32, bands {LLAMA3_LOW:g} to {LLAMA3_HIGH:g} of {LLAMA3_ORIGINAL} positions), "
        "the only kind that alula reads from a tensor"
    )
