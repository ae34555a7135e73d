"""A request whose numbers are not numbers fails by itself: no other request, then or later, notices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_models
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.sampling import SamplingParams
from alula.engine.llm import LLM

POISON = 50  # the token whose embedding holds NaN
EMBEDDING = "model.embed_tokens.weight"
SOUND = [token for token in tiny_models.random_ids(40) if token != POISON]


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.checkpoint("plain")
    weight = load_file(folder / "model.safetensors")[EMBEDDING]
    weight[POISON] = float("nan")
    # The head holds weights of its own, so the poison reaches nothing but rows of that token.
    return tiny_models.copy_with(folder, {EMBEDDING: weight}, tmp_path_factory.mktemp("nan") / "poisoned")


def load(folder: Path, dtype: str, chunk_tokens: int, draft: str | None) -> LLM:
    config = EngineConfig(
        dtype=dtype,
        device="cpu",
        threads=1,
        chunk_tokens=chunk_tokens,
        context_tokens=128,
        page_tokens=4,
        max_batch=4,
    )
    head = None if draft is None else str(tiny_models.head("plain", draft))
    return LLM(str(folder), draft=head, config=config)


@pytest.mark.parametrize("draft", [None, "bigram"])
@pytest.mark.parametrize("chunk_tokens", [512, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_request_fails_and_the_batch_goes_on(
    poisoned: Path, dtype: str, chunk_tokens: int, draft: str | None
) -> None:
    """Wherever the poison stands in the prompt, in a chunk that is sampled or in one that is not."""
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    drawn = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, top_p=0.9, top_k=40, seed=3)
    with load(poisoned, dtype, chunk_tokens, draft) as llm:
        prompts = [SOUND[:8], SOUND[8:11], SOUND[11:30]]
        params = [greedy, drawn, greedy]
        expected = [llm.generate([prompt], p)[0] for prompt, p in zip(prompts, params, strict=True)]
        for where in (0, 12, 23):
            poisoned = [*SOUND[:where], POISON, *SOUND[where:23]]
            first, bad, *rest = llm.generate([prompts[0], poisoned, *prompts[1:]], [params[0], drawn, *params[1:]])
            assert bad.finish_reason == "error"
            assert bad.error is not None and "NaN or infinity" in bad.error
            assert bad.token_ids == () and bad.text == ""
            for answer, alone in zip([first, *rest], expected, strict=True):
                assert answer.finish_reason == "length"
                if dtype == "float32":
                    assert answer.token_ids == alone.token_ids
        # The failed request's slots are clean: whoever gets its pages next sees nothing of it.
        later = llm.generate(prompts, params)
        assert [answer.finish_reason for answer in later] == ["length"] * 3
        if dtype == "float32":
            assert [answer.token_ids for answer in later] == [answer.token_ids for answer in expected]


def test_every_request_fails_where_every_token_is_poison(poisoned: Path) -> None:
    with load(poisoned, "float32", 512, None) as llm:
        sampled = SamplingParams(temperature=1.0, top_p=0.5, max_tokens=4)
        answers = llm.generate([[POISON], [5, POISON]], sampled)
        assert [answer.finish_reason for answer in answers] == ["error", "error"]
        assert llm.generate([SOUND[:4]], sampled)[0].finish_reason in ("length", "stop")


def test_a_head_of_nan_changes_no_token(tmp_path: Path) -> None:
    """Its drafts are worthless, its logits no numbers; the answer is the target's all the same."""
    head = tiny_models.head("plain", "random")
    shape = load_file(head / "model.safetensors")["fc.weight"].shape
    broken = tiny_models.copy_with(head, {"fc.weight": torch.full(shape, float("nan"))}, tmp_path / "head")
    params = [
        SamplingParams(max_tokens=10, ignore_eos=True),
        SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5),
    ]
    always = SpeculationConfig(speculate="always")
    config = EngineConfig(dtype="float32", device="cpu", threads=1, context_tokens=128, speculation=always)
    with LLM(str(tiny_models.checkpoint("plain")), draft=str(broken), config=config) as llm:
        plain = llm.generate([SOUND[:9]] * 2, params, steps=0)
        drafted = llm.generate([SOUND[:9]] * 2, params, steps=4)
        assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
        assert all(answer.request.drafted for answer in drafted)
