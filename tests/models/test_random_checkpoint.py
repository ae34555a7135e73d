"""Shapes without weights: names, the tensors made for them, the model that takes them, and the stand-in tokenizer."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from alula.comm.group import single_group
from alula.core.errors import CheckpointError, ModelNotFound, UnsupportedModel, UserError
from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import parse_shape
from alula.layers.weights import MakesTensors, WeightReader
from alula.models.checkpoint import open_checkpoint
from alula.models.random_checkpoint import RandomCheckpoint, tensor_shapes
from alula.models.safetensors_checkpoint import SafetensorsCheckpoint
from alula.models.source import resolve_shape
from alula.models.tokenizer import load_tokenizer
from alula.plan.shapes import HeadShape, head_like
from alula.plan.work import target_forward
from alula.spec.head_loading import _config_like
from alula.spec.head_source import NegatedHeadSource, RandomSource

CPU = torch.device("cpu")


def shape_of(family: str) -> RandomCheckpoint:
    checkpoint = open_checkpoint(resolve_shape(str(tiny_models.checkpoint(family))))
    assert isinstance(checkpoint, RandomCheckpoint)
    return checkpoint


@pytest.mark.parametrize("family", ["plain", "group3_tied", "biases", "mistral"])
def test_a_shape_has_the_tensors_of_its_checkpoints(family: str) -> None:
    stored, made = SafetensorsCheckpoint(tiny_models.checkpoint(family)), shape_of(family)
    assert made.names() == stored.names()
    for name in made.names():
        assert made.shape(name) == stored.shape(name) == tuple(made.read(name).shape), name


@pytest.mark.parametrize("name", sorted(NAMED_SHAPES))
def test_plan_counts_the_tensors_of_named_shapes(name: str) -> None:
    """Every weight once, but of an embedding that is not the output head too only the rows."""
    shape = parse_shape(NAMED_SHAPES[name])
    elements = sum(torch.Size(sizes).numel() for sizes in tensor_shapes(shape).values())
    if not shape.tied_embeddings:
        elements -= shape.vocab_size * shape.hidden_size
    assert target_forward(shape, kv_tokens=0).weight_bytes == 2 * elements
    assert HeadShape.of(_config_like(shape)) == head_like(shape)


def test_numbers_depend_on_name_and_dtype_only_by_rounding() -> None:
    first, again = shape_of("plain"), shape_of("plain")
    name, other = (f"model.layers.0.self_attn.{part}_proj.weight" for part in ("q", "k"))
    assert torch.equal(first.read(name), again.read(name))
    assert not torch.equal(first.read(name), first.read(other))
    assert torch.equal(first.make(name, torch.bfloat16, CPU), first.read(name).to(torch.bfloat16))
    assert torch.equal(first.read_rows(name, 3, 5), first.read(name)[3:5])
    seeded = RandomCheckpoint(resolve_shape(str(tiny_models.checkpoint("plain"))), seed=1)
    assert not torch.equal(seeded.read(name), first.read(name))


def test_weights_keep_the_size_of_their_inputs() -> None:
    checkpoint = RandomCheckpoint(resolve_shape("smollm2-135m"))
    weight = checkpoint.read("model.layers.3.mlp.down_proj.weight")
    assert (torch.randn(64, 1536) @ weight.T).std().item() == pytest.approx(1.0, abs=0.1)
    norm = checkpoint.read("model.norm.weight")
    assert norm.mean().item() == pytest.approx(1.0, abs=0.02) and 0 < norm.std().item() < 0.1


def test_a_reader_cuts_the_same_numbers_for_every_rank() -> None:
    checkpoint = shape_of("plain")
    name = "model.layers.0.mlp.up_proj.weight"
    shape = checkpoint.shape(name)
    parts = [
        WeightReader(checkpoint, torch.bfloat16, CPU).take(name, shape, (0, rank * 48, rank * 48 + 48))
        for rank in range(2)
    ]
    assert torch.equal(torch.cat(parts), checkpoint.make(name, torch.bfloat16, CPU))
    assert all(part.untyped_storage().nbytes() == 2 * part.numel() for part in parts)  # and not the whole


def test_makers_and_readers_are_told_apart() -> None:
    source = RandomSource({"a": (3, 4), "norm": (4,)}, {}, seed=5)
    assert isinstance(source, MakesTensors) and isinstance(shape_of("plain"), MakesTensors)
    assert not isinstance(NegatedHeadSource(source), MakesTensors)  # else its negation would be passed over
    assert not isinstance(SafetensorsCheckpoint(tiny_models.checkpoint("plain")), MakesTensors)
    made = WeightReader(source, torch.bfloat16, CPU).take("a", (3, 4))
    assert torch.equal(made, source.read("a").to(torch.bfloat16))


def test_names_paths_and_folders(tmp_path: Path) -> None:
    config = json.loads((tiny_models.checkpoint("plain") / "config.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in (tmp_path / "mine.json", tmp_path):
        source = resolve_shape(str(name))
        assert source.kind == "shape" and source.shape_config == config
        assert pickle.loads(pickle.dumps(source)) == source
    assert resolve_shape("llama-3.1-8b").shape_config == NAMED_SHAPES["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, ModelNotFound, "llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, smollm2-135m, or the path"),
        ("{", CheckpointError, "not JSON"),
        ("[]", CheckpointError, "expected an object"),
        ('{"architectures": ["T5Model"]}', UnsupportedModel, "T5Model"),
        ('{"architectures": ["LlamaForCausalLM"]}', CheckpointError, "num_attention_heads is None"),
    ],
)
def test_bad_shapes_are_refused(tmp_path: Path, content: str | None, error: type[UserError], words: str) -> None:
    path = tmp_path / "shape.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=words):
        resolve_shape(str(path))


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 5000])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ModelNotFound):
        resolve_shape(name)


def test_the_tokenizer_says_that_it_is_none() -> None:
    checkpoint = shape_of("plain")
    source = resolve_shape(str(tiny_models.checkpoint("plain")))
    tokenizer = load_tokenizer(source, checkpoint)
    assert not tokenizer.has_text and tokenizer.decode([1, 2]) == "" and not tokenizer.eos_token_ids
    assert tokenizer.vocab_size == tiny_models.VOCAB_SIZE
    calls: list[Any] = [lambda: tokenizer.encode("a"), lambda: tokenizer.encode_chat([])]
    for call in calls:
        with pytest.raises(UserError, match="has no tokenizer; give token ids"):
            call()


def test_a_model_takes_all_of_it() -> None:
    from alula.layers.kernels import choose_kernels
    from alula.models.llama import LlamaModel

    checkpoint = shape_of("biases")
    reader = WeightReader(checkpoint, torch.float32, CPU)
    model = LlamaModel(
        reader, parse_shape(checkpoint.config), 64, single_group(), choose_kernels(CPU, torch.float32)
    )
    assert model.shape.num_layers == 4


@pytest.mark.gpu
def test_tensors_are_made_on_a_gpu() -> None:
    checkpoint, device = RandomCheckpoint(resolve_shape("llama-3.1-8b")), torch.device("cuda")
    name = "model.layers.31.mlp.down_proj.weight"
    made, again = (checkpoint.make(name, torch.bfloat16, device) for _ in range(2))
    assert made.device.type == "cuda" and made.dtype == torch.bfloat16 and torch.equal(made, again)
    assert made.float().std().item() == pytest.approx(14336**-0.5, rel=0.01)
    head = RandomSource({"fc.weight": (64, 192)}, {}, seed=0).make("fc.weight", torch.bfloat16, device)
    assert head.device.type == "cuda" and head.float().std().item() == pytest.approx(0.02, rel=0.1)
