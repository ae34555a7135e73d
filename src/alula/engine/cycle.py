"""One cycle in five verbs: propose, verify, accept, commit, count (DESIGN section 4).

Plain decoding is the same path with empty drafts. Each verb is one method; `Engine.step` calls them in this order.
Knows nothing of processes, prompts as text, or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import torch

from alula.comm.device_deadline import settle
from alula.core.config import EngineConfig
from alula.core.records import DECODE, DRAFTED, PLAIN, PREFILL, VERIFY, CycleRecord, PhaseOutcome, RequestCycle
from alula.engine.agreement import check_bits
from alula.engine.device import PhaseClock
from alula.engine.emission import emit
from alula.engine.request import ERROR, Request, TokenLogprob, Update
from alula.engine.runner import TargetRows, TargetRunner, no_graphs
from alula.engine.sampler import TokenSampler
from alula.engine.scheduler import Scheduled, Scheduler
from alula.engine.setup import Parts
from alula.layers.geometry import Segment
from alula.layers.slot_table import as_tensor
from alula.spec.acceptance import Acceptance, accept_chain
from alula.spec.backlog import CATCH_UP_TOKENS
from alula.spec.drafting import ChainStart, Chooser, DraftState, Extension
from alula.spec.forced import forced_acceptance, forced_count


@dataclass
class CycleState:
    """What the verbs hand to each other. `drafts`, `accepted` and `logprobs` go with `parts`, in order.

    speculate: whether this cycle may draft; if not, the draft stays behind. reason: of that decision, for the record.
    """

    clock: PhaseClock
    parts: list[Scheduled]
    speculate: bool = True
    reason: str = ""
    drafts: list[list[int]] = field(default_factory=list)
    rows: TargetRows | None = None
    accepted: list[Acceptance | None] = field(default_factory=list)
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)
    num_extended: int = 0
    num_caught_up: int = 0
    counted: list[RequestCycle] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


@dataclass(frozen=True)
class _Reading:
    """What the draft is to read of a request: the oldest `width` rows of its backlog."""

    request: Request
    width: int
    wants_state: bool


class Cycle:
    """The verbs, over one engine's parts."""

    def __init__(self, parts: Parts, scheduler: Scheduler) -> None:
        self._engine = parts
        self._scheduler = scheduler
        self._drafter = parts.drafter
        head = None if parts.drafter is None else parts.drafter.model.config
        boundaries = () if head is None else head.boundaries
        self._runner = TargetRunner(
            parts.target, parts.geometry, boundaries, head is not None and not boundaries, self._settle
        )
        self._sampler = TokenSampler(parts.shape.vocab_size, parts.device)
        self._forced = _forced_table(parts.config)
        refusal = parts.facts["device_cycle"]["refusal"] if parts.device.type == "cuda" else None
        self._eager = no_graphs(refusal)
        self._index = 0

    def propose(self, state: CycleState) -> None:
        """The draft proposes a chain for every part that has room for drafts, having read what it left unread."""
        self._engine.group.work_on(_work_of(state.parts))
        state.drafts = [[] for _ in state.parts]
        drafting = [i for i, part in enumerate(state.parts) if part.num_drafts]
        if not drafting or self._drafter is None:
            return
        parts = [state.parts[i] for i in drafting]
        behind = [part.request for part in parts if part.request.backlog.num_rows]
        if behind:
            state.clock.enter("extend")
            state.num_caught_up += sum(request.backlog.num_rows for request in behind)
            self._read(state, [_Reading(request, request.backlog.num_rows, True) for request in behind])
        state.clock.enter("draft")
        choose = self._settled(self._sampler.chooser(parts, self._drafter.model.hot_D))
        for i, drafts in zip(drafting, self._drafter.chain([_start(part) for part in parts], choose), strict=True):
            state.drafts[i] = drafts

    def verify(self, state: CycleState) -> None:
        """One target forward over every part's known tokens and drafts."""
        state.clock.enter("verify")
        if state.parts:
            wants_features = any(self._keeps_draft(part.request) for part in state.parts)
            state.rows = self._runner.run(state.parts, state.drafts, wants_features)
            # Perhaps only a draft broke the row that it stands in, and plain decoding would go on.
            suspects = [i for i in state.rows.broken if state.drafts[i]]
            for i in suspects:
                state.parts[i], state.drafts[i] = replace(state.parts[i], num_drafts=0), []
            if suspects:
                state.rows = self._runner.run(state.parts, state.drafts, wants_features)

    def accept(self, state: CycleState) -> None:
        """The target's draw at every sampled row; the longest prefix of drafts that agrees, plus one token."""
        state.clock.enter("accept")
        state.accepted = [None] * len(state.parts)
        state.logprobs = [[] for _ in state.parts]
        if state.rows is None:
            return
        broken = set(state.rows.broken)
        if state.rows.logits_SV is not None:
            drawn = self._sampler.draw(state.parts, state.drafts, state.rows)
            broken |= drawn.broken
            for i in drawn.tokens.keys() - broken:
                state.accepted[i] = self._acceptance(state, i, drawn.tokens[i])
                state.logprobs[i] = drawn.logprobs.get(i, [])
        for i in broken:
            self._break(state.parts[i].request)

    def commit(self, state: CycleState) -> None:
        """Emits tokens, advances the caches, and extends the draft with the target's true features, or keeps these
        for later where the cycle was not to speculate."""
        state.clock.enter("emit")
        for part, acceptance, logprobs in zip(state.parts, state.accepted, state.logprobs, strict=True):
            self._advance(state, part, acceptance, logprobs)
        for request in [r for r in self._scheduler.running if r.finished]:
            self._scheduler.remove(request)
        state.clock.enter("extend")
        self._extend(state)
        for request in self._scheduler.running:
            self._scheduler.trim(request)

    def count(self, state: CycleState) -> CycleRecord:
        """One record of the cycle."""
        state.clock.enter("other")
        self._engine.group.work_on("")
        self._agree(state)
        drafted = any(drafts for drafts in state.drafts)
        phases: dict[str, PhaseOutcome] = {"verify": self._eager} if state.rows is not None else {}
        if drafted:
            phases["draft"] = self._eager
        if state.num_extended:
            phases["extend"] = self._eager
        wall_ms, phases_ms = state.clock.finish()
        self._index += 1
        return CycleRecord(
            index=self._index - 1,
            wall_ms=wall_ms,
            phases_ms=phases_ms,
            requests=tuple(state.counted),
            outcomes=phases,
            num_rows=sum(part.num_known + part.num_drafts for part in state.parts),
            exactness=self._exactness_off(state),
            speculation=self._speculation(state, drafted),
            num_caught_up=state.num_caught_up,
        )

    def _speculation(self, state: CycleState, drafted: bool) -> str | None:
        if not any(self._keeps_draft(part.request) and not part.is_prefill for part in state.parts):
            return None
        did = DRAFTED if drafted else PLAIN
        # Told to speculate and did not: the answers end with this token, or their draft was lost.
        reason = state.reason if drafted or not state.speculate else "nothing to draft"
        return f"{did}: {reason}" if reason else did

    def _acceptance(self, state: CycleState, index: int, draws: Sequence[int]) -> Acceptance:
        drafts, request = state.drafts[index], state.parts[index].request
        if self._forced is None:
            return accept_chain(drafts, draws)
        accepted = forced_count(self._forced, request.arrival, request.tally.num_cycles, len(drafts))
        return Acceptance(accepted, tuple(draws[: accepted + 1]))

    def _advance(
        self, state: CycleState, part: Scheduled, acceptance: Acceptance | None, logprobs: list[TokenLogprob]
    ) -> None:
        request = part.request
        accepted = acceptance.accepted if acceptance else 0
        was_decoding = not part.is_prefill
        update = None
        if not request.finished:
            request.num_kv += part.num_known + accepted
            if acceptance is not None:
                update = emit(request, acceptance.emitted, logprobs, self._engine)
        num_emitted = len(update.token_ids) if update else 0
        truncated = acceptance is not None and num_emitted < len(acceptance.emitted)
        if was_decoding and acceptance is not None:
            request.tally.count(part.num_drafts, accepted, truncated)
        if update is not None:
            record = request.record() if request.finished else None
            state.updates.append(msgspec.structs.replace(update, record=record))
        state.counted.append(
            RequestCycle(
                request_id=request.spec.request_id,
                width=part.num_known + part.num_drafts,
                num_prefill=part.num_known if part.is_prefill else 0,
                drafted=part.num_drafts,
                accepted=accepted,
                emitted=num_emitted,
                truncated=truncated,
                kv_tokens=request.num_kv,
            )
        )

    def _extend(self, state: CycleState) -> None:
        """Feeds the draft every committed row of the requests that go on; their last rows begin the next chains.

        Where the cycle was not to speculate, the rows are only kept, up to a limit. The last one stays even then: it
        begins the next chain, and what the draft says there is not worth computing yet.
        """
        if self._drafter is None or state.rows is None or state.rows.features_RF is None:
            return
        readings: list[_Reading] = []
        base = 0
        for part, acceptance in zip(state.parts, state.accepted, strict=True):
            request, backlog = part.request, part.request.backlog
            if self._keeps_draft(request) and not request.finished:
                width = part.num_known + (acceptance.accepted if acceptance else 0)
                rows_WF = state.rows.features_RF[base : base + width]
                num_before = backlog.num_rows
                request.draft = None
                # A copy of what stays: one row would keep the features of all requests' rows in memory.
                backlog.add(rows_WF if state.speculate else rows_WF.clone())
                if state.speculate:
                    readings.append(_Reading(request, backlog.num_rows, acceptance is not None))
                    state.num_caught_up += num_before
                elif backlog.num_rows > CATCH_UP_TOKENS:
                    readings.append(_Reading(request, backlog.num_rows - 1, False))
                    state.num_caught_up += num_before
            base += part.num_known + part.num_drafts
        self._read(state, readings)

    def _read(self, state: CycleState, readings: Sequence[_Reading]) -> None:
        """One pass of the draft over the oldest rows of these requests' backlogs."""
        if not readings or self._drafter is None:
            return
        extensions = [_extension(reading) for reading in readings]
        rows = [reading.request.backlog.take(reading.width) for reading in readings]
        states = self._drafter.extend(extensions, rows[0] if len(rows) == 1 else torch.cat(rows))
        state.num_extended += len(readings)
        for reading, draft in zip(readings, states, strict=True):
            reading.request.draft = draft

    def _keeps_draft(self, request: Request) -> bool:
        return self._drafter is not None and request.spec.steps > 0

    def _break(self, request: Request) -> None:
        """Fails one request whose numbers are none, and cleans its slots: NaN spreads even through a mask."""
        request.finish(ERROR, "the target's logits hold NaN or infinity: the weights or the dtype are unsound")
        slots = as_tensor(request.table.slots(0, request.table.capacity))
        self._engine.geometry.cache.clear(slots)
        if self._drafter is not None:
            self._drafter.geometry.cache.clear(slots)

    def _agree(self, state: CycleState) -> None:
        """All ranks hold the same bits (instead of one deciding and telling the others)."""
        if state.rows is not None and state.rows.logits_SV is not None:
            check_bits(self._engine.group, self._index, state.rows.logits_SV, state.rows.hidden_RH)

    def _settle(self) -> None:
        """Before the host reads what collectives wrote: with the ranks' deadline."""
        settle(self._engine.group, self._engine.device, "verify")

    def _settled(self, choose: Chooser) -> Chooser:
        def settled(step: int, active: list[int], logits_BD: torch.Tensor) -> torch.Tensor:
            tokens_B = choose(step, active, logits_BD)
            settle(self._engine.group, self._engine.device, "draft")
            return tokens_B

        return settled

    def _exactness_off(self, state: CycleState) -> str | None:
        if self._engine.exactness.off is not None:
            return self._engine.exactness.off
        if self._forced is not None and any(part.request.spec.steps for part in state.parts):
            return "acceptance_forced"
        preempted = any(part.request.num_preemptions for part in state.parts)
        return "kv_written_again_after_preemption" if preempted else None


def _forced_table(config: EngineConfig) -> tuple[int, ...] | None:
    speculation = config.speculation
    if speculation.forced_tokens_per_cycle is None:
        return None
    return forced_acceptance(speculation.forced_tokens_per_cycle, speculation.steps, config.seed)


def _work_of(parts: Sequence[Scheduled]) -> str:
    """What a cycle is to its collectives: its forward holds all of its rows, a prompt's as well as drafts."""
    if any(part.is_prefill for part in parts):
        return PREFILL
    return VERIFY if any(part.num_drafts for part in parts) else DECODE


def _start(part: Scheduled) -> ChainStart:
    request = part.request
    draft = request.draft
    assert isinstance(draft, DraftState)  # the scheduler gives drafts only to requests that have a state
    return ChainStart(request.table, request.num_kv, part.num_drafts, draft)


def _extension(reading: _Reading) -> Extension:
    """The first `width` committed positions of the backlog and the token after each.

    The successor of a chunk's last position is the next prompt token, not a sampled one: `tokens` has either.
    """
    request, width = reading.request, reading.width
    first = request.num_kv - request.backlog.num_rows
    successors = request.tokens[first + 1 : first + width + 1]
    return Extension(Segment(request.table, first, width), successors, reading.wants_state)
