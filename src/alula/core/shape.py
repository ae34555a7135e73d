"""The shape of a target model, parsed from a Hugging Face config.json.

Source: the config of transformers' LlamaForCausalLM and MistralForCausalLM. Unknown rope scalings, sliding windows
and activations are refused by name, not guessed.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from alula.core.errors import CheckpointError, UnsupportedModel

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary frequencies other than the plain geometric series.

    kind: "linear" (positions divided by `factor`) or "llama3" (Llama 3.1's smooth band between the two wavelengths).
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 1.0
    original_max_position: int = 0


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a dense decoder of the Llama family. Counts are whole numbers, eps and theta plain floats."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def num_query_groups(self) -> int:
        """Query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    def possible_tp(self) -> tuple[int, ...]:
        """Every tensor-parallel degree that divides heads, kv heads, MLP width evenly."""
        limit = self.num_kv_heads
        return tuple(
            n
            for n in range(1, limit + 1)
            if self.num_kv_heads % n == 0 and self.num_heads % n == 0 and self.intermediate_size % n == 0
        )


def parse_shape(config: dict[str, Any]) -> ModelShape:
    """config.json as a dict -> ModelShape. Raises UnsupportedModel or CheckpointError with the field's name."""
    architecture = _architecture(config)
    _refuse_variants(config)
    num_heads = _positive(config, "num_attention_heads")
    hidden_size = _positive(config, "hidden_size")
    shape = ModelShape(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_positive(config, "num_key_value_heads", num_heads),
        head_dim=_positive(config, "head_dim", hidden_size // num_heads),
        vocab_size=_positive(config, "vocab_size"),
        max_position=_positive(config, "max_position_embeddings", 2048),
        rms_norm_eps=_positive_number(config, "rms_norm_eps", 1e-6),
        rope_theta=rope_theta(config),
        rope_scaling=rope_scaling(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
    if shape.num_heads % shape.num_kv_heads:
        raise CheckpointError(
            f"config.json: {shape.num_heads} attention heads do not divide into {shape.num_kv_heads} kv heads; "
            "expected a multiple"
        )
    if shape.head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {shape.head_dim}; rotary positions need an even one")
    return shape


def rope_theta(config: dict[str, Any]) -> float:
    """transformers 5 writes rope_theta inside `rope_parameters`, earlier ones at the top level; default 10000."""
    parameters = _mapping(config, "rope_parameters")
    return _positive_number(parameters if parameters.get("rope_theta") else config, "rope_theta", 10000.0)


def rope_scaling(config: dict[str, Any]) -> RopeScaling | None:
    """The scaling of either spelling (`rope_scaling` or `rope_parameters`), or None for plain rope."""
    raw = _mapping(config, "rope_scaling") or _mapping(config, "rope_parameters")
    if not raw:
        return None
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=_scaling_number(raw, "factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=_scaling_number(raw, "factor"),
            low_frequency_factor=_scaling_number(raw, "low_freq_factor"),
            high_frequency_factor=_scaling_number(raw, "high_freq_factor"),
            original_max_position=int(_scaling_number(raw, "original_max_position_embeddings")),
        )
    raise UnsupportedModel(f"config.json: rope scaling {kind!r}; alula knows 'default', 'linear' and 'llama3'")


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or []
    name = names if isinstance(names, str) else names[0] if names else None
    if name not in SUPPORTED_ARCHITECTURES:
        found = repr(name) if name else f"model_type {config.get('model_type')!r} without an architecture"
        raise UnsupportedModel(
            f"config.json: {found} is not supported; alula runs {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return str(name)


def _refuse_variants(config: dict[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"config.json: hidden_act {activation!r}; alula's Llama family has 'silu'")
    window = config.get("sliding_window")
    if window and window < int(config.get("max_position_embeddings") or 0):
        raise UnsupportedModel(
            f"config.json: sliding_window {window}; alula runs Mistral's dense form (sliding_window null)"
        )
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(
            f"config.json: weights quantised by {method!r}; alula reads float checkpoints and GGUF files"
        )


def _scaling_number(raw: dict[str, Any], name: str) -> float:
    value = raw.get(name)
    if not _is_number(value) or value <= 0:
        raise CheckpointError(f"config.json: {name} of the rope scaling is {value!r}; expected a positive number")
    return float(value)


def _positive(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """A whole number from 1. What is absent, null or 0 is the default, where there is one."""
    value = config.get(name) or default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r}; expected a positive whole number")
    return value


def _positive_number(config: dict[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if not _is_number(value) or not 0.0 < value < float("inf"):
        raise CheckpointError(f"config.json: {name} is {value!r}; expected a positive number")
    return float(value)


def _mapping(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f'config.json: {name} is {value!r}; expected an object, such as {{"rope_type": ...}}')
    return value


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
