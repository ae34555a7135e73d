"""Which cache slots hold the positions of one request. Does not know who owns the pages or when they are free.

Slot 0 (the whole page 0) is the dummy: never given to a request, read only behind a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

DUMMY_SLOT = 0


class SlotTable:
    """Position p lies in slot pages[p // page_tokens] * page_tokens + p % page_tokens.

    While the pages lie side by side, ranges come back as slices, so that attention reads keys without a copy.
    """

    def __init__(self, page_tokens: int, pages: list[int] | None = None) -> None:
        self.page_tokens = page_tokens
        self.pages: list[int] = []
        self._run = 0  # pages from the first on that lie side by side
        self.extend(pages or [])

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return len(self.pages) * self.page_tokens

    @property
    def _adjacent(self) -> bool:
        return self._run == len(self.pages)

    def extend(self, pages: list[int]) -> None:
        for page in pages:
            if self._adjacent and (not self.pages or page == self.pages[-1] + 1):
                self._run += 1
            self.pages.append(page)

    def trim(self, num_pages: int) -> list[int]:
        """Gives back the pages beyond the first `num_pages`."""
        freed = self.pages[num_pages:]
        del self.pages[num_pages:]
        self._run = min(self._run, len(self.pages))
        return freed

    def slots(self, start: int, stop: int) -> slice | Tensor:
        """Slots of positions start..stop-1, all of which must be backed by pages."""
        if stop > self.capacity:
            raise IndexError(
                f"position {stop - 1} is beyond the {self.capacity} positions of {len(self.pages)} pages"
            )
        if self._adjacent:
            base = self.pages[0] * self.page_tokens if self.pages else 0
            return slice(base + start, base + stop)
        positions = torch.arange(start, stop)
        pages = torch.tensor(self.pages)
        return pages[positions // self.page_tokens] * self.page_tokens + positions % self.page_tokens

    def padded(self, count: int, num_slots: int) -> slice | Tensor:
        """Slots of positions 0..count-1 where those beyond the pages may be anything: they are masked.

        num_slots: size of the cache. A slice where it stays inside, else a tensor that ends in the dummy slot.
        """
        if self._adjacent and self.pages and self.pages[0] * self.page_tokens + count <= num_slots:
            base = self.pages[0] * self.page_tokens
            return slice(base, base + count)
        known = as_tensor(self.slots(0, min(count, self.capacity)))
        return torch.nn.functional.pad(known, (0, count - len(known)), value=DUMMY_SLOT)


def as_tensor(slots: slice | Tensor) -> Tensor:
    return torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
