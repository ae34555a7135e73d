"""Opening what users name: containers in any nesting, damage, limits, folders, standard input."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from alula.core.errors import ModelNotFound
from alula.explain.opening import Inputs, container_kind
from alula.explain.stream import Limits

TEXT = b"a line\nanother line\n" * 100


def _all(*paths: Path | str, **options: object) -> tuple[dict[str, bytes], list[str]]:
    """Every stream by name, and the notes."""
    inputs = Inputs([str(path) for path in paths], **options)  # type: ignore[arg-type]
    found = {}
    for source in inputs:
        data = b""
        while chunk := source.stream.read(1000):
            data += chunk
        found[source.name] = data
    return found, [f"{note.source}: {note.text}" for note in inputs.notes]


def _tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("pack", "suffix"),
    [(gzip.compress, ""), (bz2.compress, ""), (lzma.compress, ""), (lambda data: _tar({"x": data}), "/x"),
     (lambda data: _zip({"x": data}), "/x"), (lambda data: gzip.compress(_tar({"x": data})), "/x"),
     (lambda data: _zip({"x": gzip.compress(data)}), "/x"), (lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]), "")],
)  # fmt: skip
def test_containers_are_known_by_content(tmp_path: Path, pack: object, suffix: str) -> None:
    path = tmp_path / "named_after_nothing.dat"
    path.write_bytes(pack(TEXT))  # type: ignore[operator]
    found, notes = _all(path)
    assert found == {f"{path}{suffix}": TEXT}
    assert notes == []


def test_zstd_is_read_where_a_module_is_present_and_named_where_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x20\x05" + b"\x29\x00\x00" + b"hello")  # one raw block
    found, notes = _all(path)
    if importlib.util.find_spec("zstandard") or importlib.util.find_spec("compression"):
        assert found == {str(path): b"hello"}
    else:
        assert found == {}
        assert "zstandard" in notes[0]


def test_folders_are_searched_in_order_and_without_pipes(tmp_path: Path) -> None:
    import os

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2").write_bytes(b"two")
    (tmp_path / "1").write_bytes(b"one")
    os.mkfifo(tmp_path / "a_pipe")
    found, _ = _all(tmp_path)
    assert list(found.values()) == [b"one", b"two"]


def test_standard_input_may_be_a_container() -> None:
    found, _ = _all("-", stdin=io.BytesIO(gzip.compress(_tar({"log": TEXT}))))
    assert found == {"stdin/log": TEXT}
    found, _ = _all("-", stdin=io.BytesIO(_zip({"log": TEXT})))  # a zip needs seeking, a pipe cannot
    assert found == {"stdin/log": TEXT}


def test_a_path_that_does_not_exist_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file or folder"):
        Inputs([str(tmp_path / "nothing")])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_cut_off_file_gives_what_came_before(tmp_path: Path, pack: object) -> None:
    import random

    random_bytes = random.Random(1).randbytes(500_000)
    path = tmp_path / "cut"
    packed = pack(random_bytes)  # type: ignore[operator]
    path.write_bytes(packed[: len(packed) // 2])
    found, notes = _all(path)
    (data,) = found.values()
    assert random_bytes.startswith(data)
    assert "ends early" in notes[0]


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_damaged_archives_are_notes(tmp_path: Path, cut: float) -> None:
    for name, data in (("t", _tar({"x": TEXT, "y": TEXT})), ("z", _zip({"x": TEXT, "y": TEXT}))):
        path = tmp_path / name
        path.write_bytes(data[: int(len(data) * cut)])
        found, notes = _all(path)
        assert all(TEXT.startswith(one) for one in found.values())
        assert notes or len(found) == 2


def test_a_bomb_is_bounded_by_its_ratio(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"\0" * 20_000_000))
    found, notes = _all(path, limits=Limits(max_ratio=100, ratio_free_bytes=1 << 20))
    assert len(next(iter(found.values()))) < 3_000_000
    assert "expands more than 100 times" in notes[0]


def test_all_members_of_archives_share_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    path.write_bytes(
        _zip({str(index): bytes(zlib.crc32(bytes([index])) % 256 for _ in range(1000)) for index in range(50)})
    )
    found, notes = _all(path, limits=Limits(max_expanded_bytes=10_000))
    assert sum(map(len, found.values())) <= 11_000
    assert any("came out of archives" in note for note in notes)


def test_archives_inside_archives_end_somewhere(tmp_path: Path) -> None:
    data = TEXT
    for _ in range(6):
        data = gzip.compress(data)
    path = tmp_path / "onion"
    path.write_bytes(data)
    found, notes = _all(path)
    assert found == {}
    assert "not opened" in notes[0]


def test_many_files_are_bounded(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / str(index)).write_bytes(b"x")
    found, notes = _all(tmp_path, limits=Limits(max_files=3))
    assert len(found) == 3
    assert len(notes) == 1


def test_members_outside_the_archive_are_only_names(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    path.write_bytes(_tar({"../../outside": b"text"}))
    found, _ = _all(path)
    assert list(found.values()) == [b"text"]
    assert not (tmp_path.parent / "outside").exists()


def test_progress_tells_bytes_and_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(TEXT)
    seen: list[tuple[str, int, int | None]] = []
    _all(path, progress=lambda name, done, size: seen.append((name, done, size)))
    assert seen[-1] == (str(path), len(TEXT), len(TEXT))


def test_plain_text_is_no_container() -> None:
    assert container_kind(TEXT) is None
    assert container_kind(b"") is None
