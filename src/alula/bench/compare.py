"""Runs both sides on the same prompts, alternately, in one process.

Drives whatever has the methods of `Decoder`; does not know how it decodes. A fault or Ctrl-C half-way keeps what was
measured before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from alula.bench.prompts import Prompt
from alula.bench.results import Answer, PromptRun
from alula.core.errors import AlulaError, UserError
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams

WARM_UP_TOKENS = 16
PLAIN = 0  # drafts a cycle


class Completed(Protocol):
    """What this file reads of a completion."""

    token_ids: tuple[int, ...]
    finish_reason: str
    error: str | None


class Decoder(Protocol):
    """What a bench needs of an engine; `alula.LLM` is one. steps=0 decodes plainly, None as configured."""

    def chat(self, conversations: Any, sampling: SamplingParams, *, steps: int | None = None) -> Sequence[Any]: ...

    def generate(self, prompts: Any, sampling: SamplingParams, *, steps: int | None = None) -> Sequence[Any]: ...

    def take_cycles(self) -> list[CycleRecord]: ...


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What to decode. `raw` sends the text without the chat template; `drafting` False measures plainly only.

    textless: random weights, so the answers are no text. forced_tokens_per_cycle: what acceptance is forced to.
    """

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    raw: bool = False
    drafting: bool = True
    textless: bool = False
    forced_tokens_per_cycle: float | None = None
    deadline: float | None = None  # of time.monotonic(); looked at between prompts


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt without a measurement, and why."""

    prompt_id: str
    error: str


class Measurement(msgspec.Struct, kw_only=True):
    """What was measured. stopped: None, "budget", "interrupted" or "fault" (then `fault` is the error)."""

    runs: list[PromptRun] = []
    skipped: list[Skipped] = []
    stopped: str | None = None
    fault: AlulaError | None = None


def measure(decoder: Decoder, workload: Workload, advance: Callable[[], None] = lambda: None) -> Measurement:
    """Decodes every prompt plainly and with the draft; `advance` is called after each prompt.

    The order of the two sides is swapped at every other prompt, so that neither always runs on warm caches. At least
    one prompt is measured whatever the budget. Faults and Ctrl-C end up in the measurement, not in the caller's lap.
    """
    measurement = Measurement()
    try:
        _warm_up(decoder, workload)
        for index, prompt in enumerate(workload.prompts):
            if index and workload.deadline is not None and time.monotonic() >= workload.deadline:
                measurement.stopped = "budget"
                break
            _measure_prompt(decoder, workload, prompt, measurement)
            advance()
    except KeyboardInterrupt:
        measurement.stopped = "interrupted"
    except AlulaError as error:
        measurement.stopped, measurement.fault = "fault", error
    return measurement


def _measure_prompt(decoder: Decoder, workload: Workload, prompt: Prompt, measurement: Measurement) -> None:
    sides: list[int | None] = [PLAIN, None] if workload.drafting else [PLAIN]
    if len(measurement.runs) % 2:
        sides.reverse()
    try:
        answers = {steps: _answer(decoder, workload, prompt, steps) for steps in sides}
    except UserError as error:  # this prompt does not fit, the next one may
        measurement.skipped.append(Skipped(prompt_id=prompt.id, error=str(error)))
        return
    forced = workload.forced_tokens_per_cycle is not None
    measurement.runs.append(
        PromptRun(
            prompt_id=prompt.id,
            category=prompt.category,
            plain=answers[PLAIN],
            eagle3=answers.get(None),
            textless=workload.textless or forced,
            forced=forced,
        )
    )


def _answer(decoder: Decoder, workload: Workload, prompt: Prompt, steps: int | None) -> Answer:
    decoder.take_cycles()
    completion: Completed
    if prompt.token_ids:
        completion = decoder.generate([list(prompt.token_ids)], workload.sampling, steps=steps)[0]
    elif workload.raw:
        completion = decoder.generate([prompt.raw_text()], workload.sampling, steps=steps)[0]
    else:
        completion = decoder.chat([list(prompt.messages)], workload.sampling, steps=steps)[0]
    cycles = tuple(decoder.take_cycles())
    if completion.finish_reason == "error":
        raise UserError(completion.error or "the engine gave no reason")
    return Answer(token_ids=tuple(completion.token_ids), finish_reason=completion.finish_reason, cycles=cycles)


def _warm_up(decoder: Decoder, workload: Workload) -> None:
    """First calls pay for allocations, packed weights and lazily loaded kernels; both sides pay here."""
    limit = min(WARM_UP_TOKENS, workload.sampling.max_tokens)
    short = msgspec.structs.replace(
        workload,
        sampling=msgspec.structs.replace(workload.sampling, max_tokens=limit),
        prompts=workload.prompts[:1],
    )
    _measure_prompt(decoder, short, short.prompts[0], Measurement())
