"""One engine in one process: requests in, updates out, a cycle at a time. On N ranks, N of these run in lockstep.

Knows nothing of processes: the group it was built with may have any size.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.comm.device_deadline import settle
from alula.core.errors import InvalidOption, PromptTooLong
from alula.core.records import CycleRecord, DispatchRecord
from alula.engine.cycle import Cycle, CycleState
from alula.engine.device import PhaseClock
from alula.engine.request import ABORT, Request, RequestSpec, Update
from alula.engine.scheduler import Scheduler
from alula.engine.setup import Parts
from alula.engine.step_costs import StepCost
from alula.engine.text_stream import TextStream
from alula.kernels.reference.noise import NoiseWindow
from alula.kernels.reference.penalties import TokenCounts
from alula.layers.slot_table import SlotTable


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one cycle gave."""

    updates: tuple[Update, ...]
    record: CycleRecord


class Engine:
    """Continuous batching over the five verbs."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._scheduler = Scheduler(parts.config, parts.num_pages, parts.context_tokens)
        self._cycle = Cycle(parts, self._scheduler)
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self._aborted: list[Update] = []

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._aborted)

    def add(self, spec: RequestSpec) -> None:
        """Queues a request. Raises PromptTooLong or InvalidOption, and nothing is queued."""
        check_prompt(spec, self.parts.shape.vocab_size, self.parts.context_tokens)
        if spec.request_id in self._requests:
            raise InvalidOption(f"request id {spec.request_id!r} is in use; give each request its own")
        if spec.steps and self.parts.drafter is None:
            raise InvalidOption(f"{spec.steps} draft steps asked for, but no EAGLE-3 head is loaded (--draft)")
        request = self._build(spec)
        self._requests[spec.request_id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its pages; unknown or finished ids are ignored (it may just have ended)."""
        request = self._requests.pop(request_id, None)
        if request is None or request.finished:
            return
        request.num_kept_tokens = request.num_output
        request.finish(ABORT)
        self._scheduler.remove(request)
        self._aborted.append(_final(request))

    @property
    def step_costs(self) -> tuple[StepCost, ...]:
        """Plain steps and drafted cycles as timed at the start; none where nothing was, and live cycles must tell."""
        return ()

    def step(self, speculate: bool = True, reason: str = "") -> StepOutput:
        """One cycle. Without `speculate` every request decodes one token, and no token differs for it; `reason` is
        for the record."""
        state = CycleState(PhaseClock(self.parts.device, self._settle), [], speculate, reason)
        self._schedule(state)
        self._cycle.propose(state)
        self._cycle.verify(state)
        self._cycle.accept(state)
        self._cycle.commit(state)
        return self._told(state.updates, self._cycle.count(state))

    def dispatch_records(self) -> tuple[DispatchRecord, ...]:
        return self.parts.group.dispatch_records()

    def _settle(self) -> None:
        settle(self.parts.group, self.parts.device, "other")

    def _schedule(self, state: CycleState) -> None:
        state.clock.enter("schedule")
        state.parts = self._scheduler.schedule(state.speculate)
        state.updates, self._aborted = self._aborted, []

    def _told(self, emitted: Sequence[Update], record: CycleRecord) -> StepOutput:
        told = {update.request_id for update in emitted if update.finish_reason}
        # A request that failed (no pages, NaN) was never emitted: tell its caller.
        failed = [r for r in self._requests.values() if r.finished and r.spec.request_id not in told]
        updates = (*emitted, *(_final(request) for request in failed))
        for update in updates:
            known = self._requests.get(update.request_id)
            if update.finish_reason and known is not None and known.finished:  # else the id names another by now
                del self._requests[update.request_id]
        return StepOutput(updates=updates, record=record)

    def _build(self, spec: RequestSpec) -> Request:
        parts = self.parts
        counts = None
        if spec.sampling.penalised:
            counts = TokenCounts(parts.shape.vocab_size, spec.prompt_ids, parts.device)
        self._num_arrived += 1
        return Request(
            spec=spec,
            table=SlotTable(parts.config.page_tokens),
            stream=TextStream(parts.tokenizer.decode, spec.sampling.stop, self._text_context(spec)),
            counts=counts,
            noise=self._noise(spec),
            arrival=self._num_arrived,
        )

    def _text_context(self, spec: RequestSpec) -> tuple[int, ...]:
        return spec.prompt_ids if self.parts.tokenizer.has_text else ()

    def _noise(self, spec: RequestSpec) -> NoiseWindow | None:
        if spec.sampling.greedy or self.parts.device.type != "cpu":
            return None
        seed, index = spec.sampling.seed, spec.sampling.sample_index
        return NoiseWindow(seed, index, self.parts.shape.vocab_size, max_rows=spec.steps + 1)


def check_prompt(spec: RequestSpec, vocab_size: int, context_tokens: int) -> None:
    """Raises PromptTooLong or InvalidOption for a prompt that cannot be served."""
    count = len(spec.prompt_ids)
    if count == 0:
        raise InvalidOption("the prompt is empty; expected at least one token")
    if count >= context_tokens:
        raise PromptTooLong(
            f"the prompt has {count} tokens and the context {context_tokens}, which leaves no room for an answer: "
            "shorten the prompt, or raise --context or --kv-memory where the model's own limit allows it"
        )
    bad = [token for token in spec.prompt_ids if not 0 <= token < vocab_size]
    if bad:
        raise InvalidOption(f"token id {bad[0]} is outside the vocabulary of {vocab_size} tokens")


def _final(request: Request) -> Update:
    return Update(
        request_id=request.spec.request_id,
        text=request.stream.flush(),
        token_ids=(),
        finish_reason=request.finish_reason,
        num_kept_tokens=request.num_output,
        record=request.record(),
    )
