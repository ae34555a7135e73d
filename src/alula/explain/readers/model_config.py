"""A model's config.json: a target's sizes, or a head's, and which layers a head reads.

Reads only what evidence needs; the strict parser for models that alula runs is `core.shape`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from alula.explain.readers.found import Place
from alula.profile.quantities import Quantity

Q = Quantity
_LAYER_KEYS = (
    "eagle_aux_hidden_state_layer_ids",
    "aux_hidden_state_layer_ids",
    "target_layer_ids",
    "eagle_layer_ids",
)
_SIZES: tuple[tuple[Quantity, tuple[str, ...]], ...] = (
    (Q.HIDDEN_SIZE, ("hidden_size", "n_embd")),
    (Q.NUM_LAYERS, ("num_hidden_layers", "n_layer")),
    (Q.NUM_EXPERTS, ("n_routed_experts", "num_experts", "num_local_experts")),
    (Q.EXPERTS_PER_TOKEN, ("num_experts_per_tok", "num_experts_per_token", "moe_topk")),
    (Q.VOCAB_SIZE, ("vocab_size",)),
)


def add_model_config(place: Place, config: Mapping[str, Any]) -> bool:
    """The facts of a config; False for an object that is none."""
    inner = config.get("text_config") or config.get("transformer_layer_config") or config.get("llm_config")
    sizes = {**config, **inner} if isinstance(inner, dict) else dict(config)
    architectures = config.get("architectures")
    names = [one for one in architectures if isinstance(one, str)] if isinstance(architectures, list) else []
    known = bool(names) or ("model_type" in config and "hidden_size" in sizes) or "speculators_model_type" in config
    if not known:
        return False
    architecture = names[0] if names else str(config.get("speculators_model_type") or config.get("model_type"))
    if _is_head(config, architecture):
        _head(place, config, sizes, architecture)
        return True
    place.add(Q.ARCHITECTURE, architecture)
    for quantity, keys in _SIZES:
        place.add(quantity, next((_whole(sizes[key]) for key in keys if key in sizes), None))
    quantization = config.get("quantization_config") or sizes.get("quantization_config")
    if isinstance(quantization, dict):
        place.add(
            Q.QUANTIZATION, str(quantization.get("quant_method") or quantization.get("quant_algo") or "unknown")
        )
    return True


def _is_head(config: Mapping[str, Any], architecture: str) -> bool:
    return (
        re.search(r"eagle|medusa|dflash|dspark|mtp\b|speculator", architecture, re.I) is not None
        or "draft_vocab_size" in config
        or "eagle_config" in config
        or "speculators_model_type" in config
    )


def _head(place: Place, config: Mapping[str, Any], sizes: Mapping[str, Any], architecture: str) -> None:
    place.add(Q.DRAFT_ARCHITECTURE, architecture)
    place.add(Q.DRAFT_VOCAB_SIZE, _whole(config.get("draft_vocab_size")))
    nested = config.get("eagle_config")
    places = (config, nested if isinstance(nested, dict) else {})
    found = next((one[key] for one in places for key in _LAYER_KEYS if isinstance(one.get(key), list)), None)
    if found is not None:
        place.add(Q.AUX_LAYERS, ",".join(str(one) for one in found[:32]))
    elif re.search(r"eagle-?3|eagle3", f"{architecture} {config.get('speculators_model_type', '')}", re.I):
        place.add(Q.AUX_LAYERS_GUESSED, True)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12 else None
