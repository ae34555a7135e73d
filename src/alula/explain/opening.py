"""Opens what the user named: files, folders, archives, `-` for standard input; gives streams of plain bytes.

Containers (gzip, bzip2, xz, zstd, zip, tar) are known by their first bytes, never by a name, and opened in any nesting.
Knows nothing of what the bytes inside mean.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from alula.core.errors import ModelNotFound
from alula.explain.stream import DAMAGE, Expansion, FileView, Limits, Stream

STDIN = "-"
_TAR_DAMAGE: tuple[type[Exception], ...] = (tarfile.TarError, *DAMAGE)
_ZIP_DAMAGE: tuple[type[Exception], ...] = (zipfile.BadZipFile, NotImplementedError, *DAMAGE)
_HEAD_BYTES = 512  # tar's mark lies at 257
Progress = Callable[[str, int, int | None], None]  # name, bytes read so far, size where it is known


class Source(msgspec.Struct):
    """One plain stream, to be read before the next is asked for. `name` ends in the path inside an archive."""

    name: str
    stream: Stream
    num_bytes: int | None = None


class InputNote(msgspec.Struct, frozen=True):
    """Something about an input that its reader should be told: unreadable, cut off, too large."""

    source: str
    text: str


class Inputs:
    """All plain streams under the given paths, in order; `notes` fills while they are read.

    Raises ModelNotFound for a path that does not exist. Files inside folders that cannot be read are noted.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        limits: Limits | None = None,
        stdin: BinaryIO | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._paths = [str(path) for path in paths]
        self._limits = limits or Limits()
        self._stdin = stdin
        self._progress = progress
        self._expansion = Expansion(self._limits)
        self._num_files = 0
        self.notes: list[InputNote] = []
        for path in self._paths:
            if path != STDIN and not os.path.exists(path):
                raise ModelNotFound(
                    f"no file or folder {path!r}; expected a log, a trace, a table, an archive, or - for stdin"
                )

    def __iter__(self) -> Iterator[Source]:
        for path in self._paths:
            if path == STDIN:
                stream = Stream((self._stdin or sys.stdin.buffer).read)
                yield from self._opened("stdin", stream, None, 0)
            elif os.path.isdir(path):
                yield from self._folder(path)
            else:
                yield from self._file(path)

    def note(self, source: str, text: str) -> None:
        self.notes.append(InputNote(source, text))

    def _folder(self, root: str) -> Iterator[Source]:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(folder, name)
                if os.path.isfile(path):  # no pipes, no devices
                    yield from self._file(path)

    def _file(self, path: str) -> Iterator[Source]:
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed below, after whoever iterates has read it
        except OSError as error:
            self.note(path, f"cannot be read: {error.strerror}")
            return
        with file:
            size = os.fstat(file.fileno()).st_size or None  # files under /proc say 0
            yield from self._opened(path, Stream(self._watched(path, file, size)), size, 0, file)

    def _watched(self, name: str, file: BinaryIO, size: int | None) -> Callable[[int], bytes]:
        total = [0]

        def read(num_bytes: int) -> bytes:
            try:
                taken = file.read(num_bytes)
            except OSError as error:
                self.note(name, f"cannot be read further: {error.strerror}")
                return b""
            total[0] += len(taken)
            if self._progress is not None:
                self._progress(name, total[0], size)
            return taken

        return read

    def _opened(
        self, name: str, stream: Stream, size: int | None, depth: int, file: BinaryIO | None = None
    ) -> Iterator[Source]:
        """The stream itself, or what is in it if it is a container. `file`: the same bytes, where they can seek."""
        if self._num_files >= self._limits.max_files:
            if self._num_files == self._limits.max_files:
                self.note(name, f"more than {self._limits.max_files} files; this and later ones were not read")
            self._num_files += 1
            return
        kind = container_kind(stream.peek(_HEAD_BYTES))
        if kind is None:
            self._num_files += 1
            yield Source(name, stream, size)
        elif depth >= self._limits.max_depth:
            self.note(name, f"an archive inside {depth} others; not opened")
        elif kind == "tar":
            yield from self._tar(name, stream, depth)
        elif kind == "zip":
            yield from self._zip(name, stream, depth, file)
        else:
            yield from self._packed(name, kind, stream, depth)

    def _packed(self, name: str, kind: str, stream: Stream, depth: int) -> Iterator[Source]:
        read = _unpacker(kind, stream)
        if read is None:
            self.note(
                name,
                "zstd-compressed, and no zstd module is installed: unpack it (zstd -d), or pip install zstandard",
            )
            return
        yield from self._expanded(name, read, lambda: stream.num_read, depth)

    def _expanded(
        self, name: str, read: Callable[[int], bytes], num_packed: Callable[[], int], depth: int
    ) -> Iterator[Source]:
        guarded = self._expansion.guard(read, num_packed, lambda text: self.note(name, text))
        yield from self._opened(name, Stream(guarded), None, depth + 1)

    def _tar(self, name: str, stream: Stream, depth: int) -> Iterator[Source]:
        try:
            with tarfile.open(fileobj=cast(Any, FileView(stream)), mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        yield from self._expanded(
                            f"{name}/{member.name}", content.read, lambda: stream.num_read, depth
                        )
        except _TAR_DAMAGE as error:
            self.note(name, f"the archive ends early or is damaged: {error}")

    def _zip(self, name: str, stream: Stream, depth: int, file: BinaryIO | None) -> Iterator[Source]:
        with ExitStack() as held:
            seekable = file if file is not None else held.enter_context(self._spooled(name, stream))
            try:
                archive = held.enter_context(zipfile.ZipFile(seekable))
                members = [member for member in archive.infolist() if not member.is_dir()]
            except _ZIP_DAMAGE as error:
                self.note(name, f"the archive ends early or is damaged: {error}")
                return
            for member in members:
                yield from self._zip_member(name, archive, member, depth)

    def _zip_member(
        self, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, depth: int
    ) -> Iterator[Source]:
        inner = f"{name}/{member.filename}"
        try:
            with archive.open(member) as content:
                yield from self._expanded(inner, content.read, lambda: member.compress_size, depth)
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
        ) as error:  # RuntimeError: it wants a password
            self.note(inner, f"cannot be unpacked: {error}")

    def _spooled(self, name: str, stream: Stream) -> BinaryIO:
        """The rest of a stream as a file that can seek, up to a limit."""
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's ExitStack closes it
        while (chunk := stream.read(1 << 20)) and spool.tell() < self._limits.max_spooled_bytes:
            spool.write(chunk)
        if chunk:
            self.note(name, f"a zip file of more than {spool.tell() >> 20} MiB in a pipe; save it to a file first")
        spool.seek(0)
        return cast(BinaryIO, spool)


def container_kind(head: bytes) -> str | None:
    """Which container these first bytes begin, or None for plain data."""
    for kind, mark in (
        ("gzip", b"\x1f\x8b\x08"),
        ("bzip2", b"BZh"),
        ("xz", b"\xfd7zXZ\x00"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("zip", b"PK\x03\x04"),
    ):
        if head.startswith(mark):
            return kind
    return "tar" if head[257:262] == b"ustar" else None


def _unpacker(kind: str, stream: Stream) -> Callable[[int], bytes] | None:
    view = cast(Any, FileView(stream))
    if kind == "gzip":
        return gzip.GzipFile(fileobj=view, mode="rb").read
    if kind == "bzip2":
        return bz2.BZ2File(view).read
    if kind == "xz":
        return lzma.LZMAFile(view).read
    return _zstd_reader(view)


def _zstd_reader(view: Any) -> Callable[[int], bytes] | None:
    """Python 3.14 brings zstd; before that the optional module `zstandard` does."""
    try:
        return cast(Callable[[int], bytes], importlib.import_module("compression.zstd").ZstdFile(view).read)
    except ModuleNotFoundError:
        pass
    try:
        module = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        return None
    read = module.ZstdDecompressor().stream_reader(view, read_across_frames=True).read

    def translated(num_bytes: int) -> bytes:
        try:
            return cast(bytes, read(num_bytes))
        except module.ZstdError as error:
            raise OSError(str(error)) from error

    return translated
