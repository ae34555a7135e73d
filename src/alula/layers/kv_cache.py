"""The storage of keys and values in slots. Does not know pages, requests, or which slot belongs to whom.

L layers, S slots, K kv heads (of this rank), D head dimension, T tokens seen.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LayerViews = tuple[Tensor, ...]


class KVCache:
    """Keys and values of all layers, zeros at first. A slot holds one token of one request."""

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_slots, num_kv_heads, head_dim)
        self.k_LSKD = _zeros(shape, dtype, device)
        self.v_LSKD = _zeros(shape, dtype, device)
        # Views of the layers, made once: indexing costs a call in every layer of every forward.
        self.k_layers, self.v_layers = self.k_LSKD.unbind(), self.v_LSKD.unbind()

    @staticmethod
    def bytes_per_slot(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize

    @property
    def num_slots(self) -> int:
        return self.k_LSKD.shape[1]

    def seen(self, slots: slice) -> tuple[LayerViews, LayerViews]:
        """Keys and values of adjacent slots as attention reads them, one view [1, K, T, D] for each layer."""
        k_views, v_views = (
            all_layers[:, slots].transpose(1, 2)[:, None] for all_layers in (self.k_LSKD, self.v_LSKD)
        )
        return k_views.unbind(), v_views.unbind()

    def clear(self, slots: Tensor) -> None:
        """Zeroes slots that may hold NaN: a masked position still takes part in a product, as 0 * value."""
        self.k_LSKD[:, slots] = 0
        self.v_LSKD[:, slots] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are mapped lazily, so a large cache costs memory only where it is written.
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
