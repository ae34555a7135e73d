"""The GGUF container: whatever is wrong with a file ends in an error that names it, never in a traceback."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_samples import Sample, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import CheckpointError, ModelNotFound, UnsupportedModel, UserError
from alula.models.gguf_checkpoint import GgufCheckpoint
from alula.models.gguf_file import GgufFile


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def _last_byte(path: Path) -> int:
    """Where the last tensor ends; behind it there may be padding, which nobody misses."""
    return max(tensor.offset + tensor.num_bytes for tensor in GgufFile(path).tensors.values())


@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_by_name(sample: Path, data: st.DataObject) -> None:
    whole = sample.read_bytes()
    cut = data.draw(st.integers(0, _last_byte(sample) - 1))
    path = sample.with_name("cut.gguf")
    path.write_bytes(whole[:cut])
    with pytest.raises(CheckpointError, match=r"cut.gguf"):
        GgufCheckpoint(path)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 7, 8, 23, 24, 31, -1])
def test_a_file_cut_at_a_border_is_refused_by_name(sample: Path, cut: int) -> None:
    path = sample.with_name("border.gguf")
    path.write_bytes(sample.read_bytes()[: cut if cut >= 0 else _last_byte(sample) + cut])
    with pytest.raises(CheckpointError, match=r"border.gguf"):
        GgufCheckpoint(path)


@given(data=st.data())
def test_a_damaged_front_is_refused_or_read(sample: Path, data: st.DataObject) -> None:
    whole = bytearray(sample.read_bytes())
    front = min(tensor.offset for tensor in GgufFile(sample).tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, front - 1))] = data.draw(st.integers(0, 255))
    path = sample.with_name("damaged.gguf")
    path.write_bytes(whole)
    try:
        checkpoint = GgufCheckpoint(path)
        for name in checkpoint.names():
            checkpoint.read(name)
    except UserError as error:
        assert "damaged.gguf" in str(error)


def test_metadata_and_tensors_are_read_as_written(sample: Path) -> None:
    file = GgufFile(sample)
    assert file.text("general.architecture") == "llama"
    assert file.whole("llama.block_count") == 2
    assert file.real("llama.attention.layer_norm_rms_epsilon") == 1e-5
    assert file.flag("tokenizer.ggml.add_bos_token", True) is False
    assert file.texts("tokenizer.ggml.merges")[0] == "h e"
    tensor = file.tensors["blk.1.ffn_down.weight"]
    assert tensor.shape == (64, 128)
    assert file.raw(tensor).size == tensor.num_bytes == 64 * 128 * 4


def test_values_of_the_wrong_type_are_refused(sample: Path) -> None:
    file = GgufFile(sample)
    reads: list[Callable[[], object]] = [
        lambda: file.whole("general.architecture"),
        lambda: file.real("general.architecture"),
        lambda: file.text("llama.block_count"),
        lambda: file.texts("llama.block_count"),
        lambda: file.numbers("tokenizer.ggml.token_type", 3),
        lambda: file.numbers("tokenizer.ggml.tokens", 3),
        lambda: file.flag("llama.block_count", True),
        lambda: file.whole("llama.absent"),
    ]
    for read in reads:
        with pytest.raises(CheckpointError, match=r"tiny.gguf: (no )?metadata"):
            read()


def _patched(sample: Path, name: str, patch: Callable[[bytearray], None]) -> Path:
    whole = bytearray(sample.read_bytes())
    patch(whole)
    path = sample.with_name(name)
    path.write_bytes(whole)
    return path


def test_wrong_magic_says_what_was_found(sample: Path) -> None:
    path = _patched(sample, "zip.gguf", lambda whole: whole.__setitem__(slice(0, 4), b"PK\x03\x04"))
    with pytest.raises(CheckpointError, match=r"begins with b'PK\\x03\\x04', not b'GGUF'"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("version", "words"), [(1, "GGUF version 1"), (9, "GGUF version 9"), (3 << 24, "big-endian")]
)
def test_other_versions_are_named(sample: Path, version: int, words: str) -> None:
    path = _patched(sample, "version.gguf", lambda whole: struct.pack_into("<I", whole, 4, version))
    with pytest.raises(UnsupportedModel, match=words):
        GgufFile(path)


def test_absurd_counts_are_refused_without_allocating(sample: Path) -> None:
    for offset in (8, 16):
        path = _patched(sample, "count.gguf", lambda whole, at=offset: struct.pack_into("<Q", whole, at, 2**60))
        with pytest.raises(CheckpointError, match="too short for the 1152921504606846976"):
            GgufFile(path)


def test_an_unknown_tensor_type_is_named(sample: Path) -> None:
    at = sample.read_bytes().index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8
    path = _patched(sample, "type.gguf", lambda whole: struct.pack_into("<I", whole, at, 999))
    with pytest.raises(UnsupportedModel, match=r"token_embd.weight' has the unknown ggml type 999"):
        GgufFile(path)


def test_an_offset_beyond_the_end_or_off_the_grid_is_named(sample: Path) -> None:
    at = sample.read_bytes().index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8 + 4
    for offset, words in ((1 << 40, "ends at byte"), (7, "not a multiple of 32")):
        path = _patched(sample, "offset.gguf", lambda whole, to=offset: struct.pack_into("<Q", whole, at, to))
        with pytest.raises(CheckpointError, match=f"token_embd.weight.*{words}"):
            GgufFile(path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        GgufFile(path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="No such file"):
        GgufFile(tmp_path / "absent.gguf")


def test_another_alignment_is_honoured(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    weights = write_gguf(
        path, Sample(metadata={"general.alignment": 128}, extra={"odd.weight": np.ones(3, np.float32)})
    )
    file = GgufFile(path)
    assert all(tensor.offset % 128 == 0 for tensor in file.tensors.values())
    norm = file.raw(file.tensors["output_norm.weight"]).view(np.float32)
    assert np.array_equal(norm, weights["model.norm.weight"])
    path = _patched(path, "alignment.gguf", lambda whole: struct.pack_into("<I", whole, _value(whole), 48))
    with pytest.raises(CheckpointError, match=r"general.alignment is 48; expected a power of two"):
        GgufFile(path)


def _value(whole: bytearray) -> int:
    key = b"general.alignment"
    return whole.index(key) + len(key) + 4
