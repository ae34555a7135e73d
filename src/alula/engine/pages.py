"""Hands out pages of the KV cache. Knows nothing of requests or tensors.

Page 0 is the dummy and never handed out. Pages that follow each other are preferred, because attention then reads a
request's keys without a copy.
"""

from __future__ import annotations

from alula.core.errors import OutOfPages


class PageAllocator:
    """`num_pages` counts the dummy. Every page is either free or held by exactly one caller."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise OutOfPages(
                f"the KV cache has {num_pages} pages; expected at least 2: give it more memory (--kv-memory)"
            )
        self._is_free = bytearray([0] + [1] * (num_pages - 1))
        self._num_free = num_pages - 1

    @property
    def num_free(self) -> int:
        return self._num_free

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` pages, or None (and nothing changes) where fewer are free. after: the caller's last page."""
        if count > self._num_free:
            return None
        start = self._start() if after is None or not self._free_at(after + 1) else after + 1
        taken: list[int] = []
        page = start
        while len(taken) < count:
            if self._free_at(page):
                self._is_free[page] = 0
                taken.append(page)
            page = page + 1 if page + 1 < len(self._is_free) else 1
        self._num_free -= count
        return taken

    def release(self, pages: list[int]) -> None:
        for page in pages:
            if page <= 0 or self._is_free[page]:
                raise ValueError(f"page {page} is released twice or was never handed out")
            self._is_free[page] = 1
        self._num_free += len(pages)

    def _free_at(self, page: int) -> bool:
        return page < len(self._is_free) and bool(self._is_free[page])

    def _start(self) -> int:
        """For a new request: the first page of the longest free run, half way in where something lies before it.

        The half leaves room for the request on its left to grow in place.
        """
        best_start, best_length, page = 1, 0, 1
        while (page := self._is_free.find(1, page)) != -1:
            end = self._is_free.find(0, page)
            end = len(self._is_free) if end == -1 else end
            if end - page > best_length:
                best_start, best_length = page, end - page
            page = end
        return best_start if best_start == 1 else best_start + best_length // 2
