"""Bytes that a forward must move and operations that it must do: target, draft, extend and a whole cycle.

Counted: every weight once a forward (the output head too, of the embedding only the rows that are looked up), the
cached keys and values of every request read once a layer, those of the new rows written. Not counted: activations,
features and logits, which fit in a GPU's caches, and tables of positions or pages. So this is a floor: no program can
move less, and one that moves more shows it. Rows of one forward share the weights; requests share no keys.
"""

from __future__ import annotations

import msgspec

from alula.core.errors import InvalidOption
from alula.core.shape import ModelShape
from alula.plan.shapes import HeadShape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one or several forwards cost at least. Sums with `+`."""

    weight_bytes: int = 0
    embedding_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    flops: int = 0

    @property
    def read_bytes(self) -> int:
        return self.weight_bytes + self.embedding_bytes + self.kv_read_bytes

    @property
    def num_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.kv_written_bytes

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class CycleWork(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle with k drafts, by phase, under the names of the phases."""

    draft: Work
    verify: Work
    extend: Work

    @property
    def total(self) -> Work:
        return self.draft + self.verify + self.extend


class _Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder layer. num_inputs: width of the rows that attention projects (2 hidden sizes in a head)."""

    num_inputs: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def matrix_elements(self) -> int:
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.num_inputs * (query + 2 * kv) + query * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def kv_elements(self) -> int:
        """Keys and values of one token."""
        return 2 * self.num_kv_heads * self.head_dim

    def attention_flops(self, width: int, kv_tokens: int) -> int:
        """Scores and weighted sums of one request: row j sees the cache, the rows before it and itself."""
        seen = width * kv_tokens + width * (width + 1) // 2
        return 4 * self.num_heads * self.head_dim * seen


def target_forward(
    shape: ModelShape, *, kv_tokens: int, batch: int = 1, width: int = 1, dtype: str = "bfloat16"
) -> Work:
    """One forward of the target over `batch` requests of `width` rows, each behind `kv_tokens` cached tokens.

    Width 1 is a plain step, k + 1 the verify of k drafts; every row gets logits.
    """
    _check(kv_tokens, batch=batch, width=width)
    size, rows, layer = _bytes_of(dtype), batch * width, _target_layer(shape)
    matrices = shape.num_layers * layer.matrix_elements + shape.hidden_size * shape.vocab_size
    vectors = (2 * shape.num_layers + 1) * shape.hidden_size + shape.num_layers * _bias_elements(shape)
    kv_bytes = shape.num_layers * layer.kv_elements * size
    return Work(
        weight_bytes=(matrices + vectors) * size,
        embedding_bytes=rows * shape.hidden_size * size,
        kv_read_bytes=batch * kv_tokens * kv_bytes,
        kv_written_bytes=rows * kv_bytes,
        flops=2 * matrices * rows + shape.num_layers * batch * layer.attention_flops(width, kv_tokens),
    )


def draft_forward(head: HeadShape, *, kv_tokens: int, batch: int = 1, dtype: str = "bfloat16") -> Work:
    """One step of the draft's chain: one row a request, its feature the last step's feedback, so without the fusion."""
    return _head_forward(head, kv_tokens, batch, 1, dtype, num_fused=0)


def extend_forward(
    head: HeadShape, *, kv_tokens: int, batch: int = 1, width: int = 1, dtype: str = "bfloat16"
) -> Work:
    """The draft's pass over `width` committed positions of each request; the last row alone gets logits."""
    return _head_forward(head, kv_tokens, batch, width, dtype, num_fused=head.num_features)


def cycle(
    shape: ModelShape, head: HeadShape, *, steps: int, kv_tokens: int, batch: int = 1, dtype: str = "bfloat16"
) -> CycleWork:
    """A cycle of k = `steps` drafts: k - 1 draft forwards (the last extend gave the first draft), verify, extend.

    The extend is counted over all k + 1 rows, which is the most that it can be.
    """
    _check(kv_tokens, batch=batch, steps=steps)
    draft = Work()
    for step in range(steps - 1):
        draft += draft_forward(head, kv_tokens=kv_tokens + step, batch=batch, dtype=dtype)
    return CycleWork(
        draft=draft,
        verify=target_forward(shape, kv_tokens=kv_tokens, batch=batch, width=steps + 1, dtype=dtype),
        extend=extend_forward(head, kv_tokens=kv_tokens, batch=batch, width=steps + 1, dtype=dtype),
    )


def floor_ms(num_bytes: int, bandwidth_bytes_per_s: float) -> float:
    """Milliseconds in which a memory of that bandwidth moves the bytes."""
    if not bandwidth_bytes_per_s > 0:
        raise InvalidOption(f"a bandwidth of {bandwidth_bytes_per_s} bytes/s; expected more than 0")
    return 1000.0 * num_bytes / bandwidth_bytes_per_s


def _head_forward(head: HeadShape, kv_tokens: int, batch: int, width: int, dtype: str, num_fused: int) -> Work:
    _check(kv_tokens, batch=batch, width=width)
    size, rows, layer = _bytes_of(dtype), batch * width, _head_layer(head)
    fusion = num_fused * head.hidden_size
    output = head.draft_vocab_size * head.hidden_size
    vectors = 4 * head.hidden_size  # norms: embedding, feature, before the MLP, final
    kv_bytes = layer.kv_elements * size
    return Work(
        weight_bytes=(fusion + layer.matrix_elements + output + vectors) * size,
        embedding_bytes=rows * head.hidden_size * size,
        kv_read_bytes=batch * kv_tokens * kv_bytes,
        kv_written_bytes=rows * kv_bytes,
        flops=2 * rows * (fusion + layer.matrix_elements)
        + 2 * batch * output
        + batch * layer.attention_flops(width, kv_tokens),
    )


def _target_layer(shape: ModelShape) -> _Layer:
    return _Layer(
        num_inputs=shape.hidden_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )


def _head_layer(head: HeadShape) -> _Layer:
    return _Layer(
        num_inputs=2 * head.hidden_size,
        hidden_size=head.hidden_size,
        intermediate_size=head.intermediate_size,
        num_heads=head.num_heads,
        num_kv_heads=head.num_kv_heads,
        head_dim=head.head_dim,
    )


def _bias_elements(shape: ModelShape) -> int:
    """Of one layer."""
    attention = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim + shape.hidden_size
    mlp = 2 * shape.intermediate_size + shape.hidden_size
    return attention * shape.attention_bias + mlp * shape.mlp_bias


def _bytes_of(dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise InvalidOption(f"dtype {dtype!r}; the cost of {', '.join(DTYPE_BYTES)} is known")
    return DTYPE_BYTES[dtype]


def _check(kv_tokens: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InvalidOption(f"{name} is {count}; expected 1 or more")
    if kv_tokens < 0:
        raise InvalidOption(f"kv_tokens is {kv_tokens}; expected 0 or more")
