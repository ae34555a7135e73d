"""Sizes and number of a forward's all-reduces under tensor parallelism.

Megatron's split: one sum after attention and one after the MLP of each layer, each over rows x hidden elements, and one
after a vocabulary-parallel embedding. The gather of logits is another operation and not counted.
"""

from __future__ import annotations


def allreduce_bytes(hidden_size: int, rows: int, element_bytes: int = 2) -> int:
    """Bytes of one all-reduce over `rows` rows."""
    return rows * hidden_size * element_bytes


def num_allreduces(num_layers: int) -> int:
    """All-reduces of one forward: two a layer and the embedding's."""
    return 2 * num_layers + 1
