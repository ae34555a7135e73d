"""The config of an EAGLE-3 head in any published format, turned into one form.

Formats: EAGLE (yuhuili/*: `pytorch_model.bin`), SpecForge/SGLang (`eagle_config`), speculators
(`speculators_model_type`). They count the auxiliary layers differently; here only *boundaries* exist: boundary b is the
residual stream after b decoder layers. The conventions are those of specs/eagle3.md, section 1.1.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from alula.core.errors import CheckpointError, HeadMismatch, UnsupportedModel
from alula.core.shape import ModelShape, RopeScaling, rope_scaling, rope_theta

EAGLE, SPECFORGE, SPECULATORS = "eagle", "specforge", "speculators"
_SPECFORGE_ARCHITECTURES = ("LlamaForCausalLMEagle3",)
_LAYER_TYPES = ("llama", "qwen3")

Count = Annotated[int, msgspec.Meta(ge=1)]


class HeadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An EAGLE-3 head, whatever file it came from.

    boundaries: in ascending order; empty where the head reads the target's final hidden state (after its norm).
    feedback: what a draft step hands to the next, "pre" or "post" the final norm.
    draft_vocab_size: None where the head shares the target's output head.
    """

    format: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int | None
    target_hidden_size: int
    boundaries: tuple[int, ...]
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    qk_norm: bool = False
    feedback: str = "pre"
    own_embedding: bool = False

    @property
    def num_features(self) -> int:
        """Width of the feature row that the head reads."""
        return max(1, len(self.boundaries)) * self.target_hidden_size


class _EagleFields(msgspec.Struct):
    use_aux_hidden_state: bool | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


class _LayerFields(msgspec.Struct):
    """What is read of the draft layer's part of a config, where present; for its types alone."""

    model_type: str | None = None
    hidden_act: str | None = None
    num_hidden_layers: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    vocab_size: Count | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None


class _HeadFields(_LayerFields):
    """The rest of a config, likewise."""

    architectures: list[str] | None = None
    speculators_model_type: str | None = None
    transformer_layer_config: _LayerFields | None = None
    eagle_config: _EagleFields | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    draft_vocab_size: Count | None = None
    target_hidden_size: Count | None = None
    bias: bool | None = None
    fc_norm: bool | None = None
    use_aux_norm: bool | None = None
    norm_before_fc: bool | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    embed_requires_grad: bool | None = None


def parse_head_config(config: dict[str, Any], target: ModelShape) -> HeadConfig:
    """config.json of a head -> HeadConfig, with what it leaves out taken from `target`; `settle` comes next.

    Raises UnsupportedModel for a layer that alula does not run, CheckpointError for a field of the wrong kind.
    """
    try:
        msgspec.convert(config, _HeadFields)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"head config: {error}") from error
    layer = config.get("transformer_layer_config") or config
    _refuse_variants(config, layer)
    eagle_config = config.get("eagle_config") or {}
    num_heads = _count(layer, "num_attention_heads")
    hidden_size = _count(layer, "hidden_size")
    uses_aux = eagle_config.get("use_aux_hidden_state") is not False
    draft_vocab = config.get("draft_vocab_size")
    return HeadConfig(
        format=_format(config),
        hidden_size=hidden_size,
        intermediate_size=_count(layer, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=int(layer.get("num_key_value_heads") or num_heads),
        head_dim=int(layer.get("head_dim") or hidden_size // num_heads),
        vocab_size=int(layer.get("vocab_size") or target.vocab_size),
        draft_vocab_size=int(draft_vocab) if draft_vocab else None,
        target_hidden_size=int(config.get("target_hidden_size") or hidden_size),
        boundaries=_boundaries(config, eagle_config, target) if uses_aux else (),
        rms_norm_eps=float(layer.get("rms_norm_eps") or 1e-6),
        rope_theta=rope_theta(layer),
        rope_scaling=rope_scaling(layer),
        fc_bias=bool(config.get("bias")),
        fc_norm=bool(config.get("fc_norm") or config.get("use_aux_norm")),
        norm_before_fc=bool(config.get("norm_before_fc")),
        norm_before_residual=bool(config.get("norm_before_residual")),
        qk_norm=layer.get("model_type") == "qwen3",
        feedback="post" if config.get("norm_output") else "pre",
        own_embedding=bool(config.get("embed_requires_grad")),  # speculators: trained, so not the target's
    )


def settle(
    config: HeadConfig, boundaries: tuple[int, ...] | None, feedback: str | None, target: ModelShape
) -> HeadConfig:
    """The caller's word wins over the file's. Raises HeadMismatch where the result belongs to another target, or
    CheckpointError where it contradicts itself."""
    if boundaries is not None:
        config = msgspec.structs.replace(config, boundaries=boundaries)
    if feedback is not None:
        config = msgspec.structs.replace(config, feedback=feedback)
    return _checked(config, target)


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """What every published implementation captures when nothing is said: an early, a middle and a late layer."""
    return (2, num_layers // 2, num_layers - 3)


def _format(config: dict[str, Any]) -> str:
    if config.get("speculators_model_type"):
        return SPECULATORS
    names = config.get("architectures") or []
    return SPECFORGE if config.get("eagle_config") or any(n in _SPECFORGE_ARCHITECTURES for n in names) else EAGLE


def _boundaries(config: dict[str, Any], eagle_config: dict[str, Any], target: ModelShape) -> tuple[int, ...]:
    inputs = config.get("eagle_aux_hidden_state_layer_ids")  # of 0-based layers (speculators, vLLM)
    outputs = eagle_config.get("eagle_aux_hidden_state_layer_ids")  # of 0-based layers (SpecForge, SGLang)
    if outputs and not config.get("speculators_model_type"):
        # The output of layer L cannot be meant: there is none.
        return tuple(outputs) if target.num_layers in outputs else tuple(i + 1 for i in outputs)
    return tuple(inputs) if inputs else default_boundaries(target.num_layers)


def _refuse_variants(config: dict[str, Any], layer: dict[str, Any]) -> None:
    algorithm = config.get("speculators_model_type") or "eagle3"
    if algorithm != "eagle3":
        raise UnsupportedModel(f"head config: speculators_model_type {algorithm!r}; alula drafts with 'eagle3'")
    if (layer.get("num_hidden_layers") or 1) != 1:
        raise UnsupportedModel(
            f"head config: {layer['num_hidden_layers']} layers; alula runs EAGLE-3 heads of one layer"
        )
    kind = layer.get("model_type") or "llama"
    names = " ".join(config.get("architectures") or [])
    if kind not in _LAYER_TYPES or "Deepseek" in names or layer.get("kv_lora_rank"):
        raise UnsupportedModel(
            f"head config: a draft layer of type {kind!r} ({names}); alula runs {' and '.join(_LAYER_TYPES)} layers"
        )
    if (layer.get("hidden_act") or "silu") != "silu":
        raise UnsupportedModel(f"head config: hidden_act {layer['hidden_act']!r}; expected 'silu'")
    if (config.get("fc_norm") or config.get("use_aux_norm")) and config.get("norm_before_fc"):
        raise CheckpointError("head config: fc_norm and norm_before_fc are both set; they exclude each other")


def _checked(config: HeadConfig, target: ModelShape) -> HeadConfig:
    if config.target_hidden_size != target.hidden_size:
        raise HeadMismatch(
            f"the head reads features of hidden size {config.target_hidden_size}; "
            f"this target's is {target.hidden_size}: it was made for another model"
        )
    if config.vocab_size != target.vocab_size:
        raise HeadMismatch(
            f"the head's target vocabulary has {config.vocab_size} tokens; this target's has {target.vocab_size}: "
            "it was made for another model"
        )
    if not config.boundaries and config.hidden_size != target.hidden_size:
        raise HeadMismatch(
            f"the head takes the target's final hidden state without a projection, so its hidden size "
            f"{config.hidden_size} must equal the target's {target.hidden_size}"
        )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CheckpointError(
            f"head config: {config.num_heads} attention heads of {config.head_dim}, {config.num_kv_heads} kv heads; "
            "expected a multiple of the kv heads, of an even size"
        )
    bad = [b for b in config.boundaries if not 0 <= b <= target.num_layers]
    if bad or list(config.boundaries) != sorted(set(config.boundaries)):
        raise HeadMismatch(
            f"the head reads boundaries {list(config.boundaries)}; this target has {target.num_layers} layers, so "
            f"they must ascend within 0..{target.num_layers}"
        )
    return config


def _count(layer: dict[str, Any], name: str) -> int:
    value = layer.get(name)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"head config: {name} is {value!r}; expected a positive whole number")
    return value
