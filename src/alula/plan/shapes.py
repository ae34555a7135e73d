"""The sizes of an EAGLE-3 head, as far as its cost goes. Target sizes are `core.shape.ModelShape`.

Knows no weights and no conventions (boundaries, feedback): those change what a head says, not what it costs.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from alula.core.named_shapes import draft_vocabulary
from alula.core.shape import ModelShape

NUM_AUX_LAYERS = 3  # in every published head that reads intermediate layers


class HeadSizes(Protocol):
    """What is read of a head's config; `spec.head_config.HeadConfig` has it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def draft_vocab_size(self) -> int | None: ...
    @property
    def boundaries(self) -> tuple[int, ...]: ...
    @property
    def num_features(self) -> int: ...


class HeadShape(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder layer over (embedding, feature), a head on the draft vocabulary, the fusion of features before.

    num_features: width of the row that the fusion reads (three target layers side by side); 0 where a head takes the
    target's final hidden state as it is, without a fusion.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    draft_vocab_size: int
    num_features: int

    @classmethod
    def of(cls, sizes: HeadSizes) -> HeadShape:
        """The shape of a head's config."""
        return cls(
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            draft_vocab_size=sizes.draft_vocab_size or sizes.vocab_size,
            num_features=sizes.num_features if sizes.boundaries else 0,
        )


def head_like(target: ModelShape) -> HeadShape:
    """A head of the published kind for a target: one layer of its own size, reading three of its layers.

    For Llama-3.1-8B this is the shape of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, for SmolLM2-135M that of the built-in
    head.
    """
    return HeadShape(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        draft_vocab_size=draft_vocabulary(target.vocab_size),
        num_features=NUM_AUX_LAYERS * target.hidden_size,
    )
