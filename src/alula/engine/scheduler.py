"""Which requests take part in the next cycle, with how many rows. Knows no tensors.

Running requests take part in order of arrival: those that decode with their root and their drafts, prompts in chunks of
a budget. Where pages run out, the request that arrived last gives its pages back and starts over later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from alula.core.config import EngineConfig
from alula.engine.pages import PageAllocator
from alula.engine.request import ERROR, Request


@dataclass(frozen=True)
class Scheduled:
    """A request's part in one cycle: `num_known` tokens from position `num_kv` on, then `num_drafts` drafts.

    Tokens are sampled only where the known rows reach the last known token (`samples`).
    """

    request: Request
    num_known: int
    num_drafts: int
    samples: bool
    is_prefill: bool


class Scheduler:
    """Owns the pages and the two queues."""

    def __init__(self, config: EngineConfig, num_pages: int, context_tokens: int) -> None:
        self.pages = PageAllocator(num_pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._config = config
        self._num_pages = num_pages
        self._context_tokens = context_tokens

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def schedule(self, speculate: bool = True) -> list[Scheduled]:
        """The next cycle's parts, without drafts unless `speculate`. Pages for all their rows are held on return."""
        budget = self._config.chunk_tokens
        parts: list[Scheduled] = []
        self._admit()
        for request in list(self.running):
            if request not in self.running:  # preempted for an earlier one
                continue
            part = self._part(request, budget, speculate)
            if part is None or not self._hold(request, part):
                continue
            parts.append(part)
            # Rows of decoding requests do not count: else many of them could keep a prompt from being read at all, and
            # where a prompt is cut into chunks would depend on who decodes beside it.
            budget -= part.num_known if part.is_prefill else 0
        return [part for part in parts if part.request in self.running]

    def remove(self, request: Request) -> None:
        """Takes a finished or aborted request out and frees its pages."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.pages.release(request.table.trim(0))

    def trim(self, request: Request) -> None:
        """Frees whole pages beyond the committed tokens and the root."""
        needed = -(-(request.num_kv + 1) // request.table.page_tokens)
        self.pages.release(request.table.trim(needed))

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._config.max_batch:
            request = self.waiting[0]
            first_chunk = min(request.num_pending, self._config.chunk_tokens)
            if -(-first_chunk // request.table.page_tokens) > self.pages.num_free and self.running:
                return
            self.running.append(self.waiting.popleft())

    def _part(self, request: Request, budget: int, speculate: bool) -> Scheduled | None:
        if self._reads_prompt(request):
            # A chunk is taken whole or not at all, so that a prompt is cut the same way whatever is beside it.
            num_known = min(request.num_pending, self._config.chunk_tokens)
            samples = num_known == request.num_pending
            return Scheduled(request, num_known, 0, samples, is_prefill=True) if num_known <= budget else None
        # A decoding request is never held back by the budget: prompts wait, not answers.
        num_drafts = self._num_drafts(request) if speculate else 0
        return Scheduled(request, 1, num_drafts, samples=True, is_prefill=False)

    def _reads_prompt(self, request: Request) -> bool:
        """Whether known tokens are still to be read before the next one can be drawn."""
        return request.num_pending > 1 or request.num_output == 0

    def _end(self, request: Request, part: Scheduled) -> int:
        """Positions that must be backed by pages for the part to run."""
        return request.num_kv + part.num_known + part.num_drafts

    def _num_drafts(self, request: Request) -> int:
        """k, less where the answer or the context ends sooner. Fewer drafts change no token, only the speed."""
        if not request.can_draft:
            return 0
        room = self._context_tokens - len(request.tokens)
        return max(0, min(request.spec.steps, request.remaining - 1, room))

    def _hold(self, request: Request, part: Scheduled) -> bool:
        """Gets pages for the part's rows, preempting later requests if need be. False: the request cannot run now."""
        table = request.table
        end = self._end(request, part)
        missing = -(-end // table.page_tokens) - len(table.pages)
        if missing <= 0:
            return True
        while (pages := self.pages.allocate(missing, table.pages[-1] if table.pages else None)) is None:
            victim = max(self.running, key=lambda candidate: candidate.arrival)
            if victim is request and len(self.running) == 1:
                self._fail(request, end)
                return False
            self._preempt(victim)
            if victim is request:
                return False
        table.extend(pages)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        if request.table.pages:  # else it only goes on waiting
            self.pages.release(request.table.trim(0))
            request.reset_cache()
        self.waiting.appendleft(request)

    def _fail(self, request: Request, num_tokens: int) -> None:
        capacity = (self._num_pages - 1) * request.table.page_tokens
        request.finish(
            ERROR,
            f"{num_tokens} tokens do not fit the KV cache, which holds {capacity}: "
            "give it more memory (--kv-memory) or shorten the prompt or the answer",
        )
