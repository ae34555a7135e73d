"""Starts that must not fail late: short contexts, weights that do not fit, types that nobody has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import device_engines
import pytest
import torch

import tiny_models
from alula.core.config import EngineConfig, GraphConfig, SpeculationConfig
from alula.core.errors import InvalidOption, OutOfMemory, UnsupportedModel
from alula.core.sampling import SamplingParams
from alula.engine import device_start
from alula.engine.llm import LLM
from alula.engine.setup import resolve_dtype
from alula.models.source import resolve_shape


def shape_file(folder: Path, **changes: Any) -> str:
    config = json.loads((tiny_models.checkpoint() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return str(folder / "config.json")


@pytest.mark.parametrize("context", [4, 16, 48, 64])
def test_an_engine_starts_with_a_short_context(context: int, tmp_path: Path) -> None:
    config = EngineConfig(device="cpu", dtype="float32", context_tokens=context, threads=1)
    with LLM(resolve_shape(shape_file(tmp_path)), config=config) as llm:
        (answer,) = llm.generate([[5, 6]], SamplingParams(max_tokens=100, ignore_eos=True), steps=0)
    assert len(answer.token_ids) == context - 2


@pytest.mark.parametrize("context", [16, 48, 64, 640])
def test_prompts_that_warm_kernels_up_fit_the_context(context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = device_engines.device_engine("plain", "bigram", num_pages=context // 4 + 1)
    read: list[int] = []

    class Cuda:
        device = torch.device("cuda")
        drafter = None

    monkeypatch.setattr(engine.cycle.phases, "draw_first", lambda read, variant: None)
    as_before = engine.cycle.phases.read_chunk

    def read_chunk(ids: list[int], first: int, samples: bool, features: bool) -> Any:
        read.append(len(ids))
        return as_before(ids, first, samples, features)

    monkeypatch.setattr(engine.cycle.phases, "read_chunk", read_chunk)
    device_start.warm_prompts(engine.cycle, Cuda(), lambda message: None)  # type: ignore[arg-type]
    assert read and max(read) <= context + 36


def test_weights_that_do_not_fit_are_refused_before_they_are_made(tmp_path: Path) -> None:
    source = resolve_shape(shape_file(tmp_path, intermediate_size=10**12))
    with pytest.raises(OutOfMemory, match=r"the weights are .* GiB in float32 a rank and .* are free"):
        LLM(source, config=EngineConfig(device="cpu", dtype="float32"))


def test_a_stored_type_that_nobody_has_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="int8.*--dtype"):
        resolve_dtype("auto", {"torch_dtype": "int8"}, torch.device("cpu"))


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOption, match="--speculate never"):
        SpeculationConfig(speculate="never", forced_tokens_per_cycle=2.0)
    with pytest.raises(InvalidOption, match="--graph-batches holds 100000"):
        GraphConfig(batches=(1, 100000))
