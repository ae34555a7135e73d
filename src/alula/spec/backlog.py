"""Features that the draft has not read yet: those of a request's last committed positions, from plain decoding.

Belongs to one request. Knows neither the tokens nor the draft.

W rows, F target features.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows that are kept at most; then the draft reads them in one pass. A bound for memory: reading them later costs the
# same, and nothing at all where the request ends before it drafts again.
CATCH_UP_TOKENS = 64


class Backlog:
    """Rows in the order of their positions, the last of which is the last committed one."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self.num_rows = 0

    def add(self, rows_WF: Tensor) -> None:
        """Features of the next committed positions. A view keeps alive what it is a view of."""
        self._pieces.append(rows_WF)
        self.num_rows += rows_WF.shape[0]

    def take(self, count: int) -> Tensor:
        """The first `count` rows, which are no longer kept."""
        rows_WF = self._pieces[0] if len(self._pieces) == 1 else torch.cat(self._pieces)
        self.clear()
        if count < rows_WF.shape[0]:
            self.add(rows_WF[count:].clone())
        return rows_WF[:count]

    def clear(self) -> None:
        self._pieces, self.num_rows = [], 0
