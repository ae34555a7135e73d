"""The attention block: fused QKV product, rotary positions, KV write, attention over slots, output product.

Heads are sharded over the ranks. R rows, X block input, N query heads and K kv heads of this rank, D head dimension.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from alula.comm.group import Group
from alula.core.errors import InvalidOption
from alula.kernels.reference.attention import paged_attention
from alula.kernels.reference.rope import apply_rope
from alula.layers.forward_input import ForwardInput
from alula.layers.linear import ColumnParallelLinear, LinearChoice, Part, RowParallelLinear
from alula.layers.norm import RMSNorm
from alula.layers.weights import WeightReader


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one attention block, over all ranks. `num_inputs` differs from `hidden_size` in an EAGLE-3 layer."""

    num_inputs: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool = False
    qk_norm_eps: float | None = None  # RMS norm over each query and key head before rope (Qwen 3)


class Attention:
    """One block; `layer` is its index in the KV cache."""

    def __init__(
        self,
        reader: WeightReader,
        prefix: str,
        shape: AttentionShape,
        layer: int,
        group: Group,
        choice: LinearChoice,
    ) -> None:
        check_heads(shape.num_heads, shape.num_kv_heads, group.size)
        query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        parts = (
            Part(f"{prefix}.q_proj", query_size),
            Part(f"{prefix}.k_proj", kv_size),
            Part(f"{prefix}.v_proj", kv_size),
        )
        self._qkv = ColumnParallelLinear(reader, parts, shape.num_inputs, group, choice, shape.bias)
        output = Part(f"{prefix}.o_proj", shape.hidden_size)
        self._output = RowParallelLinear(reader, output, query_size, group, choice, shape.bias)
        self._head_norms = None
        if shape.qk_norm_eps is not None:
            eps = shape.qk_norm_eps
            self._head_norms = tuple(
                RMSNorm(reader, f"{prefix}.{name}_norm", shape.head_dim, eps) for name in ("q", "k")
            )
        self._num_heads = shape.num_heads // group.size
        self._num_kv_heads = shape.num_kv_heads // group.size
        self._head_dim = shape.head_dim
        self._layer = layer

    def __call__(self, x_RX: Tensor, rotary: tuple[Tensor, Tensor], forward: ForwardInput) -> Tensor:
        qkv_RAD = self._qkv(x_RX).view(x_RX.shape[0], -1, self._head_dim)
        num_rotated = self._num_heads + self._num_kv_heads
        rotated_RAD = apply_rope(self._normed(qkv_RAD[:, :num_rotated]), *rotary)
        q_RND, k_RKD = rotated_RAD[:, : self._num_heads], rotated_RAD[:, self._num_heads :]
        cache = forward.cache
        cache.write(self._layer, forward.write_slots, k_RKD, qkv_RAD[:, num_rotated:])
        out_RX = paged_attention(q_RND, cache.k_LSKD[self._layer], cache.v_LSKD[self._layer], forward.groups)
        return self._output(out_RX, forward.phase)

    def _normed(self, qk_RAD: Tensor) -> Tensor:
        if self._head_norms is None:
            return qk_RAD
        query_norm, key_norm = self._head_norms
        query, key = qk_RAD[:, : self._num_heads], qk_RAD[:, self._num_heads :]
        return torch.cat((query_norm(query), key_norm(key)), dim=1)


def check_heads(num_heads: int, num_kv_heads: int, num_ranks: int) -> None:
    """Raises InvalidOption where heads do not divide over the ranks, naming the degrees that would do."""
    if num_heads % num_ranks == 0 and num_kv_heads % num_ranks == 0:
        return
    possible = [n for n in range(1, num_kv_heads + 1) if num_heads % n == 0 and num_kv_heads % n == 0]
    raise InvalidOption(
        f"--tp {num_ranks}: {num_heads} heads and {num_kv_heads} kv heads do not divide over {num_ranks} ranks; "
        f"possible: {', '.join(map(str, possible))}"
    )
