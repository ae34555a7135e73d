"""Token embedding and output head, sharded over the vocabulary.

R rows, H hidden, V vocabulary (possibly padded to a multiple of the ranks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.comm.group import Group
from alula.kernels.reference.fused import Deferred
from alula.layers.block_input import BlockInput
from alula.layers.kernels import Kernels, build_linear, constants
from alula.layers.linear import shard
from alula.layers.weights import WeightReader


class VocabParallelEmbedding:
    """Each rank holds a range of rows; ids outside it give zeros, and the sum over ranks is the embedding."""

    def __init__(self, reader: WeightReader, name: str, vocab_size: int, hidden_size: int, group: Group) -> None:
        self._start, self._stop = shard(vocab_size, group)
        self.weight_VH = reader.take(f"{name}.weight", (vocab_size, hidden_size), (0, self._start, self._stop))
        self._group = group

    def __call__(self, ids_R: Tensor, phase: str) -> Tensor:
        if self._group.size == 1:
            return self.weight_VH.index_select(0, ids_R)
        inside_R = (ids_R >= self._start) & (ids_R < self._stop)
        local_RH = self.weight_VH.index_select(0, (ids_R - self._start).clamp(0, len(self.weight_VH) - 1))
        return self._group.all_reduce(local_RH * inside_R[:, None], phase)

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds every row, so that a kernel may look ids up for itself."""
        return self._group.size == 1

    def lookup(self, ids_R: Tensor, phase: str) -> tuple[Tensor, Tensor]:
        """(table, its rows) that hold the embeddings of ids, for kernels that look up for themselves."""
        if self.is_whole:
            return self.weight_VH, ids_R
        return self(ids_R, phase), torch.arange(len(ids_R), device=ids_R.device)


class VocabParallelHead:
    """Logits over the whole vocabulary: each rank multiplies its range, then all gather."""

    def __init__(self, weight_VH: Tensor, vocab_size: int, group: Group, kernels: Kernels) -> None:
        self._product = build_linear(weight_VH, None, kernels.linear)
        self._vocab_size = vocab_size
        self._group = group

    @classmethod
    def read(
        cls,
        reader: WeightReader,
        name: str,
        vocab_size: int,
        hidden_size: int,
        group: Group,
        kernels: Kernels,
    ) -> VocabParallelHead:
        weight_VH = reader.take(f"{name}.weight", (vocab_size, hidden_size), (0, *shard(vocab_size, group)))
        return cls(weight_VH, vocab_size, group, kernels)

    @property
    def weight_VH(self) -> Tensor:
        """The weight as it lies in memory."""
        return constants(self._product)[0]

    def block(self, normed: Deferred, forward: BlockInput) -> Tensor:
        """Logits of a stream behind its last norm: the device-resident form of a call."""
        logits_RV = self._group.all_gather(forward.products.linear(normed, self.weight_VH), forward.phase)
        return logits_RV[:, : self._vocab_size]

    def __call__(self, hidden_RH: Tensor, phase: str) -> Tensor:
        logits_RV = self._group.all_gather(self._product(hidden_RH), phase)
        return logits_RV[:, : self._vocab_size]
