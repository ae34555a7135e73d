"""`LLM`: the Python interface. Prompts in, completions out; blocking or streamed.

Knows nothing of tensors or ranks: it speaks to a backend in commands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch

import alula
from alula.core.config import EngineConfig
from alula.core.dispatch_paths import Collectives
from alula.core.errors import InvalidOption, RankFailure
from alula.core.records import CycleRecord, EnvironmentRecord, RequestRecord, RunRecord
from alula.core.sampling import SamplingParams
from alula.core.shape import parse_shape
from alula.engine.backends import Backend, Description, StepCommand, start_backend
from alula.engine.engine import Engine, StepOutput, check_prompt
from alula.engine.model_choice import choose_model
from alula.engine.request import ABORT, RequestSpec, TokenLogprob, Update
from alula.engine.run_records import RunRecords
from alula.engine.setup import EngineSpec
from alula.engine.speculation_policy import make_policy
from alula.models.checkpoint import open_checkpoint
from alula.models.source import ModelSource
from alula.models.tokenizer import load_tokenizer

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed answer. The last one has a finish reason."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    request: RequestRecord | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A finished answer. finish_reason: stop, length, abort or error (`error` says what)."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    error: str | None
    logprobs: tuple[TokenLogprob, ...]
    request: RequestRecord


class LLM:
    """A loaded model, with an EAGLE-3 head unless `draft` is None.

    model: folder, hub id, .gguf file, built-in name, or what `resolve_shape` of models/source.py returns. draft: folder
    or hub id of a head, "auto" (the one that a built-in model brings, for a shape a random one), or None. record: file
    that gets every record as JSONL. progress: told what is being done.

    Raises UserError subclasses for anything the caller can change. Not thread-safe.
    """

    def __init__(
        self,
        model: str | ModelSource,
        *,
        draft: str | None = "auto",
        config: EngineConfig | None = None,
        record: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        choice = choose_model(model, draft, config or EngineConfig(), progress)
        self.config = choice.config
        self._model_name, self._draft_name = choice.model_name, choice.draft_name
        self._records = RunRecords(record)
        with ExitStack() as undo:
            undo.callback(self._records.close)
            checkpoint = open_checkpoint(choice.source)
            parse_shape(
                checkpoint.config
            )  # an architecture that cannot run is worth more words than a missing tokenizer
            self.tokenizer = load_tokenizer(choice.source, checkpoint)
            spec = EngineSpec(source=choice.source, head=choice.head, config=self.config)
            self._backend: Backend = start_backend(spec, progress)
            self._description = self._backend.describe()
            undo.pop_all()
        self._policy = make_policy(self.config.speculation.speculate, self._description.step_costs)
        self._cycles: list[CycleRecord] = []
        self._pending_adds: list[RequestSpec] = []
        self._pending_aborts: list[str] = []
        self._live: set[str] = set()
        self._num_requests = 0
        self._records.write(self.describe())
        for environment in self.environment_records():
            self._records.write(environment)

    @property
    def context_tokens(self) -> int:
        return self._description.context_tokens

    @property
    def has_draft(self) -> bool:
        return self._draft_name is not None

    @property
    def _forced(self) -> bool:
        return self.config.speculation.forced_tokens_per_cycle is not None

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        steps: int | None = None,
    ) -> list[Completion]:
        """Answers in the order of the prompts, decoded together. A failed request has finish_reason "error".

        steps: drafts a cycle for these requests, where speculation is on; 0 decodes plainly; None takes the config's
        (0 without a head).
        """
        specs = self._specs(prompts, sampling, steps)
        collected: dict[str, _Collector] = {spec.request_id: _Collector(spec) for spec in specs}
        try:
            self._enqueue(specs)
            while any(c.open for c in collected.values()):
                for update in self.step().updates:
                    if update.request_id in collected:
                        collected[update.request_id].take(update)
        finally:
            self._abort_open(collected.values())
        return [collected[spec.request_id].completion() for spec in specs]

    def chat(
        self,
        conversations: Sequence[Sequence[dict[str, Any]]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        steps: int | None = None,
    ) -> list[Completion]:
        """As `generate`, for lists of {"role", "content"} messages, through the model's chat template."""
        return self.generate(conversations, sampling, steps=steps)

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, steps: int | None = None
    ) -> Iterator[Chunk]:
        """Chunks as they are decoded. Closing the iterator aborts the request and frees its pages."""
        (spec,) = self._specs([prompt], sampling, steps)
        collector = _Collector(spec)
        try:
            self._enqueue([spec])
            while collector.open:
                for update in self.step().updates:
                    if update.request_id == spec.request_id:
                        collector.take(update)
                        yield _chunk(update)
        finally:
            self._abort_open([collector])

    def step(self) -> StepOutput:
        """One cycle over everything queued. For callers that drive the engine themselves."""
        decision = self._policy.decide()
        command = StepCommand(
            adds=tuple(self._pending_adds),
            aborts=tuple(self._pending_aborts),
            speculate=decision.speculate,
            reason=decision.reason,
        )
        self._pending_adds, self._pending_aborts = [], []
        output = self._backend.step(command)
        self._policy.observe(output.record)
        self._cycles.append(output.record)
        self._records.write(output.record)
        for update in output.updates:
            if update.record is not None:
                self._live.discard(update.request_id)
                self._records.write(update.record)
        return output

    def abort(self, request_id: str) -> None:
        """Takes effect with the next step."""
        if request_id in self._live:
            self._pending_aborts.append(request_id)

    def take_cycles(self) -> list[CycleRecord]:
        """The records of the cycles since the last call."""
        taken, self._cycles = self._cycles, []
        return taken

    def describe(self) -> RunRecord:
        description = self._description
        return RunRecord(
            alula=alula.__version__,
            torch=str(torch.__version__),
            model=self._model_name,
            draft=self._draft_name,
            device=description.device,
            dtype=description.dtype,
            tp=self.config.parallel.tp,
            draft_placement=description.draft_placement,
            steps=self.config.speculation.steps if self.has_draft else 0,
            speculate=self.config.speculation.speculate,
            exact=description.facts["exactness"]["off"] is None and not self._forced,
            facts=description.facts,
        )

    def environment_records(self) -> tuple[EnvironmentRecord, ...]:
        """What each rank found of its environment when it started; none without ranks."""
        return self._description.environment

    def collectives(self) -> Collectives | None:
        """What became of the collectives so far; None on a single rank."""
        return self._backend.collectives()

    def experiment(self, work: Callable[[Engine], Any]) -> list[Any]:
        """What `work` returns in each rank, called with the rank's engine between cycles; for measurements.

        It must do the same in every rank and leave the engine as it was. With ranks it and its answer are pickled: a
        function of a module, or a partial of one. Raises InvalidOption while requests are running.
        """
        if self._live or self._pending_aborts:
            raise InvalidOption(f"{len(self._live)} requests are running; an experiment needs an idle engine")
        return self._backend.experiment(work)

    def close(self) -> None:
        """Ends the ranks and writes what became of collectives. May be called again.

        Raises RecordWriteError if a record could not be written during the run (decoding went on without records).
        """
        backend, self._backend = self._backend, _Closed()
        try:
            if self._records.open and (collectives := backend.collectives()) is not None:
                for record in collectives.records():
                    self._records.write(record)
        except RankFailure:
            pass  # the failure was raised where it happened; closing only cleans up
        finally:
            backend.close()
            self._records.close()
        self._records.raise_error()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _specs(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        steps: int | None,
    ) -> list[RequestSpec]:
        if isinstance(prompts, str):
            raise InvalidOption("prompts is one string; expected a list of prompts")
        params = _spread(sampling or SamplingParams(), len(prompts))
        count = self._steps(steps)
        specs = []
        for prompt, own in zip(prompts, params, strict=True):
            self._num_requests += 1
            spec = RequestSpec(
                request_id=f"request-{self._num_requests}",
                prompt_ids=tuple(self._encode(prompt)),
                sampling=own,
                steps=count,
            )
            check_prompt(spec, self._description.vocab_size, self.context_tokens)
            specs.append(spec)
        return specs

    def _steps(self, steps: int | None) -> int:
        never = self.config.speculation.speculate == "never"
        if steps is None:
            return self.config.speculation.steps if self.has_draft and not never else 0
        if not 0 <= steps <= 8:
            raise InvalidOption(f"steps is {steps}; expected 0 (plain decoding) to 8")
        if steps and not self.has_draft:
            raise InvalidOption(f"{steps} draft steps asked for, but no EAGLE-3 head is loaded (--draft)")
        if steps and never:
            raise InvalidOption(f"{steps} draft steps asked for, but speculation is off (--speculate never)")
        return steps

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        items: list[Any] = list(prompt)
        if items and all(isinstance(item, dict) for item in items):
            return self.tokenizer.encode_chat(items)
        return [_token_id(item) for item in items]

    def _enqueue(self, specs: Sequence[RequestSpec]) -> None:
        self._pending_adds += specs
        self._live |= {spec.request_id for spec in specs}

    def _abort_open(self, collectors: Iterable[_Collector]) -> None:
        """After an interruption: requests that never reached the engine are dropped, the others aborted."""
        still_open = {c.spec.request_id for c in collectors if c.open}
        queued = {spec.request_id for spec in self._pending_adds} & still_open
        self._pending_adds = [spec for spec in self._pending_adds if spec.request_id not in queued]
        self._pending_aborts += [i for i in sorted(still_open - queued) if i in self._live]
        self._live -= still_open


def _token_id(item: Any) -> int:
    """Whole numbers of any library; what is none is refused, and not left out."""
    try:
        return operator.index(item)
    except TypeError:
        raise InvalidOption(
            f"a prompt holds {item!r}; expected a text, a list of token ids, or a list of messages "
            "({'role': ..., 'content': ...})"
        ) from None


class _Closed:
    """Stands in for a backend after `close`."""

    def step(self, command: StepCommand) -> StepOutput:
        raise InvalidOption("this LLM was closed")

    def describe(self) -> Description:
        raise InvalidOption("this LLM was closed")

    def collectives(self) -> Collectives | None:
        return None

    def experiment(self, work: Callable[[Engine], Any]) -> list[Any]:
        raise InvalidOption("this LLM was closed")

    def close(self) -> None:
        """Already closed."""


class _Collector:
    """Puts the updates of one request together."""

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._last: Update | None = None

    @property
    def open(self) -> bool:
        return self._last is None

    def take(self, update: Update) -> None:
        self._texts.append(update.text)
        self._token_ids += update.token_ids
        self._logprobs += update.logprobs
        if update.finish_reason is not None:
            self._last = update

    def completion(self) -> Completion:
        last = self._last
        assert last is not None and last.record is not None
        kept = last.num_kept_tokens if last.num_kept_tokens is not None else len(self._token_ids)
        return Completion(
            prompt_ids=self.spec.prompt_ids,
            token_ids=tuple(self._token_ids[:kept]),
            text="".join(self._texts),
            finish_reason=last.finish_reason or ABORT,
            error=last.record.error,
            logprobs=tuple(self._logprobs[:kept]),
            request=last.record,
        )


def _chunk(update: Update) -> Chunk:
    return Chunk(
        text=update.text,
        token_ids=update.token_ids,
        finish_reason=update.finish_reason,
        logprobs=update.logprobs,
        request=update.record,
    )


def _spread(sampling: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if len(sampling) != count:
        raise InvalidOption(f"{len(sampling)} sampling parameters for {count} prompts; expected one each, or one")
    return sampling
