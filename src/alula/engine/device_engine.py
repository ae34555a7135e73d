"""An engine whose cycles stay on the device: the host reads tokens one cycle late and schedules while the GPU works.

The same requests, scheduler and records as engine.py; the verbs run as phases of device_cycle.py. On N ranks, N of
these run in lockstep: what is launched when follows from requests, pages and decisions alone, never from times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from alula.comm.device_deadline import settle
from alula.core.config import MAX_STEPS
from alula.core.records import DRAFTED, PLAIN, CycleRecord, RequestCycle
from alula.engine.device_clock import FlightClock, Mark
from alula.engine.device_cycle import CATCH_UP, DeviceCycle, Flight
from alula.engine.device_scheduler import DeviceScheduler
from alula.engine.device_start import prepare_graphs, time_steps, warm_prompts
from alula.engine.emission import emit
from alula.engine.engine import Engine, StepOutput
from alula.engine.memory import CYCLE, KEPT_POSITIONS, memory_errors
from alula.engine.request import ERROR, Request, RequestSpec, Update
from alula.engine.scheduler import Scheduled
from alula.engine.setup import Parts
from alula.engine.step_costs import StepCost
from alula.kernels.reference.noise import NoiseWindow
from alula.layers.slot_table import as_tensor

# Positions of a seat that cycles under way may still fill before the kept features are looked at again.
_KEPT_MARGIN = 8
_NOTHING_READ = "the target's logits hold NaN or infinity: the weights or the dtype are unsound"


class DeviceEngine(Engine):
    """Continuous batching with one cycle under way while the last one is read."""

    def __init__(self, parts: Parts, progress: Callable[[str], None] | None = None) -> None:
        super().__init__(parts)
        self._scheduler: DeviceScheduler = DeviceScheduler(parts.config, parts.num_pages, parts.context_tokens)
        with memory_errors("the state of running requests", CYCLE):
            self.cycle = DeviceCycle(parts, self._scheduler)
        self._flights: deque[Flight] = deque()
        self._last_end: Mark | None = None
        self._index = 0
        self._costs: tuple[StepCost, ...] = ()
        say = progress or (lambda message: None)
        with memory_errors("the first forwards", CYCLE):
            warm_prompts(self.cycle, parts, say)
            prepare_graphs(self.cycle, parts, say)
            if self.cycle.graphs.num_captured:
                self._costs = time_steps(self.cycle, parts)

    @property
    def step_costs(self) -> tuple[StepCost, ...]:
        return self._costs

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self._flights)

    def step(self, speculate: bool = True, reason: str = "") -> StepOutput:
        """Reads the oldest cycle under way, after launching the one behind it where that can be known already.

        `speculate` and `reason` are those of the cycle that is launched; the record is of the one that was read."""
        if not self._flights:
            self._launch(speculate, reason)
        if self._flights and self._may_overlap(speculate):
            self._launch(speculate, reason)
        updates, self._aborted = list(self._aborted), []
        flight = self._flights.popleft() if self._flights else _empty(self.parts, reason)
        return self._told(updates, self._resolve(flight, updates))

    def _noise(self, spec: RequestSpec) -> NoiseWindow | None:
        """A request may stand in a batch that is wider than its own drafts."""
        return super()._noise(msgspec.structs.replace(spec, steps=MAX_STEPS))

    def _launch(self, speculate: bool, reason: str) -> None:
        clock = FlightClock(self.parts.device, self.parts.group.peers)
        num_read = 0 if self._flights else self._make_room_for_features(clock)
        clock.enter("schedule")
        parts = self._scheduler.schedule(speculate)
        if not parts:
            return
        flight = Flight(clock, parts, reason, follows=bool(self._flights), num_caught_up=num_read)
        if num_read:
            flight.outcomes["catch_up"] = CATCH_UP
        with memory_errors("a cycle", CYCLE):
            self.cycle.launch(flight)
        self._flights.append(flight)

    def _may_overlap(self, speculate: bool) -> bool:
        """Whether the next cycle can be launched before the last one is read."""
        scheduler = self._scheduler
        running = scheduler.running
        if scheduler.may_run_short() or not (scheduler.waiting or any(map(scheduler.continues, running))):
            return False
        for request in running:
            sampling = request.spec.sampling
            if sampling.penalised or sampling.logprobs is not None:
                return False
            if not scheduler.has_seat(request):
                continue
            seat = scheduler.seat(request)
            behind = seat.prefilled and not seat.chain_ready and self.cycle.keeps_draft(request)
            if behind and (speculate or self._has_little_room(request)):
                return False
        return True

    def _has_little_room(self, request: Request) -> bool:
        """Whether the features that are kept of a request with a seat nearly fill their room."""
        seat = self._scheduler.seat(request)
        kept = 0 if seat.kept_from is None else request.num_kv + seat.under_way - seat.kept_from
        return kept > KEPT_POSITIONS - _KEPT_MARGIN

    def _make_room_for_features(self, clock: FlightClock) -> int:
        """The draft reads the kept features of requests that have no room for more -> how many."""
        running = [request for request in self._scheduler.running if self._scheduler.has_seat(request)]
        full = [request for request in running if self._has_little_room(request)]
        if full:
            clock.enter("extend")
        return sum(self.cycle.read_most_kept(request) for request in full)

    def _resolve(self, flight: Flight, updates: list[Update]) -> CycleRecord:
        """Waits for a cycle, emits its tokens, ends what is to end."""
        wall_ms, phases_ms = flight.clock.resolve(self._last_end if flight.follows else None)
        self._last_end = flight.clock.end
        counted: list[RequestCycle] = []
        lines = dict(zip((part.request.spec.request_id for part in flight.drawing), flight.lines(), strict=True))
        for part in flight.parts:
            if self._counts(flight, part):
                counted.append(self._advance(flight, part, lines.get(part.request.spec.request_id), updates))
        for request in [r for r in self._scheduler.running if r.finished]:
            self._scheduler.remove(request)
        self._index += 1
        self._drop_flights()
        return CycleRecord(
            index=self._index - 1,
            wall_ms=wall_ms,
            phases_ms=phases_ms,
            requests=tuple(counted),
            outcomes=flight.outcomes,
            num_rows=sum(part.num_known + part.num_drafts for part in flight.parts),
            exactness=self._exactness(flight),
            speculation=self._speculation(flight),
            num_caught_up=flight.num_caught_up,
        )

    def _counts(self, flight: Flight, part: Scheduled) -> bool:
        """Whether the request is still the one for which the cycle was launched, neither ended nor started over."""
        request = part.request
        if request.finished or not self._scheduler.has_seat(request):
            return False
        return flight.seats[request.spec.request_id] is self._scheduler.seat(request)

    def _drop_flights(self) -> None:
        """Where all requests have ended, nobody waits for what is still under way: the next cycle would be timed from
        its end, however long ago that is by then."""
        if not self._scheduler.has_work:
            self._flights.clear()

    def _advance(
        self, flight: Flight, part: Scheduled, line: list[int] | None, updates: list[Update]
    ) -> RequestCycle:
        request = part.request
        accepted, emitted, truncated = 0, 0, False
        if line is not None:
            accepted, bad, draws = line[0], line[1], line[2:]
            self._land(flight, part, accepted)
            if bad and not part.is_prefill and len(draws) > 1:
                # Perhaps only a draft broke the row: as a prompt's last row, nothing stands beside it.
                self._scheduler.start_over(request)
            elif bad:
                self._break(request)
            else:
                logprobs = flight.logprobs.get(request.spec.request_id, [])
                update = emit(request, draws[: accepted + 1], logprobs, self.parts)
                emitted = len(update.token_ids)
                truncated = emitted < accepted + 1
                if not part.is_prefill:
                    request.tally.count(part.num_drafts, accepted, truncated)
                record = request.record() if request.finished else None
                updates.append(msgspec.structs.replace(update, record=record))
        return RequestCycle(
            request_id=request.spec.request_id,
            width=part.num_known + part.num_drafts,
            num_prefill=part.num_known if part.is_prefill else 0,
            drafted=part.num_drafts,
            accepted=accepted,
            emitted=emitted,
            truncated=truncated,
            # Of a prompt the next chunk may be under way already.
            kv_tokens=flight.read_to.get(request.spec.request_id, request.num_kv),
        )

    def _land(self, flight: Flight, part: Scheduled, accepted: int) -> None:
        """What is under way of a request is less by this part."""
        request, seat = part.request, self._scheduler.seat(part.request)
        seat.surely -= 1
        if part.is_prefill:
            return
        seat.under_way -= flight.width
        kept = self.cycle.keeps_draft(request) and flight.width == 1
        if kept and seat.kept_from is None:
            seat.kept_from = request.num_kv
        request.num_kv += 1 + accepted

    def _break(self, request: Request) -> None:
        """Fails one request whose numbers are none, and cleans its slots."""
        request.finish(ERROR, _NOTHING_READ)
        settle(self.parts.group, self.parts.device, "verify")  # of the cycle behind: the copy would wait for it
        slots = as_tensor(request.table.slots(0, request.table.capacity)).to(self.parts.device)
        self.parts.geometry.cache.clear(slots)
        if self.parts.drafter is not None:
            self.parts.drafter.geometry.cache.clear(slots)

    def _speculation(self, flight: Flight) -> str | None:
        decoding = [part for part in flight.parts if not part.is_prefill]
        if not any(self.cycle.keeps_draft(part.request) for part in decoding):
            return None
        did = DRAFTED if any(part.num_drafts for part in decoding) else PLAIN
        return f"{did}: {flight.reason}" if flight.reason else did

    def _exactness(self, flight: Flight) -> str | None:
        if self.parts.exactness.off is not None:
            return self.parts.exactness.off
        forced = self.parts.config.speculation.forced_tokens_per_cycle is not None
        if forced and any(part.request.spec.steps for part in flight.parts):
            return "acceptance_forced"
        preempted = any(part.request.num_preemptions for part in flight.parts)
        return "kv_written_again_after_preemption" if preempted else None


def _empty(parts: Parts, reason: str) -> Flight:
    """A cycle in which nothing ran: only to tell of what was aborted."""
    flight = Flight(FlightClock(parts.device), [], reason, follows=False)
    flight.clock.enter("other")
    flight.clock.finish()
    return flight
