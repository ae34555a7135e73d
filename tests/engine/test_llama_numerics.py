"""Logits and greedy tokens against transformers' for every form of the Llama family, however a prompt is cut up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engine_spy
import tiny_models
from alula.core.sampling import SamplingParams
from engine_spy import SpiedEngine, Told, with_limits

FAMILIES = [family for family in tiny_models.FAMILIES if family != "eight_heads"]
TOLERANCE = 1e-4


def assert_equal_logits(family: str, told: Told) -> None:
    """Every row that was computed on the way to this answer, and at least one for each of its positions."""
    expected_TV = tiny_models.reference_logits(family, told.ids)
    rows = told.true_rows
    assert {row.position for row in rows} == set(range(len(told.ids) - 1))
    found_RV = torch.stack([row.logits_V for row in rows])
    wanted_RV = expected_TV[[row.position for row in rows]]
    torch.testing.assert_close(found_RV, wanted_RV, rtol=0, atol=TOLERANCE)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


@pytest.mark.parametrize("chunk_tokens", [512, 1, 7, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_chunks(family: str, chunk_tokens: int) -> None:
    spied = SpiedEngine(with_limits(engine_spy.load(family), chunk_tokens=chunk_tokens))
    told = spied.add(tiny_models.random_ids(37), greedy(4))
    spied.run()
    assert len(told.blocks) == -(-37 // chunk_tokens) + 3
    assert_equal_logits(family, told)


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_equals_that_of_transformers(family: str) -> None:
    prompt, count = tiny_models.random_ids(9, seed=3), 40
    spied = SpiedEngine(engine_spy.load(family))
    told = spied.add(prompt, greedy(count))
    spied.run()
    expected = tiny_models.reference(family).generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert told.ids == expected[0].tolist()


@pytest.mark.parametrize("head", [None, "bigram"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches(family: str, head: str | None) -> None:
    """Chunks of prompts, single rows and blocks with drafts of other requests, all in one forward."""
    spied = SpiedEngine(with_limits(engine_spy.load(family, head), chunk_tokens=11))
    told = [spied.add(tiny_models.random_ids(5, seed=0), greedy(20), steps=2 if head else 0)]
    spied.step()
    for seed, num_prompt in ((1, 30), (2, 3), (3, 17)):
        told.append(spied.add(tiny_models.random_ids(num_prompt, seed), greedy(9), steps=3 if head else 0))
        spied.step()
    spied.run()
    mixed = [cycle for cycle in spied.cycles if len({part.num_prefill > 0 for part in cycle.requests}) == 2]
    assert len(mixed) >= 3
    for one in told:
        assert_equal_logits(family, one)


@pytest.mark.parametrize("head", [None, "bigram"])
@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_and_resume(family: str, head: str | None) -> None:
    spied = SpiedEngine(with_limits(engine_spy.load(family, head), chunk_tokens=16, num_pages=18))
    steps = 4 if head else 0
    told = [spied.add(tiny_models.random_ids(14, seed), greedy(20), steps=steps) for seed in range(3)]
    spied.run()
    records = [one.last.record for one in told if one.last is not None]
    assert sum(record.num_preemptions for record in records if record is not None) >= 1
    for one in told:
        assert len(one.token_ids) == 20
        assert_equal_logits(family, one)


@given(
    prompts=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=5),
    chunk_tokens=st.integers(1, 40),
    num_pages=st.integers(16, 60),
    gap=st.integers(0, 3),
)
@settings(max_examples=25)
def test_any_schedule(prompts: list[tuple[int, int, int]], chunk_tokens: int, num_pages: int, gap: int) -> None:
    """Prompts of any length, arriving at any time, with any number of drafts, budget and cache."""
    family = "group4_llama3"
    parts = with_limits(engine_spy.load(family, "bigram"), chunk_tokens=chunk_tokens, num_pages=num_pages)
    spied = SpiedEngine(parts)
    told = []
    for seed, (num_prompt, count, steps) in enumerate(prompts):
        told.append(spied.add(tiny_models.random_ids(num_prompt, seed), greedy(count), steps=steps))
        for _ in range(gap):
            spied.step()
    spied.run()
    for one, (_, count, _) in zip(told, prompts, strict=True):
        assert len(one.token_ids) == count
        assert_equal_logits(family, one)


@pytest.mark.parametrize("family", ["plain", "group3_tied", "group4_llama3", "biases"])
def test_bfloat16_stays_near(family: str) -> None:
    """Rounding to 8 bits in every product moves a logit by some hundredths of the logits' spread, and not more."""
    spied = SpiedEngine(with_limits(engine_spy.load(family, dtype="bfloat16"), chunk_tokens=16))
    told = spied.add(tiny_models.random_ids(60), greedy(1))
    spied.run()
    found_TV = torch.stack([row.logits_V for row in told.true_rows]).float()
    expected_TV = tiny_models.reference_logits(family, told.ids)[:60]
    error = (found_TV - expected_TV).abs() / expected_TV.std()
    assert float(error.mean()) < 0.02 and float(error.max()) < 0.2
    likely_T = expected_TV.topk(3).indices
    assert (likely_T == found_TV.argmax(-1)[:, None]).any(-1).all()
