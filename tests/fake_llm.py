"""A stand-in for `alula.LLM`, without torch: spells a fixed answer, a character a token, in made-up cycles.

Shared by the tests of the command line and of the bench. Times are invented (a plain step 10 ms, a cycle 20 ms), so
every figure is known.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from alula.core.config import EngineConfig
from alula.core.dispatch_paths import Collectives
from alula.core.errors import ModelNotFound, PromptTooLong, RankFailure
from alula.core.records import CycleRecord, PhaseOutcome, RequestCycle, RunRecord
from alula.core.sampling import SamplingParams

PLAIN_STEP_MS, CYCLE_MS, PREFILL_MS = 10.0, 20.0, 50.0
ANSWER = "The sky is blue since air scatters blue light more than red, é and 🙂 too."
TOO_LONG, DIES, CTRL_C, LOOPS, DIFFERS, SLOW = "TOO LONG", "DIES", "CTRL C", "LOOPS", "DIFFERS", "SLOW"
GIVES_UP = "GIVES UP"  # drafts in four cycles, then no more


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    error: str | None = None


def cycle(index: int, *, prefill: int = 0, drafted: int = 0, accepted: int = 0, emitted: int = 1) -> CycleRecord:
    """One cycle of one request, with phases that leave half a millisecond to `other`."""
    wall_ms = PREFILL_MS if prefill else (CYCLE_MS if drafted else PLAIN_STEP_MS)
    draft_ms = 6.0 if drafted else 0.0
    phases = {"schedule": 0.5, "draft": draft_ms, "verify": wall_ms - draft_ms - 1.0, "other": 0.5}
    request = RequestCycle(
        request_id="0",
        width=drafted + 1,
        num_prefill=prefill,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        truncated=emitted < accepted + 1,
        kv_tokens=index,
    )
    return CycleRecord(
        index=index, wall_ms=wall_ms, phases_ms=phases, requests=(request,), outcomes={}, num_rows=drafted + 1
    )


class FakeLLM:
    """Accepts two drafts of every cycle. A prompt with one of the words above misbehaves as the word says."""

    closed: list[FakeLLM] = []  # noqa: RUF012  # every instance that was closed; tests read it
    # What a GPU would say of itself, and how phases ran there (draft and extend in drafted cycles); tests set them.
    device = "cpu"
    ranked: Collectives | None = None  # what several ranks would tell
    facts: dict[str, Any] = {"linear": "reference"}  # noqa: RUF012
    outcomes: dict[str, PhaseOutcome] = {}  # noqa: RUF012

    def __init__(
        self,
        model: Any,
        *,
        draft: str | None = "auto",
        config: EngineConfig | None = None,
        record: Path | None = None,
        progress: Any = None,
    ) -> None:
        if model == "missing":
            raise ModelNotFound("no model 'missing'; expected a directory, a hub id, a .gguf file or smollm2-135m")
        self.config = config or EngineConfig()
        self.model, self.draft, self.record = getattr(model, "name", model), draft, record
        self._cycles: list[CycleRecord] = []
        self.requests: list[Any] = []
        if progress is not None:
            for done in (20, 40):
                progress(f"loading weights: {done} of 40 tensors")

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        FakeLLM.closed.append(self)

    def collectives(self) -> Collectives | None:
        return self.ranked

    def describe(self) -> RunRecord:
        return RunRecord(
            alula="test",
            torch="none",
            model=self.model,
            draft=None if self.draft is None else "head",
            device=self.device,
            dtype="float32",
            tp=1,
            draft_placement="replicated",
            steps=self.config.speculation.steps,
            exact=self.config.exact,
            speculate=self.config.speculation.speculate,
            facts=self.facts,
        )

    def take_cycles(self) -> list[CycleRecord]:
        taken, self._cycles = self._cycles, []
        return taken

    def chat(
        self, conversations: Sequence[Any], sampling: SamplingParams, *, steps: int | None = None
    ) -> list[Completion]:
        return [self._complete(conversation, sampling, steps) for conversation in conversations]

    generate = chat

    def stream(self, prompt: Any, sampling: SamplingParams, *, steps: int | None = None) -> Iterator[Chunk]:
        self.requests.append(prompt)
        words = str(prompt)
        _misbehave(words)
        drafts = 0 if self.draft is None or steps == 0 else self.config.speculation.steps
        text = self._answer(words, bool(drafts))[: sampling.max_tokens]
        position, index = 0, 0
        while position < len(text):
            if SLOW in words:
                time.sleep(0.05)
            first = position == 0
            drafted = 0 if first or (GIVES_UP in words and index > 4) else drafts
            emitted = text[position : position + min(2, drafted) + 1]
            record = cycle(
                index,
                prefill=7 if first else 0,
                drafted=drafted,
                accepted=min(2, drafted),
                emitted=len(emitted),
            )
            said = "drafted" if drafted else "plain: unprofitable (1.00 tokens per cycle, break-even 1.25)"
            outcomes = {name: how for name, how in self.outcomes.items() if drafted or name == "verify"}
            speculation = said if drafts and not first else None
            record = msgspec.structs.replace(record, speculation=speculation, outcomes=outcomes)
            self._cycles.append(record)
            position, index = position + len(emitted), index + 1
            reason = None if position < len(text) else ("stop" if len(text) < sampling.max_tokens else "length")
            yield Chunk(text=emitted, token_ids=tuple(map(ord, emitted)), finish_reason=reason)
            if CTRL_C in words and index == 4:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)

    def _answer(self, words: str, drafting: bool) -> str:
        if LOOPS in words:
            return "and so on, " * 20
        return ANSWER[:10] + "X" + ANSWER[11:] if DIFFERS in words and drafting else ANSWER

    def _complete(self, conversation: Any, sampling: SamplingParams, steps: int | None) -> Completion:
        chunks = list(self.stream(conversation, sampling, steps=steps))
        return Completion(
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            text="".join(chunk.text for chunk in chunks),
            finish_reason=chunks[-1].finish_reason or "abort",
        )


def _misbehave(words: str) -> None:
    if TOO_LONG in words:
        raise PromptTooLong("the prompt has 9000 tokens, the context holds 8192; shorten it")
    if DIES in words:
        raise RankFailure("rank 1 died (exit code -9)", rank=1)


def install() -> None:
    """Puts this module in the place of the real engine, for this process."""
    module = types.ModuleType("alula.engine.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    sys.modules["alula.engine.llm"] = module


if __name__ == "__main__":
    install()
    from alula.cli.main import main

    sys.exit(main(sys.argv[1:]))
