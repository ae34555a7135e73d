"""The EAGLE-3 draft model: feature fusion, one decoder layer over (embedding, feature), a head on a small vocabulary.

Source: EAGLE-3 (arXiv 2503.01840) and specs/eagle3.md section 1. Position i pairs the feature of token i with the
embedding of token i+1 and predicts token i+2. Knows nothing of requests, acceptance or sampling.

R rows, H draft hidden, F target features, D draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from alula.comm.group import Group
from alula.core.errors import CheckpointError
from alula.kernels.reference.fused import Deferred, Stream
from alula.layers.attention import Attention, AttentionShape
from alula.layers.block_input import BlockInput
from alula.layers.block_kernels import Products
from alula.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from alula.layers.forward_input import ForwardInput
from alula.layers.kernels import Kernels, LinearKernel, build_linear, constants
from alula.layers.mlp import GatedMLP
from alula.layers.norm import RMSNorm
from alula.layers.rope import RotaryPositions
from alula.layers.weights import TensorSource, WeightReader
from alula.models.llama import LlamaModel
from alula.spec.head_config import HeadConfig
from alula.spec.head_source import IGNORED_TENSORS, hot_token_ids


@dataclass(frozen=True)
class DraftOutput:
    """feedback_RH: what the next draft step takes as its feature. normed_RH: what the head multiplies."""

    feedback_RH: Tensor
    normed_RH: Tensor


class FeatureFusion:
    """Features of the target -> the head's own hidden size, once a committed token."""

    def __init__(self, reader: WeightReader, config: HeadConfig, kernels: Kernels) -> None:
        self._slice_size = config.target_hidden_size
        self._slice_norms: list[RMSNorm] = []
        self._whole_norm: RMSNorm | None = None
        self._projection: LinearKernel | None = None
        if not config.boundaries:
            return
        if config.fc_norm:
            names = [f"fc_norm.{i}" for i in range(len(config.boundaries))]
            self._slice_norms = [RMSNorm(reader, n, self._slice_size, config.rms_norm_eps, kernels) for n in names]
        if config.norm_before_fc:
            self._whole_norm = RMSNorm(reader, "input_norm", config.num_features, config.rms_norm_eps, kernels)
        weight = reader.take("fc.weight", (config.hidden_size, config.num_features))
        bias = reader.take("fc.bias", (config.hidden_size,)) if config.fc_bias else None
        self._projection = build_linear(weight, bias, kernels.linear)

    def block(self, features_RF: Tensor, products: Products) -> Tensor:
        """The device-resident form of a call."""
        if self._projection is None:
            return features_RF
        return products.linear(Deferred(self._normed(features_RF)), *constants(self._projection))

    def __call__(self, features_RF: Tensor) -> Tensor:
        if self._projection is None:
            return features_RF
        return self._projection(self._normed(features_RF))

    def _normed(self, features_RF: Tensor) -> Tensor:
        if self._slice_norms:
            slices = features_RF.split(self._slice_size, dim=-1)
            normed = [norm(part) for norm, part in zip(self._slice_norms, slices, strict=True)]
            features_RF = torch.cat(normed, dim=-1)
        if self._whole_norm is not None:
            features_RF = self._whole_norm(features_RF)
        return features_RF


class DraftModel:
    """One head. `group` shards its layer and output head; a size-1 group holds it whole."""

    def __init__(
        self,
        source: TensorSource,
        config: HeadConfig,
        target: LlamaModel,
        context_tokens: int,
        group: Group,
        target_group: Group,
        reader: WeightReader,
        kernels: Kernels,
    ) -> None:
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fuse = FeatureFusion(reader, config, kernels)
        self._embedding = _embedding(reader, config, target, group)
        self._embedding_norm = RMSNorm(reader, "layers.0.input_layernorm", size, eps, kernels)
        self._hidden_norm = RMSNorm(reader, "layers.0.hidden_norm", size, eps, kernels)
        self._attention = Attention(reader, "layers.0.self_attn", _attention_shape(config), 0, group, kernels)
        self._mlp_norm = RMSNorm(reader, "layers.0.post_attention_layernorm", size, eps, kernels)
        self._mlp = GatedMLP(reader, "layers.0.mlp", size, config.intermediate_size, group, kernels)
        self._norm = RMSNorm(reader, "norm", size, eps, kernels)
        self._head, self.hot_D = _head(source, reader, config, target, group, kernels)
        # Sized by the engine's context: a head's own max_position_embeddings is often only its training length.
        self._rotary = RotaryPositions(
            config.head_dim, config.rope_theta, config.rope_scaling, context_tokens, reader.dtype, reader.device
        )
        self.hot_D = self.hot_D.to(reader.device)
        self.num_kv_heads = config.num_kv_heads // group.size
        self.placement = "sharded" if group.size == target_group.size else "replicated"
        reader.finish((*IGNORED_TENSORS, "embed_tokens.weight"))

    def __call__(self, forward: ForwardInput, feature_RH: Tensor) -> DraftOutput:
        """`forward.ids_R` are the *successors* of the positions; `feature_RH` a fused feature or a draft's feedback."""
        embedded_RH = self._embedding_norm(self._embedding(forward.ids_R, forward.phase))
        normed_RH = self._hidden_norm(feature_RH)
        residual_RH = normed_RH if self.config.norm_before_residual else feature_RH
        rotary = self._rotary(forward.positions_R)
        attended_RH = self._attention(torch.cat((embedded_RH, normed_RH), dim=-1), rotary, forward)
        x_RH, mlp_input_RH = self._mlp_norm.after_adding(residual_RH, attended_RH)
        y_RH, out_RH = self._norm.after_adding(x_RH, self._mlp(mlp_input_RH, forward.phase))
        return DraftOutput(out_RH if self.config.feedback == "post" else y_RH, out_RH)

    def block(self, forward: BlockInput, feature_RH: Tensor) -> Stream:
        """The device-resident form of a call -> the stream behind the layer, ready for the final norm."""
        table_VH, rows_R = self._embedding.lookup(forward.ids_R, forward.phase)
        both_RX = forward.kernels.stream.join_norms(
            rows_R,
            table_VH,
            self._embedding_norm.norm,
            feature_RH,
            self._hidden_norm.norm,
        )
        size = feature_RH.shape[1]
        residual_RH = both_RX[:, size:].contiguous() if self.config.norm_before_residual else feature_RH
        rope = self._rotary.at(forward.positions_R)
        middle = self._attention.block(Deferred(both_RX), residual_RH, rope, self._mlp_norm.norm, forward)
        return self._mlp.block(middle, self._norm.norm, forward)

    def block_feedback(self, stream: Stream, forward: BlockInput) -> Tensor:
        """What the next draft step takes as its feature, [R, H]."""
        return forward.kernels.stream.finish(stream) if self.config.feedback == "post" else stream.x_RH

    def block_logits(self, normed: Deferred, forward: BlockInput) -> Tensor:
        """[R, D] over the draft vocabulary."""
        return self._head.block(normed, forward)

    def logits(self, normed_RH: Tensor, phase: str) -> Tensor:
        """[R, D] over the draft vocabulary; `hot_D` has the target id of each column."""
        return self._head(normed_RH, phase)


def tensor_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a head of this config, for random weights. Source: specs/eagle3.md section 1.8."""
    size, width = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = "layers.0"
    return {
        "fc.weight": (size, config.num_features),
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
        "lm_head.weight": (config.draft_vocab_size or config.vocab_size, size),
    }


def _attention_shape(config: HeadConfig) -> AttentionShape:
    return AttentionShape(
        num_inputs=2 * config.hidden_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        qk_norm_eps=config.rms_norm_eps if config.qk_norm else None,
    )


def _embedding(
    reader: WeightReader, config: HeadConfig, target: LlamaModel, group: Group
) -> VocabParallelEmbedding:
    """The file's own embedding where the head asks for it or has another hidden size, else the target's."""
    same_size = config.hidden_size == target.shape.hidden_size
    if same_size and not config.own_embedding:
        return target.embedding
    if not reader.has("embed_tokens.weight"):
        reason = (
            "its config says that it was trained (embed_requires_grad)"
            if same_size
            else f"its hidden size {config.hidden_size} differs from the target's {target.shape.hidden_size}"
        )
        raise CheckpointError(
            f"the head needs an embedding of its own, since {reason}: tensor embed_tokens.weight is missing"
        )
    return VocabParallelEmbedding(reader, "embed_tokens", config.vocab_size, config.hidden_size, group)


def _head(
    source: TensorSource,
    reader: WeightReader,
    config: HeadConfig,
    target: LlamaModel,
    group: Group,
    kernels: Kernels,
) -> tuple[VocabParallelHead, Tensor]:
    shares = config.draft_vocab_size is None and config.hidden_size == target.shape.hidden_size
    if shares and not reader.has("lm_head.weight"):
        return target.head, torch.arange(config.vocab_size)
    size = config.draft_vocab_size or config.vocab_size
    head = VocabParallelHead.read(reader, "lm_head", size, config.hidden_size, group, kernels)
    return head, hot_token_ids(source, size, config.vocab_size)
