"""The plain PyTorch comparison computes what the model computes, and is timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import tiny_models
from alula.core.shape import ModelShape, parse_shape
from alula.models.random_checkpoint import RandomCheckpoint
from alula.models.source import resolve_shape

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from torch_llama import TorchLlama, main, time_plain_pytorch

CPU = torch.device("cpu")


def shape_of(family: str) -> ModelShape:
    return parse_shape(resolve_shape(str(tiny_models.checkpoint(family))).shape_config or {})


@pytest.mark.parametrize("family", ["plain", "group3_tied", "wide_heads"])
def test_steps_equal_transformers(family: str) -> None:
    import transformers

    folder = tiny_models.checkpoint(family)
    source, shape = resolve_shape(str(folder)), shape_of(family)
    reference = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(folder)).eval()
    checkpoint = RandomCheckpoint(source)
    tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    if shape.tied_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    reference.load_state_dict(tensors)
    ids = tiny_models.random_ids(7)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
        model = TorchLlama(shape, len(ids), CPU, torch.float32)
        for position, token in enumerate(ids):
            model.token_1.fill_(token)
            model.seek(position)
            torch.testing.assert_close(model.step()[0], expected[position], rtol=1e-4, atol=1e-4)
        assert model.token_1.item() == expected[-1].argmax().item()


def test_without_a_gpu_only_the_eager_step_is_timed() -> None:
    times = time_plain_pytorch(shape_of("plain"), 9, CPU)
    assert times["graph_ms"] is None and times["eager_ms"] is not None and times["eager_ms"] > 0


def test_shapes_with_biases_are_refused() -> None:
    with pytest.raises(ValueError, match="biases"):
        TorchLlama(shape_of("biases"), 9, CPU, torch.float32)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shape, result = tiny_models.checkpoint("plain") / "config.json", tmp_path / "times.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        sys, "argv", ["torch_llama.py", "--shape", str(shape), "--kv-tokens", "5", "--json", str(result)]
    )
    assert main() == 0
    assert json.loads(capsys.readouterr().out) == json.loads(result.read_text())
    assert json.loads(result.read_text())["kv_tokens"] == 5


@pytest.mark.gpu
def test_a_graph_is_timed_on_a_gpu() -> None:
    times = time_plain_pytorch(shape_of("wide_heads"), 64, torch.device("cuda"))
    assert times["graph_ms"] is not None and times["eager_ms"] is not None
    assert 0 < times["graph_ms"] < times["eager_ms"]
