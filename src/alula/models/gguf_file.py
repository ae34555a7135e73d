"""The GGUF container: typed metadata and a directory of tensors, over one memory map of the file.

Every length and offset is checked against the file before it is used, so a corrupt or cut file ends in a
CheckpointError that says which part is wrong. Knows nothing of models, of Hugging Face names, or of the arithmetic
of quantisation (only how many bytes a block takes).

Source: the GGUF specification, versions 2 and 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from alula.core.errors import CheckpointError, ModelNotFound, UnsupportedModel
from alula.models.checkpoint import is_lfs_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    code: struct.Struct(f"<{letter}")
    for code, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
UINT32, UINT64 = SCALARS[4], SCALARS[10]
MIN_KEY_BYTES = UINT64.size + UINT32.size + 1  # key length, value type, value
MIN_TENSOR_BYTES = UINT64.size + UINT32.size + UINT32.size + UINT64.size  # name length, dimensions, type, offset


class _Entry(NamedTuple):
    """A tensor as the directory spells it, before anything is checked against the data part."""

    name: str
    shape: tuple[int, ...]
    number: int  # ggml's number of the type
    relative: int  # offset inside the data part


class GgufTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the directory. `shape` is row-major, as in torch: the reverse of the file's order."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one run along the last dimension: a whole number of quantisation blocks."""
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return int(self.shape[-1] // block * block_bytes)


class GgufFile:
    """An open GGUF file. The map stays open as long as the object lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map_file(path)
        cursor = _Cursor(path, self._map)
        num_tensors, num_keys = cursor.header()
        self.metadata = cursor.metadata(num_keys)
        alignment = self.whole("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 1 or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment}; expected a power of two")
        entries = cursor.directory(num_tensors)
        start = -(-cursor.offset // alignment) * alignment
        self.tensors = {entry.name: self._place(entry, start, alignment) for entry in entries}

    def raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, a read-only view of the map: nothing is copied."""
        return np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)

    def fail(self, found: str) -> NoReturn:
        """Raises CheckpointError for this file."""
        raise CheckpointError(f"{self.path}: {found}; the file is corrupt or cut off: fetch it again")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of the metadata. Raises CheckpointError where it is missing without a default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, value, "a whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A float, as short a decimal as its float32 allows: 9.999999747378752e-06 becomes 1e-05."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._wrong(key, value, "a finite number")
        return float(np.format_float_scientific(np.float32(value)))

    def flag(self, key: str, default: bool) -> bool:
        """A boolean of the metadata."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self._wrong(key, value, "text")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings of the metadata."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(key, value, "a list of texts")
        return value

    def numbers(self, key: str, length: int) -> list[float]:
        """A list of `length` numbers of the metadata."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            self._wrong(key, value, "a list of numbers")
        if len(value) != length:
            self._wrong(key, f"{len(value)} values", f"{length}")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.metadata.get(key, default)
        if value is None:
            raise CheckpointError(
                f"{self.path}: no metadata {key!r}; convert the model again with a current llama.cpp"
            )
        return value

    def _wrong(self, key: str, found: object, expected: str) -> NoReturn:
        shown = repr(found)[:60]
        raise CheckpointError(
            f"{self.path}: metadata {key!r} is {shown}; expected {expected}: convert the model again"
        )

    def _place(self, entry: _Entry, start: int, alignment: int) -> GgufTensor:
        name, shape, number, relative = entry
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise UnsupportedModel(
                f"{self.path}: tensor {name!r} has the unknown ggml type {number}; "
                f"this alula knows {', '.join(kind.name for kind in GGMLQuantizationType)}"
            ) from error
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            self.fail(f"tensor {name!r} has rows of {shape[-1]} values, not whole {kind.name} blocks of {block}")
        num_bytes = math.prod(shape) // block * block_bytes
        offset = start + relative
        if relative % alignment:
            self.fail(f"tensor {name!r} lies at offset {relative}, not a multiple of {alignment}")
        if offset + num_bytes > len(self._map):
            self.fail(f"{len(self._map)} bytes long, but tensor {name!r} ends at byte {offset + num_bytes}")
        return GgufTensor(name=name, kind=kind, shape=shape, offset=offset, num_bytes=num_bytes)


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CheckpointError(f"{path}: an empty file; expected a GGUF model: fetch it again")
            if is_lfs_pointer(path):
                raise CheckpointError(f"{path}: a Git LFS pointer, not the model; run `git lfs pull` in its folder")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFound(f"{path}: cannot be read: {error.strerror}") from error


class _Cursor:
    """Reads the file's front, in order; `offset` is where the next read starts."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._size = path, data, len(data)
        self.offset = 0

    def header(self) -> tuple[int, int]:
        """Checks magic and version; returns the number of tensors and of metadata keys."""
        magic = self._data[:4]
        if magic != MAGIC:
            raise CheckpointError(f"{self._path}: begins with {magic!r}, not {MAGIC!r}; expected a GGUF model file")
        self.offset = 4
        version = self._number(UINT32, "the version")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedModel(f"{self._path}: a big-endian GGUF file; convert it to little-endian first")
        if version not in VERSIONS:
            raise UnsupportedModel(
                f"{self._path}: GGUF version {version}; alula reads {' and '.join(map(str, VERSIONS))}: "
                "convert the model again with a current llama.cpp"
            )
        num_tensors = self._count("tensors", MIN_TENSOR_BYTES)
        return num_tensors, self._count("metadata keys", MIN_KEY_BYTES)

    def metadata(self, num_keys: int) -> dict[str, Any]:
        """The key-value part, fully decoded."""
        values: dict[str, Any] = {}
        for index in range(num_keys):
            key = self._text(f"metadata key {index}")
            if key in values:
                self._fail(f"metadata key {key!r} appears twice")
            values[key] = self._value(self._number(UINT32, f"the type of {key!r}"), key, 0)
        return values

    def directory(self, num_tensors: int) -> list[_Entry]:
        """Every tensor of the directory, in the file's order."""
        entries: dict[str, _Entry] = {}
        for index in range(num_tensors):
            name = self._text(f"the name of tensor {index}")
            num_dimensions = self._number(UINT32, f"the dimensions of {name!r}")
            if not 1 <= num_dimensions <= MAX_DIMENSIONS:
                self._fail(f"tensor {name!r} has {num_dimensions} dimensions; expected 1 to {MAX_DIMENSIONS}")
            sizes = tuple(self._number(UINT64, f"the shape of {name!r}") for _ in range(num_dimensions))
            if not all(sizes):
                self._fail(f"tensor {name!r} has shape {sizes[::-1]}, without any value")
            if name in entries:
                self._fail(f"tensor {name!r} appears twice")
            number, offset = (
                self._number(UINT32, f"the type of {name!r}"),
                self._number(UINT64, f"where {name!r} lies"),
            )
            entries[name] = _Entry(name, sizes[::-1], number, offset)
        return list(entries.values())

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == STRING:
            return self._text(key)
        if kind == ARRAY:
            return self._array(key, depth)
        if kind not in SCALARS:
            self._fail(f"metadata {key!r} has the unknown value type {kind}")
        return self._number(SCALARS[kind], key)

    def _array(self, key: str, depth: int) -> list[Any]:
        kind = self._number(UINT32, f"the item type of {key!r}")
        if kind in SCALARS:
            size = SCALARS[kind].size
            count = self._count(f"items of {key!r}", size)
            start = self._advance(count * size, key)
            return list(struct.unpack_from(f"<{count}{SCALARS[kind].format[-1]}", self._data, start))
        if kind == STRING:
            return [self._text(key) for _ in range(self._count(f"items of {key!r}", UINT64.size))]
        if kind == ARRAY and depth < MAX_ARRAY_DEPTH:
            count = self._count(f"items of {key!r}", UINT64.size + UINT32.size)
            return [self._array(key, depth + 1) for _ in range(count)]
        self._fail(f"metadata {key!r} is a list of the unknown value type {kind}")

    def _number(self, layout: struct.Struct, what: str) -> Any:
        return layout.unpack_from(self._data, self._advance(layout.size, what))[0]

    def _text(self, what: str) -> str:
        length = self._number(UINT64, what)
        start = self._advance(length, what)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError:
            self._fail(f"{what} at byte {start} is not UTF-8 text")

    def _count(self, what: str, min_bytes: int) -> int:
        """A count, refused where so many items of `min_bytes` could not lie in the rest of the file."""
        count: int = self._number(UINT64, f"the number of {what}")
        if count * min_bytes > self._size - self.offset:
            self._fail(f"{self._size} bytes long, too short for the {count} {what} that it announces")
        return count

    def _advance(self, num_bytes: int, what: str) -> int:
        start = self.offset
        if start + num_bytes > self._size:
            self._fail(f"{self._size} bytes long, but {what} ends at byte {start + num_bytes}")
        self.offset = start + num_bytes
        return start

    def _fail(self, found: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: {found}; the file is corrupt or cut off: fetch it again")
