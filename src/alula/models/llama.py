"""The Llama family: Llama 2 and 3.x, SmolLM2, Mistral's dense form. Knows no requests, pages or sampling.

R rows, H hidden, F features (one H for each boundary), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from alula.comm.group import Group
from alula.core.shape import ModelShape
from alula.layers.attention import Attention, AttentionShape
from alula.layers.block_input import BlockInput
from alula.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from alula.layers.forward_input import ForwardInput
from alula.layers.kernels import Kernels
from alula.layers.mlp import GatedMLP
from alula.layers.norm import RMSNorm
from alula.layers.rope import RotaryPositions
from alula.layers.stream import Deferred, Norm, Rope, Stream
from alula.layers.weights import WeightReader

# Written by some exporters; derived from the config, so not a parameter.
IGNORED_TENSORS = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class TargetOutput:
    """hidden_RH: after the final norm. features_RF: the residual stream at the asked boundaries, side by side."""

    hidden_RH: Tensor
    features_RF: Tensor | None


@dataclass(frozen=True)
class BlockOutput:
    """stream: behind the last layer, ready for the final norm. features: [R, H] at each asked boundary."""

    stream: Stream
    features: tuple[Tensor, ...]


class DecoderLayer:
    def __init__(self, reader: WeightReader, index: int, shape: ModelShape, group: Group, kernels: Kernels) -> None:
        prefix = f"model.layers.{index}"
        attention = AttentionShape(
            num_inputs=shape.hidden_size,
            hidden_size=shape.hidden_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            bias=shape.attention_bias,
        )
        eps = shape.rms_norm_eps
        self._attention_norm = RMSNorm(reader, f"{prefix}.input_layernorm", shape.hidden_size, eps, kernels)
        self._attention = Attention(reader, f"{prefix}.self_attn", attention, index, group, kernels)
        self._mlp_norm = RMSNorm(reader, f"{prefix}.post_attention_layernorm", shape.hidden_size, eps, kernels)
        self._mlp = GatedMLP(
            reader, f"{prefix}.mlp", shape.hidden_size, shape.intermediate_size, group, kernels, shape.mlp_bias
        )

    def __call__(
        self, x_RH: Tensor, delta_RH: Tensor | None, rotary: tuple[Tensor, Tensor], forward: ForwardInput
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The residual stream comes as a sum still to be made, since the norm after it makes it in the same pass.

        Returns the stream at the layer's entrance, and the two summands of the stream behind the layer.
        """
        if delta_RH is None:
            entered_RH, normed_RH = x_RH, self._attention_norm(x_RH)
        else:
            entered_RH, normed_RH = self._attention_norm.after_adding(x_RH, delta_RH)
        attended_RH = self._attention(normed_RH, rotary, forward)
        middle_RH, normed_RH = self._mlp_norm.after_adding(entered_RH, attended_RH)
        return entered_RH, middle_RH, self._mlp(normed_RH, forward.phase)

    @property
    def attention_norm(self) -> Norm:
        return self._attention_norm.norm

    def block(self, stream: Stream, rope: Rope, next_norm: Norm, forward: BlockInput) -> Stream:
        """The device-resident form of a call: the stream comes ready for this layer's first norm."""
        middle = self._attention.block(stream.normed, stream.x_RH, rope, self._mlp_norm.norm, forward)
        return self._mlp.block(middle, next_norm, forward)


class LlamaModel:
    """The target. `embedding` is public because an EAGLE-3 head without its own shares it."""

    def __init__(
        self,
        reader: WeightReader,
        shape: ModelShape,
        context_tokens: int,
        group: Group,
        kernels: Kernels,
    ) -> None:
        self.shape = shape
        vocab_size, hidden_size = shape.vocab_size, shape.hidden_size
        self.embedding = VocabParallelEmbedding(reader, "model.embed_tokens", vocab_size, hidden_size, group)
        self._rotary = RotaryPositions(
            shape.head_dim, shape.rope_theta, shape.rope_scaling, context_tokens, reader.dtype, reader.device
        )
        self._layers = [DecoderLayer(reader, i, shape, group, kernels) for i in range(shape.num_layers)]
        self._norm = RMSNorm(reader, "model.norm", hidden_size, shape.rms_norm_eps, kernels)
        if shape.tied_embeddings:
            self.head = VocabParallelHead(self.embedding.weight_VH, vocab_size, group, kernels)
            reader.finish((*IGNORED_TENSORS, "lm_head.weight"))
        else:
            self.head = VocabParallelHead.read(reader, "lm_head", vocab_size, hidden_size, group, kernels)
            reader.finish(IGNORED_TENSORS)

    def __call__(self, forward: ForwardInput, boundaries: tuple[int, ...] = ()) -> TargetOutput:
        """One forward. Writes the rows' keys and values into their slots.

        boundaries: boundary b is the residual stream after b layers (0 the embedding, L before the final norm).
        """
        x_RH = self.embedding(forward.ids_R, forward.phase)
        rotary = self._rotary(forward.positions_R)
        delta_RH: Tensor | None = None
        kept: dict[int, Tensor] = {}
        for boundary, layer in enumerate(self._layers):
            entered_RH, x_RH, delta_RH = layer(x_RH, delta_RH, rotary, forward)
            if boundary in boundaries:
                kept[boundary] = entered_RH
        assert delta_RH is not None  # a model has layers
        kept[len(self._layers)], hidden_RH = self._norm.after_adding(x_RH, delta_RH)
        features_RF = torch.cat([kept[b] for b in boundaries], dim=-1) if boundaries else None
        return TargetOutput(hidden_RH, features_RF)

    @property
    def first_norm(self) -> Norm:
        """The norm that reads the embedding."""
        return self._layers[0].attention_norm

    def block(
        self, forward: BlockInput, boundaries: tuple[int, ...] = (), stream: Stream | None = None
    ) -> BlockOutput:
        """One forward without the host: what a graph captures. Boundaries as in a call; stream: the embedding of the
        rows, where the caller has it."""
        norms = [layer.attention_norm for layer in self._layers] + [self._norm.norm]
        if stream is None:
            stream = self._embedded(forward)
        rope = self._rotary.at(forward.positions_R)
        kept: dict[int, Tensor] = {}
        for boundary, layer in enumerate(self._layers):
            kept[boundary] = stream.x_RH
            stream = layer.block(stream, rope, norms[boundary + 1], forward)
        kept[len(self._layers)] = stream.x_RH
        return BlockOutput(stream, tuple(kept[b] for b in boundaries))

    def _embedded(self, forward: BlockInput) -> Stream:
        kernels = forward.kernels.stream
        if self.embedding.is_whole:
            stream: Stream = kernels.embed(forward.ids_R, self.embedding.weight_VH, self.first_norm)
        else:
            stream = kernels.enter(self.embedding(forward.ids_R, forward.phase), self.first_norm)
        return stream

    def block_logits(self, normed: Deferred, forward: BlockInput) -> Tensor:
        """[R, V] in the model's dtype."""
        return self.head.block(normed, forward)

    def logits(self, hidden_RH: Tensor, phase: str) -> Tensor:
        return self.head(hidden_RH, phase)
