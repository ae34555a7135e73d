"""What one forward needs besides the weights. Built by the engine, read by layers; nothing here computes.

R rows, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from alula.kernels.reference.attention import AttentionGroup
from alula.layers.kv_cache import KVCache


@dataclass(frozen=True)
class ForwardInput:
    """Rows of one forward.

    ids_R: token ids. positions_R: absolute positions. write_slots: where each row's key and value go.
    groups: who attends to what. phase: the phase that collectives are recorded under.
    """

    ids_R: Tensor
    positions_R: Tensor
    write_slots: slice | Tensor
    groups: tuple[AttentionGroup, ...]
    cache: KVCache
    phase: str

    @cached_property
    def alone(self) -> AttentionGroup | None:
        """The group of a forward that is nothing but one request whose pages lie together: the common case, in which
        queries can be made in attention's own layout."""
        group = self.groups[0] if len(self.groups) == 1 else None
        if group is None or group.views is None or group.width != self.ids_R.shape[0]:
            return None
        return group
