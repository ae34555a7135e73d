"""Hugging Face directories: one file and shards as transformers saves them, and every way in which they break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from alula.core.errors import CheckpointError, UserError
from alula.core.shape import parse_shape
from alula.models.checkpoint import open_checkpoint
from alula.models.safetensors_checkpoint import INDEX, SafetensorsCheckpoint
from alula.models.source import resolve_source


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, torch.Tensor]]:
    """A tiny Llama saved twice by transformers: in one file, and in several shards."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=[2, 7],
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    folder = tmp_path_factory.mktemp("saved")
    single, sharded = folder / "single", folder / "sharded"
    model.save_pretrained(single)
    model.save_pretrained(sharded, max_shard_size="20KB")
    return single, sharded, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture
def single(saved: tuple[Path, Path, dict[str, torch.Tensor]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "single"))


@pytest.fixture
def sharded(saved: tuple[Path, Path, dict[str, torch.Tensor]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "sharded"))


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("form", [0, 1])
def test_tensors_come_back_as_they_were_saved(saved: tuple[Path, Path, dict[str, torch.Tensor]], form: int) -> None:
    checkpoint = open_checkpoint(resolve_source(str(saved[form])))
    state = saved[2]
    assert checkpoint.names() == frozenset(state)
    for name, expected in state.items():
        found = checkpoint.read(name)
        assert found.dtype == torch.bfloat16
        assert checkpoint.shape(name) == tuple(expected.shape)
        assert torch.equal(found, expected)
        assert torch.equal(checkpoint.read_rows(name, 1, 3), expected[1:3])


def test_description_config_and_generation_config(saved: tuple[Path, Path, dict[str, torch.Tensor]]) -> None:
    single, sharded = SafetensorsCheckpoint(saved[0]), SafetensorsCheckpoint(saved[1])
    assert single.description == "single (safetensors, BF16 x21, 1 file)"
    assert sharded.description == f"sharded (safetensors, BF16 x21, {len(_shards(saved[1]))} files)"
    assert len(_shards(saved[1])) > 2
    assert parse_shape(single.config).num_layers == 2
    assert single.generation_config["eos_token_id"] == [2, 7]


def test_no_generation_config_is_an_empty_one(single: Path) -> None:
    (single / "generation_config.json").unlink(missing_ok=True)
    assert SafetensorsCheckpoint(single).generation_config == {}


def test_a_single_file_of_another_name_is_taken(single: Path) -> None:
    (single / "model.safetensors").rename(single / "weights.safetensors")
    assert len(SafetensorsCheckpoint(single).names()) == 21


def test_missing_shards_are_named(sharded: Path) -> None:
    gone = _shards(sharded)[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"shards that {INDEX} lists are missing: {gone.name}"):
        SafetensorsCheckpoint(sharded)


def test_shards_without_their_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"safetensors files but no {INDEX}"):
        SafetensorsCheckpoint(sharded)


def test_a_tensor_that_only_the_index_knows_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = _shards(sharded)[0].name
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'model.extra.weight' is said to lie in .*, but no shard holds it"):
        SafetensorsCheckpoint(sharded)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    first, second = (path.name for path in _shards(sharded)[:2])
    moved = next(name for name, shard in index["weight_map"].items() if shard == first)
    index["weight_map"][moved] = second
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"{moved}.*{second}.*, but it lies in '{first}'"):
        SafetensorsCheckpoint(sharded)


def test_a_tensor_in_two_shards_is_named(sharded: Path) -> None:
    first, second = _shards(sharded)[:2]
    one, other = load_file(first), load_file(second)
    name = next(iter(one))
    save_file({**other, name: one[name]}, second, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name}.*lies in both '{first.name}' and '{second.name}'"):
        SafetensorsCheckpoint(sharded)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ('{"weight_map": {"a": 1}}', "expected a weight_map"),
        ('{"map": {}}', "expected a weight_map"),
        ('{"weight_map": {}}', "lists no tensors"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "expected a file in this folder"),
        ("{", "index.json:1:2: not JSON"),
    ],
)
def test_an_odd_index_is_refused(sharded: Path, index: str, words: str) -> None:
    (sharded / INDEX).write_text(index)
    with pytest.raises(CheckpointError, match=words):
        SafetensorsCheckpoint(sharded)


@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_by_name(
    saved: tuple[Path, Path, dict[str, torch.Tensor]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = (saved[0] / "model.safetensors").read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: \d+ bytes that are not a whole safetensors file"
    ):
        SafetensorsCheckpoint(folder)


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def _only_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (_write("config.json", b'{"a": 1,\n "b": }'), r"config\.json:2:7: not JSON: Expecting value"),
        (_write("config.json", b"[1]"), r"config\.json: a JSON list; expected an object"),
        (_write("config.json", b'{"a": "\xff"}'), r"config\.json: not UTF-8 text \(byte 7\)"),
        (_write("generation_config.json", b"{"), r"generation_config\.json:1:2: not JSON"),
        (_write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json; expected a Hugging Face model"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no weights; expected model\.safetensors"),
        (_only_bin, r"weights in 'pytorch_model\.bin', but alula reads safetensors; convert it with"),
    ],
)
def test_broken_directories_say_what_is_wrong(single: Path, breakage: Callable[[Path], None], words: str) -> None:
    breakage(single)
    with pytest.raises(UserError, match=words) as caught:
        SafetensorsCheckpoint(single)
    assert str(single) in str(caught.value)


def test_absent_tensors_and_rows_are_refused(single: Path) -> None:
    checkpoint = SafetensorsCheckpoint(single)
    with pytest.raises(CheckpointError, match=r"no tensor 'model.absent'; it has 21 tensors"):
        checkpoint.read("model.absent")
    with pytest.raises(CheckpointError, match="rows 0 to 33"):
        checkpoint.read_rows("model.norm.weight", 0, 33)
