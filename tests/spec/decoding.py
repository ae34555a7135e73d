"""Runs requests through tiny engines, and looks into them between cycles."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_heads
from torch import Tensor

import tiny_models
from alula.comm.group import single_group
from alula.core.config import SpeculationConfig
from alula.core.records import CycleRecord, RequestRecord
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine
from alula.engine.request import Request, RequestSpec, TokenLogprob
from alula.engine.setup import Parts
from alula.layers.kernels import choose_kernels
from alula.spec.drafting import ChainStart, Chooser, Drafter
from alula.spec.head_loading import HeadPlace, load_head


@dataclass
class Outcome:
    """One request's answer, and its part of every cycle's record."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_kept_tokens: int | None = None
    record: RequestRecord | None = None
    cycles: list[Any] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        return None if self.record is None else self.record.finish_reason

    @property
    def kept(self) -> list[int]:
        return self.token_ids[: self.num_kept_tokens]

    @property
    def accepted(self) -> list[int]:
        """Drafts accepted, by decoding cycle."""
        return [cycle.accepted for cycle in self.cycles if not cycle.num_prefill]


@functools.cache
def tiny_parts(family: str = "plain", kind: str = "bigram", **config: Any) -> Parts:
    """A tiny engine's parts, made once for each set of options. kind: a head of tiny_models, or "random" or
    "adversarial" weights in the bigram head's form."""
    weights = kind if kind in ("random", "adversarial") else "trained"
    head: Path = tiny_models.head(family, "bigram" if weights != "trained" else kind)
    return tiny_heads.parts(family, head, speculation={"head": weights}, **config)


def with_head(parts: Parts, weights: str, head: Any, **speculation: Any) -> Parts:
    """The same loaded target with other weights of its head, or another reading of it."""
    assert parts.drafter is not None
    target = parts.target
    choice = choose_kernels(parts.device, parts.geometry.dtype)
    place = HeadPlace(
        single_group(), parts.geometry.dtype, parts.device, choice, "auto", parts.context_tokens, seed=1
    )
    draft = load_head(head, SpeculationConfig(head=weights, **speculation), target, place)
    return replace(parts, drafter=Drafter(draft, parts.drafter.geometry))


def request(
    prompt: Sequence[int], steps: int, name: str = "r", sampling: SamplingParams | None = None
) -> RequestSpec:
    return RequestSpec(
        request_id=name, prompt_ids=tuple(prompt), sampling=sampling or SamplingParams(max_tokens=16), steps=steps
    )


def decode(
    engine: Engine,
    specs: Sequence[RequestSpec],
    *,
    arrivals: Sequence[int] = (),
    decisions: Sequence[bool] = (True,),
    after_step: Callable[[Engine, CycleRecord], None] | None = None,
) -> dict[str, Outcome]:
    """Runs to the end. arrivals: the cycle before which each request is added, 0 where left out. decisions: whether
    each cycle may draft, over and over."""
    outcomes = {spec.request_id: Outcome() for spec in specs}
    waiting = list(zip([*arrivals, *[0] * (len(specs) - len(arrivals))], specs, strict=True))
    num_cycles = 0
    while waiting or engine.has_work:
        for due, spec in list(waiting):
            if due <= num_cycles or not engine.has_work:
                engine.add(spec)
                waiting.remove((due, spec))
        output = engine.step(decisions[num_cycles % len(decisions)])
        num_cycles += 1
        for part in output.record.requests:
            outcomes[part.request_id].cycles.append(part)
        for update in output.updates:
            outcome = outcomes[update.request_id]
            outcome.token_ids += update.token_ids
            outcome.text += update.text
            outcome.logprobs += update.logprobs
            if update.finish_reason is not None:
                outcome.record, outcome.num_kept_tokens = update.record, update.num_kept_tokens
        if after_step is not None:
            after_step(engine, output.record)
    return outcomes


def answer(parts: Parts, spec: RequestSpec) -> Outcome:
    """One request alone, in an engine of its own."""
    return decode(Engine(parts), [spec])[spec.request_id]


def running(engine: Engine) -> list[Request]:
    return engine._scheduler.running


@contextlib.contextmanager
def drafts_from(propose: Callable[[Request, int, int], list[int]], engine: Engine) -> Iterator[None]:
    """Replaces the chain: `propose(request, first position, count)` names the drafts. The extend pass stays."""

    def chain(self: Drafter, starts: Sequence[ChainStart], choose: Chooser) -> list[list[int]]:
        owners = {id(request.table): request for request in running(engine)}
        return [propose(owners[id(start.table)], start.num_kv + 1, start.steps) for start in starts]

    with mock.patch.object(Drafter, "chain", chain):
        yield


def oracle(answers: dict[str, Sequence[int]], wrong_at: Callable[[int], bool] = lambda position: False) -> Any:
    """Proposes each request's known tokens (prompt and answer), but another one wherever `wrong_at` says so."""

    def propose(request: Request, first: int, count: int) -> list[int]:
        known = answers[request.spec.request_id]
        drafts = []
        for position in range(first, first + count):
            token = known[position] if position < len(known) else 0
            drafts.append((token + 1) % tiny_models.VOCAB_SIZE if wrong_at(position) else token)
        return drafts

    return propose


def draft_kv(parts: Parts, request: Request) -> tuple[Tensor, Tensor]:
    """The draft's keys and values of the committed positions."""
    assert parts.drafter is not None
    return _slots(parts.drafter.geometry.cache, request)


def target_kv(parts: Parts, request: Request) -> tuple[Tensor, Tensor]:
    return _slots(parts.geometry.cache, request)


def _slots(cache: Any, request: Request) -> tuple[Tensor, Tensor]:
    slots = request.table.slots(0, request.num_kv)
    return cache.k_LSKD[:, slots].clone(), cache.v_LSKD[:, slots].clone()
