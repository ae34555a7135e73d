"""Published large models as they are served, and the bytes that one forward must read on one GPU.

Unlike `core.shape` (what alula itself runs) this knows mixtures of experts, latent attention and quantised weights, but
only as byte counts: a floor, and how it grows with the rows of a verify. Sources: each model's config.json on the hub
(quantised widths from its quantization_config). Activations, logits and the draft's own weights are not counted.
"""

from __future__ import annotations

import msgspec

from alula.core.errors import InvalidOption
from alula.plan.experts import expected_union, largest_union

BF16, FP8 = 2.0, 1.0
INT4_GROUP_32 = 0.5 + 2.0 / 32  # four bits and a bf16 scale for 32 weights
MXFP4 = 0.5 + 1.0 / 32


class ServedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one decoder. num_experts 0: dense. kv_lora 0: grouped-query attention, else latent attention (MLA).

    weight_bytes, expert_bytes: bytes of one weight outside and inside the routed experts, scales included.
    """

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_dense_layers: int = 0  # of a mixture of experts: layers that have none
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    expert_intermediate_size: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    weight_bytes: float = BF16
    expert_bytes: float = BF16

    @property
    def sparse(self) -> bool:
        return self.num_experts > 0

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.sparse else 0

    @property
    def expert_elements(self) -> int:
        """Weights of one routed expert of one layer: gate, up and down."""
        return 3 * self.hidden_size * self.expert_intermediate_size

    def sharded_attention_elements(self) -> int:
        """Of one layer: what tensor parallelism splits."""
        heads = self.num_heads
        if not self.kv_lora:
            width = heads * self.head_dim
            return self.hidden_size * (2 * width + 2 * self.num_kv_heads * self.head_dim)
        query_inputs = self.q_lora or self.hidden_size
        query = query_inputs * heads * (self.head_dim + self.rope_dim)
        key_value = self.kv_lora * heads * (self.head_dim + self.value_dim)
        return query + key_value + heads * self.value_dim * self.hidden_size

    def replicated_attention_elements(self) -> int:
        """Of one layer: MLA's down projections, which every rank holds whole."""
        return self.hidden_size * (self.q_lora + self.kv_lora + self.rope_dim) if self.kv_lora else 0

    def kv_elements(self) -> int:
        """Cached elements of one token of one layer."""
        return self.kv_lora + self.rope_dim if self.kv_lora else 2 * self.num_kv_heads * self.head_dim


class ForwardBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU reads in one forward. experts: the expected union; experts_most: no two rows share one."""

    other_weights: float
    experts: float
    experts_most: float
    kv: float

    @property
    def total(self) -> float:
        return self.other_weights + self.experts + self.kv

    @property
    def total_most(self) -> float:
        return self.other_weights + self.experts_most + self.kv


def forward_bytes(
    shape: ServedShape, *, rows: int, tp: int = 1, batch: int = 1, kv_tokens: int = 0, kv_bytes: float = BF16
) -> ForwardBytes:
    """Bytes that one of `tp` GPUs reads in a forward of `rows` rows (all requests together).

    Expert weights are read once for the union of the rows' experts, spread evenly over the GPUs (tensor or expert
    parallel alike, on average). Raises InvalidOption for counts under one.
    """
    if rows < 1 or tp < 1 or batch < 1 or kv_tokens < 0:
        raise InvalidOption(
            f"rows {rows}, tp {tp}, batch {batch}, kv_tokens {kv_tokens}; expected 1 or more (kv 0)"
        )
    kv_share = 1 if shape.kv_lora else min(tp, shape.num_kv_heads)
    experts, most = 0.0, 0.0
    if shape.sparse:
        one = shape.num_expert_layers * shape.expert_elements * shape.expert_bytes / tp
        experts = one * expected_union(shape.num_experts, shape.experts_per_token, rows)
        most = one * largest_union(shape.num_experts, shape.experts_per_token, rows)
    return ForwardBytes(
        other_weights=_other_elements(shape, tp) * shape.weight_bytes,
        experts=experts,
        experts_most=most,
        kv=batch * kv_tokens * shape.num_layers * shape.kv_elements() * kv_bytes / kv_share,
    )


def _other_elements(shape: ServedShape, tp: int) -> float:
    attention = shape.sharded_attention_elements() / tp + shape.replicated_attention_elements()
    dense_layers = shape.num_dense_layers if shape.sparse else shape.num_layers
    mlp = dense_layers * 3 * shape.hidden_size * shape.intermediate_size / tp
    shared = shape.num_expert_layers * shape.num_shared_experts * shape.expert_elements / tp
    router = shape.num_expert_layers * shape.hidden_size * shape.num_experts
    head = shape.hidden_size * shape.vocab_size / tp
    return shape.num_layers * attention + mlp + shared + router + head
