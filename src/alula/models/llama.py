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
from alula.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from alula.layers.forward_input import ForwardInput
from alula.layers.linear import LinearChoice
from alula.layers.mlp import GatedMLP
from alula.layers.norm import RMSNorm
from alula.layers.rope import RotaryPositions
from alula.layers.weights import WeightReader

# Written by some exporters; derived from the config, so not a parameter.
IGNORED_TENSORS = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class TargetOutput:
    """hidden_RH: after the final norm. features_RF: the residual stream at the asked boundaries, side by side."""

    hidden_RH: Tensor
    features_RF: Tensor | None


class DecoderLayer:
    def __init__(
        self, reader: WeightReader, index: int, shape: ModelShape, group: Group, choice: LinearChoice
    ) -> None:
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
        self._attention_norm = RMSNorm(reader, f"{prefix}.input_layernorm", shape.hidden_size, eps)
        self._attention = Attention(reader, f"{prefix}.self_attn", attention, index, group, choice)
        self._mlp_norm = RMSNorm(reader, f"{prefix}.post_attention_layernorm", shape.hidden_size, eps)
        self._mlp = GatedMLP(
            reader, f"{prefix}.mlp", shape.hidden_size, shape.intermediate_size, group, choice, shape.mlp_bias
        )

    def __call__(self, x_RH: Tensor, rotary: tuple[Tensor, Tensor], forward: ForwardInput) -> Tensor:
        x_RH = x_RH + self._attention(self._attention_norm(x_RH), rotary, forward)
        return x_RH + self._mlp(self._mlp_norm(x_RH), forward.phase)


class LlamaModel:
    """The target. `embedding` is public because an EAGLE-3 head without its own shares it."""

    def __init__(
        self,
        reader: WeightReader,
        shape: ModelShape,
        context_tokens: int,
        group: Group,
        choice: LinearChoice,
    ) -> None:
        self.shape = shape
        vocab_size, hidden_size = shape.vocab_size, shape.hidden_size
        self.embedding = VocabParallelEmbedding(reader, "model.embed_tokens", vocab_size, hidden_size, group)
        self._rotary = RotaryPositions(
            shape.head_dim, shape.rope_theta, shape.rope_scaling, context_tokens, reader.dtype, reader.device
        )
        self._layers = [DecoderLayer(reader, i, shape, group, choice) for i in range(shape.num_layers)]
        self._norm = RMSNorm(reader, "model.norm", hidden_size, shape.rms_norm_eps)
        if shape.tied_embeddings:
            self.head = VocabParallelHead(self.embedding.weight_VH, vocab_size, group, choice)
            reader.finish((*IGNORED_TENSORS, "lm_head.weight"))
        else:
            self.head = VocabParallelHead.read(reader, "lm_head", vocab_size, hidden_size, group, choice)
            reader.finish(IGNORED_TENSORS)

    def __call__(self, forward: ForwardInput, boundaries: tuple[int, ...] = ()) -> TargetOutput:
        """One forward. Writes the rows' keys and values into their slots.

        boundaries: boundary b is the residual stream after b layers (0 the embedding, L before the final norm).
        """
        x_RH = self.embedding(forward.ids_R, forward.phase)
        rotary = self._rotary(forward.positions_R)
        kept = {0: x_RH} if 0 in boundaries else {}
        for index, layer in enumerate(self._layers, 1):
            x_RH = layer(x_RH, rotary, forward)
            if index in boundaries:
                kept[index] = x_RH
        features_RF = torch.cat([kept[b] for b in boundaries], dim=-1) if boundaries else None
        return TargetOutput(self._norm(x_RH), features_RF)

    def logits(self, hidden_RH: Tensor, phase: str) -> Tensor:
        return self.head(hidden_RH, phase)
