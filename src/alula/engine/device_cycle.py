"""Launches the phases of a cycle on the device and, later, reads what came of them.

A *flight* is a cycle between the two: the host launches the next one before it reads the last, so the device does not
wait for it. Everything that the next cycle needs (tokens, positions, acceptance) is computed where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from alula.comm.device_deadline import settle
from alula.core.records import DECODE, PREFILL, VERIFY, PhaseOutcome
from alula.engine.agreement import agreed_minimum, check_bits
from alula.engine.device_clock import FlightClock
from alula.engine.device_phases import FEATURES_KEPT, FEATURES_READ, NO_FEATURES, ChunkRead, DevicePhases, Variant
from alula.engine.device_scheduler import DeviceScheduler, Seat
from alula.engine.device_state import DeviceState
from alula.engine.graph_runner import GraphKey, GraphRunner
from alula.engine.host_draws import HostDraws
from alula.engine.request import Request, TokenLogprob
from alula.engine.scheduler import Scheduled
from alula.engine.setup import Parts
from alula.kernels.reference.device_sampling import has_filters

PROMPT = PhaseOutcome(replayed=False, reason="rows_of_a_prompt_vary")
CATCH_UP = PhaseOutcome(replayed=False, reason="rows_to_catch_up_vary")
HOST_DRAWS = PhaseOutcome(replayed=False, reason="penalties_or_logprobs_on_the_host")


@dataclass
class Flight:
    """A launched cycle. results: for each part that draws, in order of `drawing`, where its line of results is.
    seats: where the requests sat when it was launched."""

    clock: FlightClock
    parts: list[Scheduled]
    reason: str
    follows: bool  # launched while another was under way
    outcomes: dict[str, PhaseOutcome] = field(default_factory=dict)
    drawing: list[Scheduled] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    results: list[Tensor] = field(default_factory=list)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    num_caught_up: int = 0
    read_to: dict[str, int] = field(default_factory=dict)  # of prompts: the position behind their chunk

    @property
    def width(self) -> int:
        """Rows of every request that decodes; with more than one, the draft reads the features of all of them."""
        return 1 + max((part.num_drafts for part in self.parts), default=0)

    def lines(self) -> list[list[int]]:
        """[accepted, bad, draws...] of every part that draws; the flight must have ended."""
        return [line for result in self.results for line in result.tolist()]


class DeviceCycle:
    """Over one engine's parts. Launches in the order of the current stream, and never waits for it, except where the
    host itself must draw (penalties, logprobs)."""

    def __init__(self, parts: Parts, scheduler: DeviceScheduler) -> None:
        assert parts.block is not None
        self._engine = parts
        self._scheduler = scheduler
        self._kernels = parts.block
        self.state = DeviceState(parts)
        self.phases = DevicePhases(parts, self.state, parts.block)
        self.graphs = GraphRunner(
            parts.config.graphs, parts.device, self._all_captured, self._settle, parts.group.recording
        )
        self._num_decoded = 0
        self._host = HostDraws(parts)
        self._works: dict[GraphKey, Callable[[], Any]] = {}

    def launch(self, flight: Flight) -> None:
        """Enqueues everything of a scheduled cycle."""
        self._sit_down(flight)
        decoding = [part for part in flight.parts if not part.is_prefill]
        if decoding:
            self._decode(flight, decoding)
        for part in flight.parts:
            if part.is_prefill:
                self._engine.group.work_on(PREFILL)
                self._read(flight, part)
        self._engine.group.work_on("")
        flight.clock.finish()

    def prepare(self, keys: Sequence[tuple[int, int, Variant]], tell: Callable[[int, int], None]) -> None:
        """Captures (batch, width, variant) of every phase that they take, with the dummy alone in the batch."""
        for done, (batch, width, variant) in enumerate(keys, 1):
            self._engine.group.work_on(_work_of(width))
            for key, work in self._phases_of(batch, width, variant):
                with self.state.dummies(batch):
                    self.graphs.prepare(key, work)
            tell(done, len(keys))
        self._engine.group.work_on("")

    def replay(self, batch: int, width: int, variant: Variant) -> None:
        """Runs the phases of a decode cycle once over whoever sits there: for timing, and for tests."""
        self._engine.group.work_on(_work_of(width))
        for key, work in self._phases_of(batch, width, variant):
            self.graphs.run(key, work, quiet=lambda: self.state.dummies(batch))
        self._engine.group.work_on("")

    def replay_phase(self, phase: str, width: int, variant: Variant, *, eager: bool = False) -> PhaseOutcome:
        """Runs one phase of a cycle of one request over whoever sits there -> how it ran. eager: without its graph,
        whether it has one or not; for experiments. Raises KeyError for a phase that such a cycle does not have."""
        self._engine.group.work_on(_work_of(width))
        works = {key.phase: (key, work) for key, work in self._phases_of(1, width, variant)}
        key, work = works[phase]
        try:
            if eager:
                work()
                return PhaseOutcome(replayed=False, reason="eager_by_experiment")
            return self.graphs.run(key, work, quiet=lambda: self.state.dummies(1))[1]
        finally:
            self._engine.group.work_on("")

    def _phases_of(self, batch: int, width: int, variant: Variant) -> list[tuple[GraphKey, Callable[[], Any]]]:
        found: list[tuple[GraphKey, Callable[[], Any]]] = []
        if width > 2:
            key = GraphKey("draft", batch, width - 1, variant.draws)
            found.append((key, self._work(key, lambda: self.phases.draft(batch, width - 1, variant))))
        key = GraphKey("verify", batch, width, variant.name)
        found.append((key, self._work(key, lambda: self.phases.verify(batch, width, variant))))
        if variant.features == FEATURES_READ:
            key = GraphKey("extend", batch, width, variant.draws)
            found.append((key, self._work(key, lambda: self.phases.extend(batch, width, variant))))
        return found

    def _all_captured(self, worked: bool) -> bool:
        return agreed_minimum(self._engine.group, int(worked)) == 1

    def _settle(self) -> None:
        """Before the host reads what collectives wrote."""
        settle(self._engine.group, self._engine.device, "verify")

    def _work(self, key: GraphKey, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
        if key not in self._works:
            self._works[key] = make()
        return self._works[key]

    def _decode(self, flight: Flight, parts: list[Scheduled]) -> None:
        width = flight.width
        self._engine.group.work_on(_work_of(width))
        variant = self._variant(parts, reads=width > 1)
        if width > 1:
            self._catch_up(flight, parts, variant)
        graphs = self._engine.config.graphs
        batch = graphs.padded(len(parts))
        self.state.seat_batch(batch, tuple(self._scheduler.seat(part.request).index for part in parts))
        for key, work in self._phases_of(batch, width, variant):
            if key.phase == "extend":
                self._take_results(flight, parts, self.state.buffers(batch, width).results_BX)
            flight.clock.enter(key.phase)
            result, flight.outcomes[key.phase] = self.graphs.run(
                key, work, over=batch > graphs.batches[-1], quiet=lambda: self.state.dummies(batch)
            )
            if key.phase == "verify":
                rows = slice(0, len(parts) * width)
                read = variant.features == FEATURES_READ
                features_RF = self.state.buffers(batch, width).features_RF[rows] if read else None
                check_bits(self._engine.group, self._num_decoded, result[rows], features_RF)
                self._num_decoded += 1
            if key.phase == "verify" and variant.host:
                flight.clock.enter("accept")
                flight.outcomes["accept"] = HOST_DRAWS
                self._draw_on_host(flight, parts, batch, width, result)
        if variant.features != FEATURES_READ:
            self._take_results(flight, parts, self.state.buffers(batch, width).results_BX)
        for part in parts:
            seat = self._scheduler.seat(part.request)
            seat.under_way += width
            seat.surely += 1
            seat.chain_ready = variant.features == FEATURES_READ

    def _take_results(self, flight: Flight, parts: list[Scheduled], results_BX: Tensor) -> None:
        flight.drawing += parts
        flight.results.append(self._to_host(results_BX[: len(parts)]))

    def _to_host(self, values: Tensor) -> Tensor:
        """A copy that is there when the flight has ended."""
        if values.device.type == "cpu":
            return values.clone()
        kept = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return kept.copy_(values, non_blocking=True)

    def _draw_on_host(
        self, flight: Flight, parts: list[Scheduled], batch: int, width: int, logits_RV: Tensor
    ) -> None:
        self._settle()
        drafts = self.state.seats.drafts_SK[self.state.buffers(batch, 1).seats_B.long()].tolist()
        drawn = self._host.draw(
            parts, [line[: width - 1] for line in drafts], logits_RV[: len(parts) * width], width
        )
        flight.logprobs |= drawn.logprobs
        missing = (batch - len(parts)) * width
        draws_R = torch.tensor([*drawn.tokens, *[0] * missing], device=self._engine.device)
        bad_R = torch.tensor([*drawn.bad, *[False] * missing], device=self._engine.device)
        self.phases.accept(batch, width, draws_R, bad_R)

    def _catch_up(self, flight: Flight, parts: list[Scheduled], variant: Variant) -> None:
        """The draft reads the features that were kept while its requests decoded plainly."""
        for part in parts:
            request, seat = part.request, self._scheduler.seat(part.request)
            if part.num_drafts and not seat.chain_ready and seat.kept_from is not None:
                flight.clock.enter("extend")
                flight.outcomes["catch_up"] = CATCH_UP
                flight.num_caught_up += self._read_kept(request, request.num_kv, True, variant)
                seat.chain_ready, seat.kept_from = True, None

    def read_most_kept(self, request: Request) -> int:
        """Reads all kept features but the last row's, which begins the next chain -> how many. Before a plain cycle."""
        self._engine.group.work_on(DECODE)
        seat = self._scheduler.seat(request)
        count = self._read_kept(request, request.num_kv - 1, False, Variant())
        seat.kept_from = request.num_kv - 1
        return count

    def _read_kept(self, request: Request, end: int, begins: bool, variant: Variant) -> int:
        seat = self._scheduler.seat(request)
        assert seat.kept_from is not None
        self.state.prompt.seats_B.fill_(seat.index)
        read = self.phases.kept(seat.index, request.tokens[seat.kept_from : end], seat.kept_from)
        self.phases.extend_chunk(read, request.tokens[end], begins, variant)
        return end - seat.kept_from

    def _read(self, flight: Flight, part: Scheduled) -> None:
        """A chunk of a prompt; where it is the last one, the first token of the answer."""
        request, seat = part.request, self._scheduler.seat(part.request)
        first, end = request.num_kv, request.num_kv + part.num_known
        reads = self.keeps_draft(request)
        variant = self._variant([part], reads)
        self.state.prompt.seats_B.fill_(seat.index)
        flight.clock.enter("verify")
        flight.outcomes["prompt"] = PROMPT
        read = self.phases.read_chunk(request.tokens[first:end], first, part.samples, reads)
        request.num_kv = flight.read_to[request.spec.request_id] = end
        if part.samples:
            self._draw_first(flight, part, read, variant, end)
        if reads:
            flight.clock.enter("extend")
            self.phases.extend_chunk(read, None if part.samples else request.tokens[end], part.samples, variant)
        if part.samples:
            seat.prefilled, seat.chain_ready, seat.kept_from = True, reads, None
            seat.surely += 1

    def _draw_first(self, flight: Flight, part: Scheduled, read: ChunkRead, variant: Variant, end: int) -> None:
        prompt = self.state.prompt
        if variant.host:
            assert read.logits_1V is not None
            self._settle()
            drawn = self._host.draw([part], [[]], read.logits_1V, 1)
            flight.logprobs |= drawn.logprobs
            draws_1 = torch.tensor(drawn.tokens, device=self._engine.device)
            bad_1 = torch.tensor(drawn.bad, device=self._engine.device)
        else:
            draws_1, bad_1 = self.phases.draw_first(read, variant)
        self.state.set_num_kv(self._scheduler.seat(part.request).index, end - 1)
        self._kernels.seats.accept_rows(
            *(self.state.seats, prompt.seats_B, 1, draws_1, bad_1, None),
            *(prompt.accepted_B, prompt.last_row_B, prompt.results_BX),
        )
        self._take_results(flight, [part], prompt.results_BX)

    def keeps_draft(self, request: Request) -> bool:
        return self._engine.drafter is not None and request.spec.steps > 0

    def _variant(self, parts: Sequence[Scheduled], reads: bool) -> Variant:
        params = [part.request.spec.sampling for part in parts]
        keeps = any(self.keeps_draft(part.request) for part in parts)
        features = NO_FEATURES if not keeps else FEATURES_READ if reads else FEATURES_KEPT
        return Variant(
            sampled=any(not own.greedy for own in params),
            filtered=any(has_filters(own) for own in params),
            features=features,
            host=any(own.penalised or own.logprobs is not None for own in params),
        )

    def _sit_down(self, flight: Flight) -> None:
        """Seats for requests that have none, and the pages that the scheduler gave since."""
        for request in self._scheduler.seat_new():
            limit = request.spec.steps if self._engine.drafter is not None else 0
            self.state.take_seat(self._scheduler.seat(request).index, request.spec.sampling, limit)
        for part in flight.parts:
            seat, pages = self._scheduler.seat(part.request), part.request.table.pages
            flight.seats[part.request.spec.request_id] = seat
            if len(pages) > seat.num_pages:
                self.state.set_pages(seat.index, seat.num_pages, pages[seat.num_pages :])
                seat.num_pages = len(pages)


def _work_of(width: int) -> str:
    """What a cycle with so many rows a request is to its collectives."""
    return DECODE if width == 1 else VERIFY
