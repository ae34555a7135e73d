"""The law of the emitted tokens is the target's, whatever is drafted (specs/eagle3.md 4.5, items 1 to 3).

Through alula's own engine over a toy target whose exact law can be enumerated. `make acceptance` runs the same cases
with more runs.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toy_engine import FAULTS, VOCAB_SIZE, Mix, build, draft_table, run
from toy_statistics import (
    CASES,
    FILTERED,
    MIXED,
    PENALISED,
    PROMPT,
    TARGET_VVV,
    WARM,
    ExactLaw,
    agreement,
    chi_square_p,
    faulty,
    fit,
    judge,
    one,
)

from alula.core.sampling import SamplingParams
from alula.engine.request import RequestSpec
from alula.kernels.reference.noise import gumbel
from alula.kernels.reference.sampling import RowSampling, process_logits

NUM_RUNS = {"one_noise_near": 20_000}
OTHER_RUNS = 4000


@pytest.mark.parametrize("name", CASES)
def test_the_law_is_the_targets_and_drafts_agree_as_often_as_they_should(name: str) -> None:
    (verdict,) = judge(name, CASES[name], NUM_RUNS.get(name, OTHER_RUNS))
    assert verdict.good, verdict


def test_the_law_of_each_request_in_a_mixed_batch() -> None:
    for verdict in judge("mixed", MIXED, 2000):
        assert verdict.good, verdict


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    """The negative controls: the same check refuses an engine that is broken on purpose."""
    (verdict,) = judge(fault, faulty(fault), 2500)
    assert not all(fit.good for fit in verdict.fits), verdict


def test_the_case_that_is_broken_is_good_when_whole() -> None:
    case = one(CASES["one_noise_near"].toy, FILTERED, 2)
    (verdict,) = judge("control", case, 2500)
    assert verdict.good, verdict


@pytest.mark.parametrize("temperature", [0.75, 0.86])
def test_the_check_sees_a_slightly_wrong_law(temperature: float) -> None:
    """20000 draws from temperature 0.8 do not pass for another temperature close to it."""
    kind = Mix(PROMPT, FILTERED, 2)
    other = Mix(PROMPT, SamplingParams(temperature=temperature, top_k=5, top_p=0.9), 2)
    right, _ = ExactLaw(TARGET_VVV, kind).windows()
    wrong, _ = ExactLaw(TARGET_VVV, other).windows()
    generator = torch.Generator().manual_seed(0)
    cells = torch.multinomial(right, 20_000, replacement=True, generator=generator)
    tokens = torch.stack((cells // 64, cells // 8 % 8, cells % 8), 1)
    assert fit(tokens, right).good
    assert not fit(tokens, wrong).good


@pytest.mark.parametrize("sampling", [FILTERED, WARM, PENALISED])
def test_the_exact_law_is_a_law(sampling: SamplingParams) -> None:
    for window in ExactLaw(TARGET_VVV, Mix(PROMPT, sampling, 2)).windows():
        assert window.shape == (VOCAB_SIZE**3,)
        assert float(window.sum()) == pytest.approx(1.0, abs=1e-12)


def test_the_exact_law_and_the_engine_process_logits_alike() -> None:
    """Written apart from each other; they must agree or one of them is wrong."""
    for sampling in (FILTERED, WARM):
        law = ExactLaw(TARGET_VVV, Mix(PROMPT, sampling, 2))
        rows = RowSampling.build([sampling])
        for last in range(VOCAB_SIZE):
            ours = process_logits(TARGET_VVV[PROMPT[-1], last][None], rows)[0].exp()
            torch.testing.assert_close(
                ours.double(), torch.tensor(law.next((last,))).double(), atol=1e-6, rtol=1e-5
            )


@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [(3.841458820694124, 1, 0.05), (18.307038053275146, 10, 0.05), (0.0, 4, 1.0), (600.0, 500, 0.00138)],
)
def test_chi_square(statistic: float, degrees: int, expected: float) -> None:
    """Against the published table of critical values; the last by Wilson and Hilferty's approximation."""
    assert chi_square_p(statistic, degrees) == pytest.approx(expected, rel=0.02)


def test_agreement_of_two_draws_with_one_noise() -> None:
    """The formula against 100000 pairs of draws."""
    p, q = [0.5, 0.3, 0.15, 0.05, 0.0], [0.2, 0.2, 0.0, 0.3, 0.3]
    num_draws = 100_000
    noise = gumbel(torch.tensor([3]), torch.tensor([0]), torch.arange(num_draws), 5)
    ours, theirs = ((torch.tensor(law).log() + noise).argmax(-1) for law in (p, q))
    for token, exact in enumerate(agreement(p, q)):
        measured = float(((ours == token) & (theirs == token)).double().mean())
        assert abs(measured - exact) <= 3 * math.sqrt(exact * (1 - exact) / num_draws)
    assert sum(agreement(p, p)) == pytest.approx(1.0)


def test_the_sheet_of_noise_is_what_requests_make_for_themselves() -> None:
    """The toy draws all noise at once, for speed; requests alone give the same tokens."""
    toy = CASES["one_noise_near"].toy
    specs = [
        RequestSpec(
            request_id=str(seed),
            prompt_ids=PROMPT,
            sampling=SamplingParams(temperature=1.0, max_tokens=4, seed=seed),
            steps=2,
        )
        for seed in range(40)
    ]
    answers, _ = run(build(toy), specs, toy)
    tokens = torch.tensor([answers[spec.request_id].token_ids for spec in specs])
    assert torch.equal(tokens, _drawn_by_hand(40, 4))


def _drawn_by_hand(num_runs: int, length: int) -> Tensor:
    """Plain sampling, from the definition: argmax(log p + noise(seed, position))."""
    tokens = []
    for seed in range(num_runs):
        path = list(PROMPT)
        for _ in range(length):
            noise = gumbel(torch.tensor([seed]), torch.tensor([0]), torch.tensor([len(path)]), VOCAB_SIZE)[0]
            path.append(int((TARGET_VVV[path[-2], path[-1]].log_softmax(-1) + noise).argmax()))
        tokens.append(path[len(PROMPT) :])
    return torch.tensor(tokens)


def test_an_oracle_table_is_always_right_and_an_adversarial_one_hardly_ever() -> None:
    assert torch.equal(draft_table("oracle", TARGET_VVV), TARGET_VVV)
    oracle = one(CASES["one_noise_near"].toy, FILTERED, 2)
    toy = oracle.toy
    perfect = one(type(toy)(TARGET_VVV, draft_table("oracle", TARGET_VVV)), FILTERED, 3)
    (verdict,) = judge("oracle", perfect, 400)
    assert verdict.good
    assert verdict.tokens_per_cycle == pytest.approx(4.0)
    (verdict,) = judge("adversarial", CASES["one_noise_adversarial"], 400)
    assert verdict.tokens_per_cycle < 1.05
