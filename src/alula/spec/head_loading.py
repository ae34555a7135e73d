"""From a head's folder (or none) to a draft model for one target: trained, random or adversarial weights.

Knows nothing of the engine. Sharding: "auto" shards the head over the ranks where its heads divide, else each rank
holds it whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from alula.comm.group import Group, single_group
from alula.core.config import SpeculationConfig
from alula.core.named_shapes import draft_vocabulary
from alula.core.shape import ModelShape
from alula.layers.attention import check_heads
from alula.layers.kernels import Kernels
from alula.layers.weights import TensorSource, WeightReader
from alula.models.llama import LlamaModel
from alula.spec.draft_model import DraftModel, tensor_shapes
from alula.spec.head_config import SPECFORGE, HeadConfig, default_boundaries, parse_head_config, settle
from alula.spec.head_source import NegatedHeadSource, RandomSource, open_head, read_head_config


@dataclass(frozen=True)
class HeadPlace:
    """Where a head goes: the target's group, dtype, device and kernels, and the wish for sharding."""

    group: Group
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    placement: str
    context_tokens: int
    seed: int


def load_head(
    path: Path | None, speculation: SpeculationConfig, target: LlamaModel, place: HeadPlace
) -> DraftModel:
    """Raises ModelNotFound, CheckpointError, UnsupportedModel or HeadMismatch, naming what does not fit."""
    config, source = _open(path, speculation, target.shape, place.seed)
    config = settle(config, speculation.aux_boundaries, speculation.feedback, target.shape)
    group = _group(config, place)
    reader = WeightReader(source, place.dtype, place.device)
    return DraftModel(source, config, target, place.context_tokens, group, place.group, reader, place.kernels)


def _open(
    path: Path | None, speculation: SpeculationConfig, shape: ModelShape, seed: int
) -> tuple[HeadConfig, TensorSource]:
    if path is None:
        config = _config_like(shape)
        source: TensorSource = RandomSource(tensor_shapes(config), _even_vocabulary(config), seed)
    else:
        config = parse_head_config(read_head_config(path), shape)
        source = open_head(path)
    if speculation.head == "random" and path is not None:
        vocabulary = {name: source.read(name) for name in source.names() & {"d2t", "t2d"}}
        shapes = {name: source.shape(name) for name in source.names() - vocabulary.keys()}
        return config, RandomSource(shapes, vocabulary, seed)
    if speculation.head == "adversarial":
        return config, NegatedHeadSource(source)
    return config, source


def _group(config: HeadConfig, place: HeadPlace) -> Group:
    if place.placement == "replicated" or place.group.size == 1:
        return place.group if place.group.size == 1 else single_group()
    divides = config.num_heads % place.group.size == 0 and config.num_kv_heads % place.group.size == 0
    if place.placement == "auto" and not divides:
        return single_group()
    check_heads(config.num_heads, config.num_kv_heads, place.group.size)
    return place.group


def _config_like(shape: ModelShape) -> HeadConfig:
    """A head of the published kind, one layer like the target's, for random weights where no head exists.

    Its sizes are those of `plan.shapes.head_like`.
    """
    return HeadConfig(
        format=SPECFORGE,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        draft_vocab_size=draft_vocabulary(shape.vocab_size),
        target_hidden_size=shape.hidden_size,
        boundaries=_some_boundaries(shape.num_layers),
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
    )


def _some_boundaries(num_layers: int) -> tuple[int, ...]:
    """The published choice where the target is deep enough, else three boundaries that it has."""
    wanted = default_boundaries(num_layers)
    if list(wanted) == sorted(set(wanted)):
        return wanted
    return tuple(sorted({0, num_layers // 2, num_layers}))


def _even_vocabulary(config: HeadConfig) -> dict[str, Tensor]:
    """A draft vocabulary spread evenly over the target's."""
    size = config.draft_vocab_size or config.vocab_size
    draft_ids = torch.arange(size)
    return {"d2t": draft_ids * config.vocab_size // size - draft_ids}
