"""The draws of a cycle: draft and target share their noise by position, and parts do not touch each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from alula.core.sampling import SamplingParams
from alula.engine.request import Request, RequestSpec
from alula.engine.runner import TargetRows
from alula.engine.sampler import Drawn, TokenSampler
from alula.engine.scheduler import Scheduled
from alula.engine.text_stream import TextStream
from alula.kernels.reference.noise import NoiseWindow
from alula.kernels.reference.penalties import TokenCounts
from alula.layers.slot_table import SlotTable

CPU = torch.device("cpu")
VOCAB_SIZE = 50
SAMPLER = TokenSampler(VOCAB_SIZE, CPU)
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=1.0, seed=1, sample_index=1),
    SamplingParams(temperature=0.8, top_k=12, top_p=0.9, seed=2),
    SamplingParams(temperature=1.5, min_p=0.1, seed=3),
]


def make_part(sampling: SamplingParams, num_tokens: int, num_drafts: int, samples: bool = True) -> Scheduled:
    spec = RequestSpec(
        request_id="one", prompt_ids=tuple(i % VOCAB_SIZE for i in range(num_tokens)), sampling=sampling, steps=8
    )
    counts = TokenCounts(VOCAB_SIZE, spec.prompt_ids) if sampling.penalised else None
    noise = None
    if not sampling.greedy:
        noise = NoiseWindow(sampling.seed, sampling.sample_index, VOCAB_SIZE, max_rows=9)
    request = Request(
        spec=spec,
        table=SlotTable(4),
        stream=TextStream(lambda ids: ""),
        counts=counts,
        noise=noise,
        arrival=0,
    )
    return Scheduled(request, num_known=1, num_drafts=num_drafts, samples=samples, is_prefill=False)


def random_logits(num_rows: int, seed: int) -> Tensor:
    return 3 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def draw(parts: list[Scheduled], drafts: list[list[int]], logits_SV: Tensor) -> Drawn:
    """One draw over parts that all sample, whose rows lie one after the other."""
    firsts, base = [], 0
    for part in parts:
        firsts.append(base if part.samples else None)
        base += part.num_drafts + 1 if part.samples else 0
    rows = TargetRows(features_RF=None, logits_SV=logits_SV, first_sampled=tuple(firsts), broken=frozenset())
    return SAMPLER.draw(parts, drafts, rows)


@pytest.mark.parametrize("hot", [list(range(VOCAB_SIZE)), [i for i in range(VOCAB_SIZE) if i % 3]])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_that_knows_the_target_is_always_right(sampling: SamplingParams, hot: list[int]) -> None:
    """Equal logits give equal draws, at every step of a chain: one noise, keyed by the position that is drawn."""
    hot_D = torch.tensor(hot)
    for num_tokens in (1, 7, 30):
        part = make_part(sampling, num_tokens, num_drafts=4)
        logits_WV = random_logits(5, seed=num_tokens)
        # Tokens that the draft does not have are all but impossible, so both have one distribution.
        cold = torch.ones(VOCAB_SIZE, dtype=torch.bool)
        cold[hot_D] = False
        logits_WV[:, cold] = -1e9
        choose = SAMPLER.chooser([part], hot_D)
        chosen = [int(hot_D[choose(step, [0], logits_WV[step : step + 1][:, hot_D])]) for step in range(4)]
        drawn = draw([part], [chosen], logits_WV)
        assert drawn.tokens[0][:4] == chosen


@given(
    kinds=st.lists(
        st.tuples(st.integers(0, len(SAMPLINGS) - 1), st.integers(0, 8), st.booleans()), min_size=1, max_size=6
    )
)
@settings(max_examples=50)
def test_parts_do_not_touch_each_other(kinds: list[tuple[int, int, bool]]) -> None:
    """In a batch of any parts, each gets what it draws alone; those that do not sample get nothing."""
    parts = [
        make_part(SAMPLINGS[kind], 5 + i, num_drafts, samples)
        for i, (kind, num_drafts, samples) in enumerate(kinds)
    ]
    drafts = [[7] * part.num_drafts for part in parts]
    pieces = [random_logits(part.num_drafts + 1, seed=i) for i, part in enumerate(parts)]
    sampled = [piece for piece, part in zip(pieces, parts, strict=True) if part.samples]
    if not sampled:
        return
    drawn = draw(parts, drafts, torch.cat(sampled))
    assert drawn.tokens.keys() == {i for i, part in enumerate(parts) if part.samples}
    for i, tokens in drawn.tokens.items():
        assert tokens == draw([parts[i]], [drafts[i]], pieces[i]).tokens[0]


def test_steps_of_a_chain_leave_out_those_that_are_done() -> None:
    """`active` names parts, and the rows of the logits go with it."""
    parts = [make_part(SAMPLINGS[1], 5, 1), make_part(SAMPLINGS[3], 9, 3), make_part(SAMPLINGS[0], 2, 2)]
    logits_BV = random_logits(3, seed=0)
    hot_D = torch.arange(VOCAB_SIZE)
    together = SAMPLER.chooser(parts, hot_D)(1, [1, 2], logits_BV[1:])
    alone = [SAMPLER.chooser([parts[i]], hot_D)(1, [0], logits_BV[i : i + 1]) for i in (1, 2)]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", range(len(SAMPLINGS)))
def test_logits_that_are_no_numbers_break_their_part_alone(bad: float, kind: int) -> None:
    parts = [make_part(SAMPLINGS[kind], 5, 2) for _ in range(3)]
    drafts = [[1, 2]] * 3
    logits_SV = random_logits(9, seed=0)
    expected = draw(parts, drafts, logits_SV).tokens
    logits_SV[4] = bad  # a row of the second part
    drawn = draw(parts, drafts, logits_SV)
    assert drawn.broken == {1}
    assert drawn.tokens == {0: expected[0], 2: expected[2]}


def test_penalties_leave_the_logits_and_the_reported_logprobs_alone() -> None:
    penalised = SamplingParams(repetition_penalty=5.0, logprobs=3)
    parts = [make_part(penalised, 20, 2), make_part(SamplingParams(logprobs=3), 20, 2)]
    logits_SV = random_logits(3, seed=0).repeat(2, 1)
    logits_SV[:, :20] += 5.0
    before = logits_SV.clone()
    drawn = draw(parts, [[30, 31], [30, 31]], logits_SV)
    assert torch.equal(logits_SV, before)
    assert all(token >= 20 for token in drawn.tokens[0]) and all(token < 20 for token in drawn.tokens[1])
    assert [entry.top for entry in drawn.logprobs[0]] == [entry.top for entry in drawn.logprobs[1]]
    raw_SV = logits_SV.log_softmax(-1)
    for row, entry in enumerate(drawn.logprobs[0]):
        assert entry.logprob == pytest.approx(float(raw_SV[row, entry.token_id]), abs=1e-5)
