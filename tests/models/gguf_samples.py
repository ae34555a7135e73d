"""Tiny GGUF files for tests, written with the gguf package's own writer. Knows nothing of alula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
LAYERS, HEADS, KV_HEADS = 2, 4, 2
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
HUGGING_FACE = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@dataclass
class Sample:
    """What to write; every part may be replaced."""

    kind: GGMLQuantizationType = GGMLQuantizationType.F32
    width: int = 64
    head_dim: int = 16
    tied: bool = True
    bias: bool = False
    architecture: str = "llama"
    metadata: dict[str, Any] = field(default_factory=dict)  # None takes a key out
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    vocabulary: Callable[[], dict[str, Any]] | None = None


def byte_level_vocabulary() -> dict[str, Any]:
    """All 256 bytes, a few merges, the control tokens of ChatML and a user-defined one."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [CONTROL] * len(tokens)
    plain = sorted(ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    tokens += [*plain, "<think>"]
    types += [NORMAL] * len(plain) + [USER_DEFINED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def sentencepiece_vocabulary() -> dict[str, Any]:
    """Bytes, single characters and a few words, scored as SentencePiece does: the earlier, the better."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    words = ["▁t", "he", "▁the", "ll", "▁▁", "hell", "hello", "▁hello", "▁h", "in", "ing", "▁w", "or", "▁wor", "ld"]
    words += ["▁world", "ab", "ba", "aba", "▁a", "lo", "llo", *"▁abcdeghilnorstw.,!1é"]
    tokens += words
    types += [NORMAL] * len(words)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(path: Path, sample: Sample | None = None) -> dict[str, np.ndarray]:
    """Writes a tiny Llama and returns its weights before they were stored, under Hugging Face names."""
    sample = sample or Sample()
    vocabulary = (sample.vocabulary or byte_level_vocabulary)()
    weights = _weights(sample, num_tokens=len(vocabulary["tokenizer.ggml.tokens"]))
    writer = GGUFWriter(path, sample.architecture)
    for key, value in (_sizes(sample) | vocabulary | sample.metadata).items():
        if value is not None:
            _add(writer, key, value)
    for name, values in weights.items():
        stored = _interleave(name, values, sample)
        if values.ndim > 1 and sample.kind != GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(stored, sample.kind), raw_dtype=sample.kind)
        else:
            writer.add_tensor(name, stored)
    for name, values in sample.extra.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {_hugging_face(name): values for name, values in weights.items()}


def _sizes(sample: Sample) -> dict[str, Any]:
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": sample.width,
        "llama.feed_forward_length": 2 * sample.width,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": sample.head_dim,
        "llama.attention.value_length": sample.head_dim,
        "llama.rope.dimension_count": sample.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }


def _weights(sample: Sample, num_tokens: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    width, inner = sample.width, 2 * sample.width
    queries, keys = HEADS * sample.head_dim, KV_HEADS * sample.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (num_tokens, width), "output_norm.weight": (width,)}
    if not sample.tied:
        shapes["output.weight"] = (num_tokens, width)
    for layer in range(LAYERS):
        block = {"attn_norm": (width,), "ffn_norm": (width,), "attn_output": (width, queries)}
        block |= {"attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width)}
        block |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in block.items()}
        if sample.bias:
            for part, size in {"attn_q": queries, "attn_k": keys, "attn_v": keys, "attn_output": width}.items():
                shapes[f"blk.{layer}.{part}.bias"] = (size,)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _interleave(name: str, values: np.ndarray, sample: Sample) -> np.ndarray:
    """llama.cpp's order of the rows of Q and K: the two halves of each head, taken in turn."""
    part = name.split(".")[-2]
    if part not in ("attn_q", "attn_k"):
        return values
    stored = np.empty_like(values)
    half = sample.head_dim // 2
    for row in range(values.shape[0]):
        head, position = divmod(row, sample.head_dim)
        stored[head * sample.head_dim + 2 * (position % half) + position // half] = values[row]
    return stored


def _hugging_face(name: str) -> str:
    *block, part, suffix = name.split(".")
    return f"model.layers.{block[1]}.{HUGGING_FACE[part]}.{suffix}" if block else f"{HUGGING_FACE[part]}.{suffix}"


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if key == "general.alignment":
        writer.add_custom_alignment(value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
