"""The attention block: fused QKV product, rotary positions, KV write, attention over slots, output product.

Heads are sharded over the ranks. R rows, X block input, N query heads and K kv heads of this rank, D head dimension.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from alula.comm.group import Group
from alula.core.errors import InvalidOption
from alula.kernels.reference.attention import AttentionGroup, paged_attention
from alula.kernels.reference.fused import Deferred, Norm, Rope, Stream, rotate_and_write
from alula.layers.block_input import BlockInput
from alula.layers.forward_input import ForwardInput
from alula.layers.kernels import Kernels
from alula.layers.linear import ColumnParallelLinear, Part, RowParallelLinear
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
        kernels: Kernels,
    ) -> None:
        check_heads(shape.num_heads, shape.num_kv_heads, group.size)
        query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        parts = (
            Part(f"{prefix}.q_proj", query_size),
            Part(f"{prefix}.k_proj", kv_size),
            Part(f"{prefix}.v_proj", kv_size),
        )
        self._qkv = ColumnParallelLinear(reader, parts, shape.num_inputs, group, kernels, shape.bias)
        output = Part(f"{prefix}.o_proj", shape.hidden_size)
        self._output = RowParallelLinear(reader, output, query_size, group, kernels, shape.bias)
        self._head_norms = None
        if shape.qk_norm_eps is not None:
            eps = shape.qk_norm_eps
            self._head_norms = tuple(
                RMSNorm(reader, f"{prefix}.{name}_norm", shape.head_dim, eps, kernels) for name in ("q", "k")
            )
        self._num_heads = shape.num_heads // group.size
        self._num_kv_heads = shape.num_kv_heads // group.size
        self._head_dim = shape.head_dim
        self._layer = layer
        self._rows = kernels.rows

    def __call__(self, x_RX: Tensor, rotary: tuple[Tensor, Tensor], forward: ForwardInput) -> Tensor:
        cache, layer = forward.cache, self._layer
        qkv_RAD = self._normed(self._qkv(x_RX).view(x_RX.shape[0], -1, self._head_dim))
        k_SKD, v_SKD = cache.k_layers[layer], cache.v_layers[layer]
        alone = forward.alone
        if alone is not None:
            return self._output(self._attend_alone(alone, qkv_RAD, rotary, forward), forward.phase)
        q_RND = self._rows.rotate_and_write(qkv_RAD, rotary, k_SKD, v_SKD, forward.write_slots)
        return self._output(paged_attention(q_RND, k_SKD, v_SKD, forward.groups, layer), forward.phase)

    def block(self, x: Deferred, onto_RH: Tensor, rope: Rope, next_norm: Norm, forward: BlockInput) -> Stream:
        """`onto` plus this block of x as a stream, ready for `next_norm`: the device-resident form of a call."""
        k_SKD, v_SKD = forward.cache.k_layers[self._layer], forward.cache.v_layers[self._layer]
        products = forward.products
        if self._head_norms is None:
            q_RND = products.qkv_linear(x, *self._qkv.parameters, rope, k_SKD, v_SKD, forward.slots_R)
        else:
            qkv_RAD = products.linear(x, *self._qkv.parameters).unflatten(-1, (-1, self._head_dim))
            q_RND = rotate_and_write(self._normed(qkv_RAD), rope, k_SKD, v_SKD, forward.slots_R)
        attended_RE = forward.kernels.attention(forward.rows.width)(q_RND, k_SKD, v_SKD, forward.rows)
        return self._output.block(Deferred(attended_RE), onto_RH, next_norm, forward)

    def _attend_alone(
        self, group: AttentionGroup, qkv_RAD: Tensor, rotary: tuple[Tensor, Tensor], forward: ForwardInput
    ) -> Tensor:
        """As `paged_attention` for one request, without moving queries and results from layout to layout."""
        assert group.views is not None
        cache, layer = forward.cache, self._layer
        num_rows = qkv_RAD.shape[0] * (self._num_heads // self._num_kv_heads)
        folded_rows = num_rows if group.mask is None else group.mask.shape[2]
        q_1KXD = self._rows.rotate_and_write(
            qkv_RAD, rotary, cache.k_layers[layer], cache.v_layers[layer], forward.write_slots, folded_rows
        )
        out_1KXD = torch.nn.functional.scaled_dot_product_attention(
            q_1KXD, group.views[0][layer], group.views[1][layer], attn_mask=group.mask
        )
        return self._rows.unfold(out_1KXD, qkv_RAD.shape[0], self._num_heads)

    def _normed(self, qkv_RAD: Tensor) -> Tensor:
        if self._head_norms is None:
            return qkv_RAD
        parts = qkv_RAD.split((self._num_heads, self._num_kv_heads, self._num_kv_heads), dim=1)
        query, key = (
            norm(part.flatten(0, 1)).view_as(part) for norm, part in zip(self._head_norms, parts, strict=False)
        )
        return torch.cat((query, key, parts[2]), dim=1)


def check_heads(num_heads: int, num_kv_heads: int, num_ranks: int) -> None:
    """Raises InvalidOption where heads do not divide over the ranks, naming the degrees that would do."""
    if num_heads % num_ranks == 0 and num_kv_heads % num_ranks == 0:
        return
    possible = [n for n in range(1, num_kv_heads + 1) if num_heads % n == 0 and num_kv_heads % n == 0]
    raise InvalidOption(
        f"--tp {num_ranks}: {num_heads} heads and {num_kv_heads} kv heads do not divide over {num_ranks} ranks; "
        f"possible: {', '.join(map(str, possible))}"
    )
