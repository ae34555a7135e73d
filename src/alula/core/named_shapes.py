"""Published models whose shapes have names: their config.json, for runs without weights and for arithmetic.

Sources: the models' own configs, as far as `parse_shape` reads them (meta-llama/Llama-3.1-8B and -70B,
meta-llama/Llama-3.2-1B, HuggingFaceTB/SmolLM2-135M-Instruct).
"""

from __future__ import annotations

from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

NAMED_SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 8.0},
        "tie_word_embeddings": False,
    },
    "llama-3.1-70b": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 8.0},
        "tie_word_embeddings": False,
    },
    "llama-3.2-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "smollm2-135m": {
        **_LLAMA,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}

_LARGE_VOCABULARY = 65536
_DRAFT_VOCABULARY, _SMALL_DRAFT_VOCABULARY = 32000, 8192


def draft_vocabulary(vocab_size: int) -> int:
    """Tokens that a head for a target of this vocabulary would draft from.

    32000 as in the heads published for Llama 3, Qwen 3 and Kimi; for small vocabularies 8192, as in SmolLM2's head.
    """
    usual = _DRAFT_VOCABULARY if vocab_size > _LARGE_VOCABULARY else _SMALL_DRAFT_VOCABULARY
    return min(vocab_size, usual)
