"""The built-in shapes of large models, by the names that people write. See `served.py` for what is counted.

Values: config.json of each model on the hub, as published by its makers.
"""

from __future__ import annotations

import re

import msgspec

from alula.plan.served import FP8, INT4_GROUP_32, MXFP4, ServedShape


def _dense(name: str, hidden: int, intermediate: int, layers: int, heads: int, kv: int, vocab: int) -> ServedShape:
    return ServedShape(
        name=name,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=128,
        vocab_size=vocab,
    )


_LLAMA_VOCABULARY, _QWEN_VOCABULARY = 128256, 151936
_DEEPSEEK_V3 = ServedShape(
    name="deepseek-v3",
    hidden_size=7168,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    intermediate_size=18432,
    vocab_size=129280,
    num_dense_layers=3,
    num_experts=256,
    experts_per_token=8,
    num_shared_experts=1,
    expert_intermediate_size=2048,
    q_lora=1536,
    kv_lora=512,
    rope_dim=64,
    value_dim=128,
    weight_bytes=FP8,
    expert_bytes=FP8,
)
# int4 covers the routed experts alone; attention, shared experts and the dense layer stay in bf16.
_KIMI_K25 = msgspec.structs.replace(
    _DEEPSEEK_V3,
    name="kimi-k2.5",
    num_heads=64,
    num_kv_heads=64,
    vocab_size=163840,
    num_dense_layers=1,
    num_experts=384,
    weight_bytes=2.0,
    expert_bytes=INT4_GROUP_32,
)


def _sparse(
    name: str, hidden: int, layers: int, heads: tuple[int, int], experts: tuple[int, int, int], vocab: int
) -> ServedShape:
    """experts: how many, of them a token, width of each."""
    return ServedShape(
        name=name,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        intermediate_size=0,
        vocab_size=vocab,
        num_experts=experts[0],
        experts_per_token=experts[1],
        expert_intermediate_size=experts[2],
    )


_GPT_OSS = msgspec.structs.replace(
    _sparse("gpt-oss-120b", 2880, 36, (64, 8), (128, 4, 2880), 201088), head_dim=64, expert_bytes=MXFP4
)
_GLM_AIR = msgspec.structs.replace(
    _sparse("glm-4.5-air", 4096, 46, (96, 8), (128, 8, 1408), 151552),
    num_dense_layers=1,
    num_shared_experts=1,
    intermediate_size=10944,
)
_GLM = msgspec.structs.replace(
    _sparse("glm-4.5", 5120, 92, (96, 8), (160, 8, 1536), 151552),
    num_dense_layers=3,
    num_shared_experts=1,
    intermediate_size=12288,
)

# Pattern in a lower-case name whose separators are "-" -> shape. The first that is found counts.
_SHAPES: tuple[tuple[str, ServedShape], ...] = (
    (r"kimi-k2[.]?[5-7]|kimi-k2-?(thinking)", _KIMI_K25),
    (r"kimi-k2", msgspec.structs.replace(_KIMI_K25, name="kimi-k2", weight_bytes=FP8, expert_bytes=FP8)),
    (r"deepseek-(v3|r1)(?!.*distill)", _DEEPSEEK_V3),
    (r"llama-3[.]?[0-9]?-405b", _dense("llama-3.1-405b", 16384, 53248, 126, 128, 8, _LLAMA_VOCABULARY)),
    (r"llama-?3[.]?[0-9]?-70b", _dense("llama-3-70b", 8192, 28672, 80, 64, 8, _LLAMA_VOCABULARY)),
    (r"llama-?3[.]?[0-9]?-8b", _dense("llama-3-8b", 4096, 14336, 32, 32, 8, _LLAMA_VOCABULARY)),
    (r"llama-3[.]2-3b", _dense("llama-3.2-3b", 3072, 8192, 28, 24, 8, _LLAMA_VOCABULARY)),
    (r"llama-2-70b", _dense("llama-2-70b", 8192, 28672, 80, 64, 8, 32000)),
    (r"qwen3-235b-a22b", _sparse("qwen3-235b-a22b", 4096, 94, (64, 4), (128, 8, 1536), _QWEN_VOCABULARY)),
    (r"qwen3-(coder-)?30b-a3b", _sparse("qwen3-30b-a3b", 2048, 48, (32, 4), (128, 8, 768), _QWEN_VOCABULARY)),
    (r"qwen3-32b", _dense("qwen3-32b", 5120, 25600, 64, 64, 8, _QWEN_VOCABULARY)),
    (r"qwen3-14b", _dense("qwen3-14b", 5120, 17408, 40, 40, 8, _QWEN_VOCABULARY)),
    (r"qwen3-8b", _dense("qwen3-8b", 4096, 12288, 36, 32, 8, _QWEN_VOCABULARY)),
    (r"qwen3-4b", _dense("qwen3-4b", 2560, 9728, 36, 32, 8, _QWEN_VOCABULARY)),
    (r"qwen3-1[.]7b", _dense("qwen3-1.7b", 2048, 6144, 28, 16, 8, _QWEN_VOCABULARY)),
    (r"qwen3-0[.]6b", _dense("qwen3-0.6b", 1024, 3072, 28, 16, 8, _QWEN_VOCABULARY)),
    (r"gpt-oss-120b", _GPT_OSS),
    (r"gpt-oss-20b", msgspec.structs.replace(_GPT_OSS, name="gpt-oss-20b", num_layers=24, num_experts=32)),
    (r"glm-4[.][56]-air", _GLM_AIR),
    (r"glm-4[.][567]", _GLM),
    (
        r"mixtral-8x7b",
        _sparse("mixtral-8x7b", 4096, 32, (32, 8), (8, 2, 14336), 32000),
    ),
    (r"minimax-m2", _sparse("minimax-m2", 3072, 62, (48, 8), (256, 8, 1536), 200064)),
)
_WIDTHS: tuple[tuple[str, float], ...] = (
    (r"nvfp4", 0.5 + 1.0 / 16),
    (r"mxfp4", MXFP4),
    (r"w4a16|awq|gptq|int4|q4_|4bit", 0.5 + 2.0 / 128),
    (r"fp8|w8a8|int8|q8_", 1.0),
    (r"q2_k", 0.33),
)


def find_shape(model: str, quantization: str = "") -> ServedShape | None:
    """The shape that a model's name or path stands for, with the weights' width that the name or `quantization` tells.

    None for a model that is not built in: a guess would be worse than no floor.
    """
    name = re.sub(r"[\s_/]+", "-", model.strip().lower())
    shape = next((shape for pattern, shape in _SHAPES if re.search(pattern, name)), None)
    if shape is None or (shape.expert_bytes == INT4_GROUP_32 and not re.search(r"fp8|nvfp4", name)):
        return shape
    told = f"{name} {quantization.lower()}"
    width = next((width for pattern, width in _WIDTHS if re.search(pattern, told)), None)
    if width is None:
        return shape
    return msgspec.structs.replace(
        shape, expert_bytes=width, weight_bytes=shape.weight_bytes if shape.sparse and width < 1 else width
    )
