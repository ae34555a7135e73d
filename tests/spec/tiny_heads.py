"""Heads of every published form for the tiny targets of tiny_models.py, and what loads them without an engine.

`HeadForm` says what a head has; it writes the config and draws the tensors. Norm weights are random too, since ones
would hide a forgotten product.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import tiny_models
from alula.comm.group import single_group
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.shape import ModelShape, parse_shape
from alula.engine.setup import EngineSpec, Parts, load_parts
from alula.layers.geometry import Geometry
from alula.layers.kernels import reference_kernels
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import SlotTable
from alula.layers.weights import WeightReader
from alula.models.checkpoint import open_checkpoint
from alula.models.llama import LlamaModel
from alula.models.source import resolve_source
from alula.spec.draft_model import DraftModel
from alula.spec.drafting import Drafter
from alula.spec.head_loading import HeadPlace, load_head

CONTEXT_TOKENS = 128
PAGE_TOKENS = 16


@dataclass(frozen=True)
class HeadForm:
    """A head for the target of a family. `hot`: target ids of its vocabulary; None: all, and no d2t."""

    family: str = "plain"
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 48
    boundaries: tuple[int, ...] = (1, 2, 3)
    hot: tuple[int, ...] | None = tuple(range(1, 301, 3))
    own_lm_head: bool = True
    embedding: bool = False
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    qk_norm: bool = False

    @property
    def num_features(self) -> int:
        return len(self.boundaries) * target_shape(self.family).hidden_size


def but(form: HeadForm | None = None, **changes: Any) -> HeadForm:
    return replace(form or HeadForm(), **changes)


@functools.cache
def target_shape(family: str = "plain") -> ModelShape:
    return parse_shape(json.loads((tiny_models.checkpoint(family) / "config.json").read_text()))


def config_of(form: HeadForm) -> dict[str, Any]:
    """SpecForge's config, as far as the form departs from the defaults."""
    shape = target_shape(form.family)
    eagle_config: dict[str, Any] = {"use_aux_hidden_state": bool(form.boundaries)}
    if form.boundaries:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = [b - 1 for b in form.boundaries]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "qwen3" if form.qk_norm else "llama",
        "eagle_config": eagle_config,
        "hidden_size": form.hidden_size,
        "intermediate_size": form.intermediate_size,
        "num_attention_heads": form.num_heads,
        "num_key_value_heads": form.num_kv_heads,
        "head_dim": form.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": _draft_vocab_size(form),
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "max_position_embeddings": 32,
        "hidden_act": "silu",
    }
    if form.hidden_size != shape.hidden_size:
        config["target_hidden_size"] = shape.hidden_size
    if form.fc_bias:
        config["bias"] = True
    for name in ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output"):
        if getattr(form, name):
            config[name] = True
    return config


def tensors_of(form: HeadForm, seed: int = 5) -> dict[str, Tensor]:
    """Random weights under the names `layers.0.*`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (1.0 if "norm" in name else 0.0) + 0.15 * torch.randn(shape, generator=generator)
        for name, shape in _shapes(form).items()
    } | _vocabulary(form)


def write(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    prefix: str = "",
    layer: str = "layers.0",
    pickled: bool = False,
) -> Path:
    """A head's folder. `prefix` and `layer` choose among the published spellings of the tensors' names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    renamed = {prefix + name.replace("layers.0.", f"{layer}."): tensor for name, tensor in tensors.items()}
    if pickled:
        torch.save(renamed, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in renamed.items()}, folder / "model.safetensors")
    return folder


def write_form(folder: Path, form: HeadForm, seed: int = 5) -> Path:
    return write(folder, config_of(form), tensors_of(form, seed))


def load_target(family: str = "plain") -> LlamaModel:
    """In fp32; the same object each time."""
    return _load_target(family)


@functools.cache
def _load_target(family: str) -> LlamaModel:
    source = resolve_source(str(tiny_models.checkpoint(family)))
    reader = WeightReader(open_checkpoint(source), torch.float32, torch.device("cpu"))
    with torch.no_grad():
        return LlamaModel(reader, target_shape(family), CONTEXT_TOKENS, single_group(), reference_kernels())


def load(
    folder: Path | None, family: str = "plain", dtype: torch.dtype = torch.float32, **speculation: Any
) -> DraftModel:
    """The head, as the engine loads it on one rank."""
    choice = reference_kernels()
    place = HeadPlace(single_group(), dtype, torch.device("cpu"), choice, "auto", CONTEXT_TOKENS, 0)
    return load_head(folder, SpeculationConfig(**speculation), load_target(family), place)


def drafter(model: DraftModel, num_pages: int = CONTEXT_TOKENS // PAGE_TOKENS) -> tuple[Drafter, SlotTable]:
    """The draft over a cache of its own, and a table that owns all its pages but the dummy."""
    head = model.config
    num_slots = (num_pages + 1) * PAGE_TOKENS
    cache = KVCache(1, num_slots, head.num_kv_heads, head.head_dim, torch.float32, torch.device("cpu"))
    geometry = Geometry(cache, head.num_heads // head.num_kv_heads, torch.device("cpu"))
    return Drafter(model, geometry), SlotTable(PAGE_TOKENS, list(range(1, num_pages + 1)))


def target_geometry(family: str = "plain") -> Geometry:
    """A cache for the target of a family."""
    shape = target_shape(family)
    cache = KVCache(
        shape.num_layers,
        CONTEXT_TOKENS + PAGE_TOKENS,
        shape.num_kv_heads,
        shape.head_dim,
        torch.float32,
        torch.device("cpu"),
    )
    return Geometry(cache, shape.num_query_groups, torch.device("cpu"))


def parts(family: str = "plain", head: Path | None = None, **config: Any) -> Parts:
    """A tiny engine's parts in fp32. `speculation` may be given as a dict."""
    speculation = SpeculationConfig(**config.pop("speculation", {}))
    defaults: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_memory_bytes": 2**23, "max_batch": 16}
    engine_config = EngineConfig(speculation=speculation, **{**defaults, **config})
    source = resolve_source(str(tiny_models.checkpoint(family)))
    return load_parts(EngineSpec(source=source, head=head, config=engine_config), single_group())


def _draft_vocab_size(form: HeadForm) -> int | None:
    if not form.own_lm_head:
        return None
    return target_shape(form.family).vocab_size if form.hot is None else len(form.hot)


def _shapes(form: HeadForm) -> dict[str, tuple[int, ...]]:
    shape = target_shape(form.family)
    size, width = form.hidden_size, form.intermediate_size
    query, kv = form.num_heads * form.head_dim, form.num_kv_heads * form.head_dim
    layer = "layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.input_layernorm.weight": (size,),
        f"{layer}.hidden_norm.weight": (size,),
        f"{layer}.post_attention_layernorm.weight": (size,),
        f"{layer}.self_attn.q_proj.weight": (query, 2 * size),
        f"{layer}.self_attn.k_proj.weight": (kv, 2 * size),
        f"{layer}.self_attn.v_proj.weight": (kv, 2 * size),
        f"{layer}.self_attn.o_proj.weight": (size, query),
        f"{layer}.mlp.gate_proj.weight": (width, size),
        f"{layer}.mlp.up_proj.weight": (width, size),
        f"{layer}.mlp.down_proj.weight": (size, width),
        "norm.weight": (size,),
    }
    if form.boundaries:
        shapes["fc.weight"] = (size, form.num_features)
    if form.fc_bias:
        shapes["fc.bias"] = (size,)
    if form.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (shape.hidden_size,) for i in range(len(form.boundaries))}
    if form.norm_before_fc:
        shapes["input_norm.weight"] = (form.num_features,)
    if form.qk_norm:
        shapes |= {f"{layer}.self_attn.{name}_norm.weight": (form.head_dim,) for name in ("q", "k")}
    if form.own_lm_head:
        shapes["lm_head.weight"] = (_draft_vocab_size(form) or 0, size)
    if form.embedding:
        shapes["embed_tokens.weight"] = (shape.vocab_size, size)
    return shapes


def _vocabulary(form: HeadForm) -> dict[str, Tensor]:
    if form.hot is None or not form.own_lm_head:
        return {}
    hot = torch.tensor(form.hot)
    mask = torch.zeros(target_shape(form.family).vocab_size, dtype=torch.bool)
    mask[hot] = True
    return {"d2t": hot - torch.arange(len(form.hot)), "t2d": mask}


class Formulas:
    """Section 1 of specs/eagle3.md, formula by formula: no cache, one head at a time, written from the text alone."""

    def __init__(self, tensors: dict[str, Tensor], form: HeadForm, embedding: Tensor) -> None:
        self._tensors = tensors
        self._form = form
        self._embedding = embedding

    def fuse(self, features: Tensor) -> Tensor:
        """g of section 1.2."""
        form = self._form
        if not form.boundaries:
            return features
        if form.fc_norm:
            parts = features.chunk(len(form.boundaries), -1)
            features = torch.cat([self._rms(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        if form.norm_before_fc:
            features = self._rms(features, "input_norm")
        fused = self._linear(features, "fc")
        return fused + self._tensors["fc.bias"] if form.fc_bias else fused

    def layer(self, successors: list[int], u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, y, out) of section 1.3 over positions 0..T-1."""
        form, layer = self._form, "layers.0"
        hidden = self._rms(u, f"{layer}.hidden_norm")
        a = torch.cat((self._rms(self._embedding[successors], f"{layer}.input_layernorm"), hidden), -1)
        heads = []
        for head in range(form.num_heads):
            kv_head = head * form.num_kv_heads // form.num_heads
            q = self._rotated(self._linear(a, f"{layer}.self_attn.q_proj"), head, "q")
            k = self._rotated(self._linear(a, f"{layer}.self_attn.k_proj"), kv_head, "k")
            v = self._columns(self._linear(a, f"{layer}.self_attn.v_proj"), kv_head)
            scores = q @ k.T / math.sqrt(form.head_dim)
            causal = torch.ones_like(scores).tril().bool()
            heads.append(scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v)
        r = hidden if form.norm_before_residual else u
        x = r + self._linear(torch.cat(heads, -1), f"{layer}.self_attn.o_proj")
        p = self._rms(x, f"{layer}.post_attention_layernorm")
        gate = self._linear(p, f"{layer}.mlp.gate_proj")
        inner = gate * gate.sigmoid() * self._linear(p, f"{layer}.mlp.up_proj")
        y = x + self._linear(inner, f"{layer}.mlp.down_proj")
        out = self._rms(y, "norm")
        return self._linear(out, "lm_head"), y, out

    def _rms(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self._tensors[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self._tensors[f"{name}.weight"].T

    def _columns(self, x: Tensor, head: int) -> Tensor:
        size = self._form.head_dim
        return x[:, head * size : (head + 1) * size]

    def _rotated(self, x: Tensor, head: int, kind: str) -> Tensor:
        """One head's rows, normed where the layer is Qwen 3's, rotated by their positions."""
        x = self._columns(x, head)
        if self._form.qk_norm:
            x = self._rms(x, f"layers.0.self_attn.{kind}_norm")
        size = self._form.head_dim
        half = size // 2
        angles = torch.arange(x.shape[0])[:, None] * 5000.0 ** (-torch.arange(half) * 2.0 / size)
        first, second = x[:, :half], x[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
