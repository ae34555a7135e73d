"""Penalties against a naive oracle on each row's whole context, and against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from alula.core.sampling import SamplingParams
from alula.kernels.reference.penalties import TokenCounts, apply_penalties

SIZE = 12
ids = st.lists(st.integers(0, SIZE - 1), max_size=10)
some_params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    frequency_penalty=st.sampled_from([0.0, 0.375, -1.0]),
)


def oracle(row: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    result = []
    for token, raw in enumerate(row):
        logit = raw
        if token in prompt or token in output:
            logit = raw / params.repetition_penalty if raw > 0 else raw * params.repetition_penalty
        count = output.count(token)
        result.append(logit - params.frequency_penalty * count - params.presence_penalty * (count > 0))
    return result


def some_logits(num_rows: int, size: int = SIZE) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(num_rows)) * 3


@given(prompt=ids, outputs=st.lists(ids, max_size=3), drafts=ids, params=some_params)
def test_every_row_is_penalised_along_its_own_path(
    prompt: list[int], outputs: list[list[int]], drafts: list[int], params: SamplingParams
) -> None:
    context = TokenCounts(SIZE, prompt)
    for output in outputs:
        context.append(output)
    emitted = [token for output in outputs for token in output]
    raw = some_logits(len(drafts) + 1)
    found = raw.clone()
    apply_penalties(found, context, params, torch.tensor(drafts, dtype=torch.int64))
    for row in range(len(drafts) + 1):
        expected = oracle(raw[row].tolist(), prompt, emitted + drafts[:row], params)
        torch.testing.assert_close(found[row], torch.tensor(expected))
        # bit for bit what plain decoding gives once the drafts are emitted
        plain_context, plain = TokenCounts(SIZE, prompt), raw[row : row + 1].clone()
        plain_context.append(emitted + drafts[:row])
        apply_penalties(plain, plain_context, params)
        assert torch.equal(plain[0], found[row])


def test_repetition_is_that_of_transformers() -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    context = [1, 5, 5, 900, 44, 1, 7]
    raw = some_logits(1, 1000)
    expected = processors.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([context]), raw.clone())
    counts, found = TokenCounts(1000, context[:4]), raw.clone()
    counts.append(context[4:])
    apply_penalties(found, counts, SamplingParams(repetition_penalty=1.7))
    assert torch.equal(found, expected)


def test_more_drafts_than_rows_and_no_context() -> None:
    params = SamplingParams(presence_penalty=1.0)
    found = torch.zeros(2, SIZE)
    apply_penalties(found, TokenCounts(SIZE, []), params, torch.tensor([3, 4, 5]))
    assert found.nonzero().tolist() == [[1, 3]]


@pytest.mark.gpu
def test_a_gpu_agrees() -> None:
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    raw, drafts = some_logits(4), torch.tensor([3, 3, 8])
    found = []
    for device in ("cpu", "cuda"):
        context, logits = TokenCounts(SIZE, [1, 2], device), raw.to(device, copy=True)
        context.append([2, 3])
        apply_penalties(logits, context, params, drafts.to(device))
        found.append(logits.cpu())
    torch.testing.assert_close(found[0], found[1])  # CUDA divides by way of the reciprocal
