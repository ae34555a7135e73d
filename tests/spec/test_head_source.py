"""The files of a head: every published spelling gives the same tensors, and damaged or hostile files are refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import tiny_heads
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from alula.core.errors import CheckpointError, HeadMismatch, ModelNotFound, UserError
from alula.spec.head_source import (
    HeadSource,
    NegatedHeadSource,
    RandomSource,
    canonical_name,
    hot_token_ids,
    open_head,
    read_head_config,
)

FORM = tiny_heads.HeadForm()


def same(source: HeadSource, tensors: dict[str, Tensor]) -> bool:
    return source.names() == tensors.keys() and all(
        torch.equal(source.read(name), tensor) and source.read(name).dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_every_spelling_gives_the_same_tensors(tmp_path: Path, prefix: str, layer: str, pickled: bool) -> None:
    tensors = tiny_heads.tensors_of(FORM)
    tiny_heads.write(tmp_path, tiny_heads.config_of(FORM), tensors, prefix=prefix, layer=layer, pickled=pickled)
    assert same(open_head(tmp_path), tensors)


def test_dtypes_are_kept_as_stored(tmp_path: Path) -> None:
    """EAGLE's files hold float16, others bfloat16; d2t and t2d are whole numbers and a mask and stay so."""
    for pickled, dtype in ((True, torch.float16), (False, torch.bfloat16)):
        stored = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in tiny_heads.tensors_of(FORM).items()
        }
        folder = tiny_heads.write(tmp_path / str(dtype), {}, stored, pickled=pickled)
        source = open_head(folder)
        assert same(source, stored)
        assert (source.read("d2t").dtype, source.read("t2d").dtype) == (torch.int64, torch.bool)
        assert source.read("fc.weight").dtype == dtype


def test_sharded_safetensors(tmp_path: Path) -> None:
    tensors = tiny_heads.tensors_of(FORM)
    write_shards(tmp_path, tensors)
    assert same(open_head(tmp_path), tensors)


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    (folder / "config.json").write_text("{}")
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, tiny_heads.tensors_of(FORM))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002.safetensors"):
        open_head(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}', "{}"])
def test_a_broken_index_is_named(tmp_path: Path, index: str) -> None:
    write_shards(tmp_path, tiny_heads.tensors_of(FORM))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="model.safetensors.index.json"):
        open_head(tmp_path)


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    tensors = tiny_heads.tensors_of(FORM)
    tensors["midlayer.hidden_norm.weight"] = tensors["layers.0.hidden_norm.weight"].clone()
    tiny_heads.write(tmp_path, {}, tensors)
    with pytest.raises(CheckpointError, match="layers.0.hidden_norm.weight is there twice"):
        open_head(tmp_path)


def test_canonical_names() -> None:
    assert canonical_name("midlayer.self_attn.q_proj.weight") == "layers.0.self_attn.q_proj.weight"
    assert canonical_name("model.layers.0.mlp.up_proj.weight") == "layers.0.mlp.up_proj.weight"
    assert canonical_name("model.midlayer.hidden_norm.weight") == "layers.0.hidden_norm.weight"
    for name in ("fc.weight", "fc_norm.2.weight", "input_norm.weight", "norm.weight", "lm_head.weight", "d2t"):
        assert canonical_name(name) == name == canonical_name(f"model.{name}")


class Bomb:
    """Pickles to a call of os.mkdir: what unpickling it does is seen on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, zipped: bool) -> None:
    proof = tmp_path / "it ran"
    tensors = {**tiny_heads.tensors_of(FORM), "bomb": Bomb(proof)}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="never run"):
        open_head(tmp_path)
    assert not proof.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    """The control of the test above."""
    proof = tmp_path / "it ran"
    pickle.loads(pickle.dumps(Bomb(proof)))
    assert proof.exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x02]q\x00.", pickle.dumps([1, 2]), b"PK\x03\x04"])
def test_a_pickle_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match="pytorch_model.bin"):
        open_head(tmp_path)


def test_a_list_of_tensors_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds a list; expected tensors by name"):
        open_head(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_git_lfs_pointer_is_recognised(tmp_path: Path, name: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    (tmp_path / name).write_text(pointer)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        open_head(tmp_path)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.0, 1.0, exclude_max=True), flips=st.lists(st.floats(0.0, 0.2), max_size=3))
def test_a_damaged_file_gives_a_user_error_or_tensors(
    tmp_path: Path, pickled: bool, cut: float, flips: list[float]
) -> None:
    """Cut off: always an error. With bytes changed near its beginning: an error, or tensors of some content."""
    name = "pytorch_model.bin" if pickled else "model.safetensors"
    folder = tiny_heads.write(tmp_path, {}, {"fc.weight": torch.ones(8, 24)}, pickled=pickled)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(cut * len(content))])
    with pytest.raises(CheckpointError, match=name):
        open_head(folder)
    damaged = bytearray(content)
    for flip in flips:
        damaged[int(flip * len(damaged))] ^= 0x41
    (folder / name).write_bytes(damaged)
    try:
        assert all(isinstance(open_head(folder).read(n), Tensor) for n in open_head(folder).names())
    except UserError as error:
        assert str(folder) in str(error)


def test_folders_without_a_head_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no EAGLE-3 head at"):
        read_head_config(tmp_path / "absent")
    with pytest.raises(ModelNotFound, match="no config.json"):
        read_head_config(tmp_path)
    with pytest.raises(ModelNotFound, match="neither model.safetensors nor pytorch_model.bin"):
        open_head(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_config_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="config.json"):
        read_head_config(tmp_path)


def vocabulary(d2t: Tensor | None, t2d: Tensor | None = None) -> HeadSource:
    tensors = {"d2t": d2t, "t2d": t2d}
    return HeadSource(Path("head"), {name: tensor for name, tensor in tensors.items() if tensor is not None})


def mask(*ids: int, size: int = 10) -> Tensor:
    found = torch.zeros(size, dtype=torch.bool)
    found[list(ids)] = True
    return found


def test_d2t_holds_offsets() -> None:
    """target = draft + d2t[draft]."""
    source = vocabulary(torch.tensor([1, 2, 2, 5]), mask(1, 3, 4, 8))
    assert hot_token_ids(source, 4, 10).tolist() == [1, 3, 4, 8]
    assert hot_token_ids(vocabulary(torch.tensor([1, 2, 2, 5], dtype=torch.int32)), 4, 10).tolist() == [1, 3, 4, 8]


def test_a_full_vocabulary_needs_no_map() -> None:
    assert hot_token_ids(vocabulary(None), 10, 10).tolist() == list(range(10))
    assert hot_token_ids(vocabulary(torch.zeros(10, dtype=torch.int64)), 10, 10).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("d2t", "t2d", "kind", "message"),
    [
        (None, None, CheckpointError, "d2t is missing"),
        (torch.tensor([1, 2, 2]), None, CheckpointError, r"d2t is torch.int64 \[3\].*\[4\]"),
        (torch.tensor([1.0, 2.0, 2.0, 5.0]), None, CheckpointError, "d2t is torch.float32"),
        (torch.tensor([1, 2, 2, 7]), None, HeadMismatch, "outside the target's 10 tokens"),
        (torch.tensor([-1, 2, 2, 5]), None, HeadMismatch, "outside the target's 10 tokens"),
        (torch.tensor([1, 0, 2, 5]), None, CheckpointError, "strictly ascending"),
        (torch.tensor([3, 2, 1, 5]), None, CheckpointError, "strictly ascending"),
        (torch.tensor([1, 2, 2, 5]), mask(1, 3, 4, 7), CheckpointError, "t2d and d2t name different tokens"),
        (torch.tensor([1, 2, 2, 5]), mask(1, 3, 4), CheckpointError, "t2d and d2t name different tokens"),
        (torch.tensor([1, 2, 2, 5]), mask(1, 3, 4, 8, size=12), HeadMismatch, "t2d covers 12 tokens.*has 10"),
    ],
)
def test_a_vocabulary_map_that_contradicts_itself_is_refused(
    d2t: Tensor | None, t2d: Tensor | None, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        hot_token_ids(vocabulary(d2t, t2d), 4, 10)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_the_map_and_the_mask_agree(ids: set[int]) -> None:
    """nonzero(t2d) = arange(Vd) + d2t, strictly ascending (specs/eagle3.md 1.5)."""
    hot = torch.tensor(sorted(ids))
    source = vocabulary(hot - torch.arange(len(ids)), mask(*ids, size=64))
    assert torch.equal(hot_token_ids(source, len(ids), 64), hot)


def test_random_weights_depend_on_name_and_seed_alone() -> None:
    shapes = {"fc.weight": (4, 12), "norm.weight": (4,), "layers.0.mlp.up_proj.weight": (4, 12)}
    first, again = (RandomSource(shapes, {"d2t": torch.arange(3)}, seed=3) for _ in range(2))
    other = RandomSource(shapes, {}, seed=4)
    for name in shapes:
        assert torch.equal(first.read(name), again.read(name))
        assert first.shape(name) == tuple(first.read(name).shape) == shapes[name]
    assert first.read("norm.weight").tolist() == [1.0] * 4
    assert not torch.equal(first.read("fc.weight"), other.read("fc.weight"))
    assert not torch.equal(first.read("fc.weight"), first.read("layers.0.mlp.up_proj.weight"))
    assert first.names() == {*shapes, "d2t"}
    assert first.read("d2t").dtype == torch.int64


def test_an_adversarial_head_is_another_with_its_output_negated() -> None:
    tensors = {"lm_head.weight": torch.ones(2, 2), "norm.weight": torch.ones(2), "d2t": torch.arange(2)}
    whole = NegatedHeadSource(HeadSource(Path("h"), tensors))
    assert (whole.read("lm_head.weight") == -1).all()
    assert (whole.read("norm.weight") == 1).all()
    assert whole.read("d2t").tolist() == [0, 1]
    # Without output weights of its own, the final norm is the last thing that is the head's.
    shared = NegatedHeadSource(HeadSource(Path("h"), {"norm.weight": torch.ones(2)}))
    assert (shared.read("norm.weight") == -1).all()
    assert whole.names() == tensors.keys()
    assert whole.shape("lm_head.weight") == (2, 2)
