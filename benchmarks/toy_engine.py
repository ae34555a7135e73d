"""alula's own engine over a toy target: eight tokens, and a table that says what follows the last two of them.

Everything but the two models is the real thing: requests, scheduler, pages, slots, masks, the five verbs, the sampler
and its noise. The target keeps token ids in the real KV cache and finds the token before a row's own where the
geometry says that attention may look, so that wrong positions, stale keys or a wrong mask change its law. The draft
is a table too. Used by the tests of losslessness and, with large numbers, by `make acceptance`.

R rows, V vocabulary, D draft vocabulary, B requests of a group, W rows of each, T tokens seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from alula.comm.group import single_group
from alula.core.config import EngineConfig
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams
from alula.core.shape import ModelShape
from alula.engine import cycle, runner
from alula.engine.engine import Engine
from alula.engine.exactness import Exactness
from alula.engine.request import RequestSpec, Update
from alula.engine.sampler import TokenSampler
from alula.engine.setup import Parts
from alula.kernels.reference.attention import AttentionGroup
from alula.kernels.reference.noise import gumbel
from alula.layers.forward_input import ForwardInput
from alula.layers.geometry import Geometry, Segment
from alula.layers.kv_cache import KVCache
from alula.layers.slot_table import as_tensor
from alula.models.llama import TargetOutput
from alula.spec.acceptance import Acceptance, accept_chain
from alula.spec.draft_model import DraftOutput
from alula.spec.drafting import Drafter, greedy_chooser

VOCAB_SIZE = 8
# Deliberate faults, each of which a test of losslessness must find.
REJECTED_KV_STAYS, POSITION_OFF_BY_ONE = "rejected_kv_stays", "position_off_by_one"
NOISE_REUSED, REJECTED_TOKEN_KEPT = "noise_reused", "rejected_token_kept"
FAULTS = (REJECTED_KV_STAYS, POSITION_OFF_BY_ONE, NOISE_REUSED, REJECTED_TOKEN_KEPT)


def random_table(seed: int, scale: float = 1.5) -> Tensor:
    """table_VVV: logits of the next token by the last two."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, generator=generator)


def draft_table(kind: str, target_VVV: Tensor, seed: int = 1) -> Tensor:
    """near: the target's with some noise. random: another table. biased: nearly always one token. adversarial: the
    target's, negated. oracle: the target's own."""
    other_VVV = random_table(seed)
    biased_VVV = 0.1 * other_VVV
    biased_VVV[:, :, 3] += 6.0
    tables = {
        "near": target_VVV + 0.5 * other_VVV,
        "random": other_VVV,
        "biased": biased_VVV,
        "adversarial": -target_VVV,
        "oracle": target_VVV,
    }
    return tables[kind]


class ToyTarget:
    """In the place of a LlamaModel. Its hidden state is the row of the table, its feature the token's id."""

    def __init__(self, table_VVV: Tensor) -> None:
        self._table_VVV = table_VVV

    def __call__(self, forward: ForwardInput, boundaries: tuple[int, ...] = ()) -> TargetOutput:
        ids_R = forward.ids_R
        marks_R11 = (ids_R + 1).float().view(-1, 1, 1)
        _write(forward, marks_R11, marks_R11)
        hidden_RV = self._table_VVV[_tokens_before(forward), ids_R]
        return TargetOutput(hidden_RV, ids_R[:, None].float() if boundaries else None)

    def logits(self, hidden_RV: Tensor, phase: str) -> Tensor:
        return hidden_RV


def _tokens_before(forward: ForwardInput) -> Tensor:
    """For each row, the token at the last but one position that it may see; token 0 where there is none."""
    before_R = torch.zeros_like(forward.ids_R)
    for group in forward.groups:
        slots_BT = group.slots
        if isinstance(slots_BT, slice):
            slots_BT = torch.arange(slots_BT.start, slots_BT.stop)[None]
        index_BW = _last_seen(group, slots_BT.shape[1]) - 1
        slot_BW = slots_BT.gather(1, index_BW.clamp(min=0))
        mark_BW = forward.cache.k_LSKD[0, :, 0, 0][slot_BW].long()
        # A slot that nobody wrote holds 0; to read one is a fault, and gives a token like any other.
        before_R[group.rows] = torch.where(index_BW < 0, 0, (mark_BW - 1) % VOCAB_SIZE).flatten()
    return before_R


def _last_seen(group: AttentionGroup, num_seen: int) -> Tensor:
    if group.mask is None:
        return torch.full((group.num_requests, group.width), num_seen - 1)
    visible_BWT = group.mask.view(group.num_requests, group.width, -1) == 0
    return visible_BWT.sum(-1) - 1


@dataclass(frozen=True)
class ToyHeadConfig:
    """What the engine asks a head's config for."""

    boundaries: tuple[int, ...] = (0,)
    feedback: str = "pre"


class ToyDraft:
    """In the place of a DraftModel: pairs the feature of a token (its id) with the token after it. `seen` gets, for
    each forward, its phase and its rows of (position, feature's token, successor)."""

    def __init__(self, table_VVV: Tensor, hot_ids: Sequence[int]) -> None:
        self.config = ToyHeadConfig()
        self.hot_D = torch.tensor(list(hot_ids))
        self.placement = "replicated"
        self.seen: list[tuple[str, list[tuple[int, int, int]]]] | None = None
        self._table_VVV = table_VVV

    def fuse(self, features_RF: Tensor) -> Tensor:
        return features_RF

    def __call__(self, forward: ForwardInput, feature_RH: Tensor) -> DraftOutput:
        ids_R, before_R = forward.ids_R, feature_RH[:, 0].long()
        _write(forward, feature_RH[:, None], ids_R.float().view(-1, 1, 1))
        if self.seen is not None:
            rows = zip(forward.positions_R.tolist(), before_R.tolist(), ids_R.tolist(), strict=True)
            self.seen.append((forward.phase, list(rows)))
        return DraftOutput(ids_R[:, None].float(), self._table_VVV[before_R, ids_R])

    def logits(self, normed_RV: Tensor, phase: str) -> Tensor:
        return normed_RV[:, self.hot_D]


class ToyTokenizer:
    """A letter a token; no token ends a text unless a request says so."""

    eos_token_ids: frozenset[int] = frozenset()
    has_text = True

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


class _StickyCache(KVCache):
    """Keeps what a slot holds already: the keys of rejected drafts stay in place."""


def _write(forward: ForwardInput, k_R11: Tensor, v_R11: Tensor) -> None:
    slots_R, cache = as_tensor(forward.write_slots), forward.cache
    if isinstance(cache, _StickyCache):
        free_R = cache.k_LSKD[0, slots_R, 0, 0] == 0
        slots_R, k_R11, v_R11 = slots_R[free_R], k_R11[free_R], v_R11[free_R]
    cache.k_LSKD[0, slots_R] = k_R11
    cache.v_LSKD[0, slots_R] = v_R11


class _NoiseRow:
    """In the place of a NoiseWindow: one request's rows of a sheet that was made for all at once."""

    def __init__(self, noise_PV: Tensor) -> None:
        self._noise_PV = noise_PV

    def rows(self, first: int, num_rows: int) -> Tensor:
        return self._noise_PV[first : first + num_rows]


class ToyEngine(Engine):
    """`noise`: by seed, the noise of every position; without it each request makes its own."""

    noise: dict[int, _NoiseRow] | None = None

    def _noise(self, spec: RequestSpec) -> Any:
        return super()._noise(spec) if self.noise is None else self.noise[spec.sampling.seed]


@dataclass(frozen=True)
class Toy:
    """A target, a draft, and an engine's sizes."""

    target_VVV: Tensor
    draft_VVV: Tensor
    hot_ids: tuple[int, ...] = tuple(range(VOCAB_SIZE))
    page_tokens: int = 16
    num_pages: int = 256
    context_tokens: int = 32
    chunk_tokens: int = 4096
    max_batch: int = 1024
    argmax_drafts: bool = False
    fault: str | None = None


def build(toy: Toy) -> ToyEngine:
    """An engine of its own, with an empty cache."""
    cpu = torch.device("cpu")
    num_slots = toy.num_pages * toy.page_tokens
    sticky = toy.fault == REJECTED_KV_STAYS
    cache = (_StickyCache if sticky else KVCache)(1, num_slots, 1, 1, torch.float32, cpu)
    draft_cache = KVCache(1, num_slots, 1, 1, torch.float32, cpu)
    draft: Any = ToyDraft(toy.draft_VVV, toy.hot_ids)
    target: Any = ToyTarget(toy.target_VVV)
    tokenizer: Any = ToyTokenizer()
    config = EngineConfig(
        device="cpu",
        dtype="float32",
        page_tokens=toy.page_tokens,
        context_tokens=toy.context_tokens,
        chunk_tokens=toy.chunk_tokens,
        max_batch=toy.max_batch,
    )
    parts = Parts(
        config=config,
        shape=_SHAPE,
        tokenizer=tokenizer,
        target=target,
        drafter=Drafter(draft, Geometry(draft_cache, 1, cpu)),
        geometry=Geometry(cache, 1, cpu),
        exactness=Exactness(off=None),
        group=single_group(),
        device=cpu,
        num_pages=toy.num_pages,
        context_tokens=toy.context_tokens,
        facts={},
    )
    return ToyEngine(parts)


@dataclass
class Answer:
    """One request's outcome, and its part of every cycle's record: (drafted, accepted, emitted, prefill rows)."""

    token_ids: list[int] = field(default_factory=list)
    last: Update | None = None
    cycles: list[tuple[int, int, int, int]] = field(default_factory=list)


def run(
    engine: ToyEngine,
    specs: Sequence[RequestSpec],
    toy: Toy,
    arrivals: Sequence[int] | None = None,
    decisions: Sequence[bool] = (True,),
) -> tuple[dict[str, Answer], list[CycleRecord]]:
    """Runs requests to their end. arrivals: the cycle before which each is added (0 where left out). decisions: whether
    each cycle may draft, over and over."""
    answers = {spec.request_id: Answer() for spec in specs}
    waiting = sorted(zip(arrivals or [0] * len(specs), range(len(specs)), strict=True), reverse=True)
    records: list[CycleRecord] = []
    with broken(toy):
        while waiting or engine.has_work:
            while waiting and (waiting[-1][0] <= len(records) or not engine.has_work):
                engine.add(specs[waiting.pop()[1]])
            output = engine.step(decisions[len(records) % len(decisions)])
            records.append(output.record)
            for update in output.updates:
                answers[update.request_id].token_ids += update.token_ids
                if update.finish_reason is not None:
                    answers[update.request_id].last = update
            for part in output.record.requests:
                seen = (part.drafted, part.accepted, part.emitted, part.num_prefill)
                answers[part.request_id].cycles.append(seen)
    return answers, records


@dataclass(frozen=True)
class Sample:
    """Many runs of one request, each with a seed of its own. first_accepted_N: drafts accepted in its first decoding
    cycle, first_drafted of them offered."""

    tokens_NL: Tensor
    first_accepted_N: Tensor
    first_drafted: int
    num_emitted: int
    num_accepted: int
    num_cycles: int


@dataclass(frozen=True)
class Mix:
    """A kind of request: its prompt, its sampling, its drafts a cycle."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    steps: int


def collect(
    toy: Toy, mix: Sequence[Mix], num_runs: int, length: int, first_seed: int = 0, batch: int = 200
) -> list[Sample]:
    """`num_runs` runs of every kind in `mix`, decoded side by side, `batch` of all kinds together at a time."""
    found: list[list[Answer]] = [[] for _ in mix]
    per_batch = max(1, batch // len(mix))
    together = per_batch * len(mix)
    num_pages = 1 + together * -(-toy.context_tokens // toy.page_tokens)
    toy = replace(toy, max_batch=together, num_pages=num_pages)
    for start in range(0, num_runs, per_batch):
        count = min(per_batch, num_runs - start)
        seeds = [first_seed + (start + i) * len(mix) + k for i in range(count) for k in range(len(mix))]
        engine = build(toy)
        engine.noise = _noise_sheet(seeds, toy)
        specs = [_spec(kind, seed) for seed, kind in zip(seeds, list(mix) * count, strict=True)]
        answers, _ = run(engine, specs, toy)
        for i, spec in enumerate(specs):
            found[i % len(mix)].append(answers[spec.request_id])
    return [_sample(answers, length) for answers in found]


def _spec(kind: Mix, seed: int) -> RequestSpec:
    params = {name: getattr(kind.sampling, name) for name in kind.sampling.__struct_fields__}
    sampling = SamplingParams(**{**params, "seed": seed})
    return RequestSpec(request_id=str(seed), prompt_ids=kind.prompt_ids, sampling=sampling, steps=kind.steps)


def _noise_sheet(seeds: Sequence[int], toy: Toy) -> dict[int, _NoiseRow]:
    positions_P = torch.arange(toy.context_tokens)
    if toy.fault == NOISE_REUSED:
        positions_P = positions_P // 2 * 2
    seeds_R = torch.tensor(seeds).repeat_interleave(len(positions_P))
    noise_RV = gumbel(seeds_R, torch.zeros(1, dtype=torch.int64), positions_P.repeat(len(seeds)), VOCAB_SIZE)
    rows = noise_RV.view(len(seeds), len(positions_P), VOCAB_SIZE).unbind()
    return {seed: _NoiseRow(noise_PV) for seed, noise_PV in zip(seeds, rows, strict=True)}


def _sample(answers: Sequence[Answer], length: int) -> Sample:
    decoding = [[c for c in answer.cycles if not c[3]] for answer in answers]
    firsts = [cycles[0] for cycles in decoding if cycles]
    return Sample(
        tokens_NL=torch.tensor([answer.token_ids[:length] for answer in answers]),
        first_accepted_N=torch.tensor([accepted for _, accepted, _, _ in firsts]),
        first_drafted=max((drafted for drafted, _, _, _ in firsts), default=0),
        num_emitted=sum(emitted for cycles in decoding for _, _, emitted, _ in cycles),
        num_accepted=sum(accepted for cycles in decoding for _, accepted, _, _ in cycles),
        num_cycles=sum(map(len, decoding)),
    )


@contextlib.contextmanager
def broken(toy: Toy) -> Iterator[None]:
    """Puts the toy's fault, and its way of drafting, in the engine's place for as long as it runs."""
    with contextlib.ExitStack() as stack:
        if toy.argmax_drafts:
            stack.enter_context(mock.patch.object(TokenSampler, "chooser", lambda *_: greedy_chooser))
        if toy.fault == POSITION_OFF_BY_ONE:
            stack.enter_context(mock.patch.object(runner, "build_forward", _shifted_forward))
        if toy.fault == REJECTED_TOKEN_KEPT:
            stack.enter_context(mock.patch.object(cycle, "accept_chain", _accept_one_too_many))
        yield


def _shifted_forward(geometry: Geometry, segments: Sequence[Segment], *rest: Any) -> ForwardInput:
    """Verify at L_kv + 1 instead of L_kv."""
    shifted = [Segment(s.table, s.first_position + (s.first_position > 0), s.width) for s in segments]
    return _build_forward(geometry, shifted, *rest)


def _accept_one_too_many(drafts: Sequence[int], draws: Sequence[int]) -> Acceptance:
    found = accept_chain(drafts, draws)
    if found.accepted == len(drafts):
        return found
    rejected = drafts[found.accepted]
    return Acceptance(found.accepted, (*found.emitted[:-1], rejected, found.emitted[-1]))


_build_forward = runner.build_forward
_SHAPE = ModelShape(
    architecture="toy",
    hidden_size=VOCAB_SIZE,
    intermediate_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    vocab_size=VOCAB_SIZE,
    max_position=1 << 20,
    rms_norm_eps=1e-6,
    rope_theta=1.0,
)
