"""One request: its tokens, its pages, how far it has come. Knows no model and no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from alula.core.records import RequestRecord
from alula.core.sampling import SamplingParams
from alula.engine.text_stream import TextStream
from alula.kernels.reference.noise import NoiseWindow
from alula.kernels.reference.penalties import TokenCounts
from alula.layers.slot_table import SlotTable
from alula.spec.backlog import Backlog
from alula.spec.drafting import DraftState
from alula.spec.tally import Tally

STOP, LENGTH, ABORT, ERROR = "stop", "length", "abort", "error"


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for. `steps` drafts a cycle; 0 decodes plainly and keeps no draft state."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    steps: int


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """Raw log-probability of an emitted token under the target, and the most likely ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to a request. `token_ids` are all that were emitted, also where a stop cut the text."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    num_kept_tokens: int | None = None  # on finishing: how many of all tokens belong to the text
    record: RequestRecord | None = None


@dataclass(eq=False)
class Request:
    """Mutable state. `tokens` are prompt and output; the first `num_kv` of them are in the target's cache.

    counts: for penalties only. noise: for sampling on a CPU only, where it is worth keeping between draft and target.
    draft: where the next chain begins, if the draft has read every committed position; what it has not read is in
    `backlog`.
    """

    spec: RequestSpec
    table: SlotTable
    stream: TextStream
    counts: TokenCounts | None
    noise: NoiseWindow | None
    arrival: int
    tokens: list[int] = field(default_factory=list)
    num_kv: int = 0
    draft: DraftState | None = None
    backlog: Backlog = field(default_factory=Backlog)
    tally: Tally = field(default_factory=Tally)
    num_preemptions: int = 0
    finish_reason: str | None = None
    error: str | None = None
    num_kept_tokens: int | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.spec.prompt_ids)

    @property
    def num_prompt(self) -> int:
        return len(self.spec.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Known tokens that are not in the target's cache: 1 (the root) while decoding, more in prefill."""
        return len(self.tokens) - self.num_kv

    @property
    def remaining(self) -> int:
        return self.spec.sampling.max_tokens - self.num_output

    @property
    def can_draft(self) -> bool:
        """Whether its next chain can begin, perhaps after the draft has caught up."""
        return self.draft is not None or self.backlog.num_rows > 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: str, error: str | None = None) -> None:
        self.finish_reason = reason
        self.error = error
        self.noise = None
        self._forget_draft()

    def reset_cache(self) -> None:
        """After a preemption: everything known has to be prefilled again, target and draft alike."""
        self.num_kv = 0
        self.num_preemptions += 1
        self._forget_draft()

    def _forget_draft(self) -> None:
        self.draft = None
        self.backlog.clear()

    def record(self) -> RequestRecord:
        return RequestRecord(
            request_id=self.spec.request_id,
            num_prompt_tokens=self.num_prompt,
            num_output_tokens=self.num_output,
            finish_reason=self.finish_reason or "running",
            num_cycles=self.tally.num_cycles,
            drafted=self.tally.drafted,
            accepted=self.tally.accepted,
            accepted_per_position=self.tally.accepted_per_position,
            drafted_per_position=self.tally.drafted_per_position,
            num_truncated_cycles=self.tally.num_truncated_cycles,
            num_preemptions=self.num_preemptions,
            error=self.error,
        )
