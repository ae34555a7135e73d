"""Where a command's words go: text for people, status on stderr, and one JSON document that is always written.

Knows nothing of what the document says. A reader that closes stdout early (`| head`) ends the command quietly.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from alula.core.errors import AlulaError, InvalidOption, RecordWriteError

SCHEMA = 1
STDOUT = "-"


class StdoutClosed(Exception):
    """Whoever read our stdout has gone. Not an error: the command ends quietly."""


class Stdout:
    """stdout with our own errors, so that its broken pipe or full disk is not taken for one elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _our_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _our_errors():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        raise RecordWriteError(f"cannot write to stdout: {error.strerror}") from error


class Output:
    """The output of one command; used as a context manager around all of its work.

    json_file: a path, "-" for stdout (text then goes to stderr), or None. At the end `document` is written there,
    also after an error, which then stands under the key "error" (null where all went well). Raises InvalidOption
    where the path cannot hold a file, before any work is done.
    """

    def __init__(self, command: str, json_file: str | None = None) -> None:
        self.document: dict[str, Any] = {}
        self._command = command
        self._json_file = json_file
        if json_file not in (None, STDOUT):
            check_writable("--json", Path(json_file))
        self._stdout = _or_nowhere(sys.stdout)
        self._stderr = _or_nowhere(sys.stderr)
        self._text: Any = self._stdout
        if json_file == STDOUT:
            self._text = self._stderr
        self.human = Console(file=self._text, highlight=False)
        self._status = Console(file=self._stderr, highlight=False)

    def write(self, text: str) -> None:
        """Text as it comes, at once, without markup."""
        self._text.write(text)
        self._text.flush()

    def note(self, text: str) -> None:
        """A line about the work itself, on stderr."""
        self._status.print(text, style="dim", markup=False, soft_wrap=True)

    @contextmanager
    def loading(self) -> Iterator[Callable[[str], None]]:
        """Takes messages of work under way: one line that changes on a terminal, elsewhere a line for each kind.

        Messages of a kind share what stands before ":" ("loading weights: 20 of 272").
        """
        if self._status.is_terminal:
            with self._status.status("loading") as spinner:
                yield lambda text: spinner.update(escape(text))
            return
        said: set[str] = set()

        def say(text: str) -> None:
            kind = text.split(":", 1)[0]
            if kind not in said:
                said.add(kind)
                self.note(kind)

        yield say

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """Yields what to call after each part: a bar on a terminal, elsewhere a line for each part."""
        if not self._status.is_terminal:
            done = itertools.count(1)
            yield lambda: self.note(f"{label}: {next(done)} of {total}")
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._status, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._json_file is None:
            return
        document = {**(self.document or {"schema": SCHEMA, "command": self._command}), "error": None}
        if error is not None and not isinstance(error, StdoutClosed):
            document["error"] = describe_error(error)
        try:
            self._write_document(document)
        except AlulaError as failure:
            if error is None:
                raise
            self.note(f"alula: error: {failure}")  # and the first error goes on its way

    def _write_document(self, document: dict[str, Any]) -> None:
        # msgspec writes a number that is not finite as null, where json would write what no reader takes.
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        if self._json_file == STDOUT:
            self._stdout.write(text)
            self._stdout.flush()
        elif self._json_file is not None:
            write_file(Path(self._json_file), text)


def describe_error(error: BaseException) -> dict[str, str]:
    """An error as a value of the document."""
    if isinstance(error, KeyboardInterrupt):
        return {"kind": "Interrupted", "message": "interrupted by Ctrl-C"}
    return {"kind": type(error).__name__, "message": str(error)}


def check_writable(option: str, path: Path) -> None:
    """Raises InvalidOption where no file can be written at `path`."""
    if path.is_dir():
        raise InvalidOption(f"{option} {path} is a directory; expected a file name")
    if not path.parent.is_dir():
        raise InvalidOption(f"{option} {path}: the folder {path.parent} does not exist; make it or choose another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidOption(f"{option} {path}: no permission to write there; choose another file")


def write_file(path: Path, text: str) -> None:
    """Replaces `path` as a whole, so that a full disk leaves the former file as it was. Raises RecordWriteError."""
    special = path.exists() and not path.is_file()  # /dev/stdout, a named pipe: written to, never replaced
    target = path if special else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        target.write_text(text, encoding="utf-8")
        if not special:
            target.replace(path)
    except OSError as error:
        if not special:
            target.unlink(missing_ok=True)
        raise RecordWriteError(
            f"cannot write {path}: {error.strerror}; free space or choose another file"
        ) from error


class _Nowhere(io.TextIOBase):
    """Stands for a stream that was closed before we started: what goes there is dropped."""

    def write(self, text: str) -> int:
        return len(text)


def _or_nowhere(stream: IO[str] | None) -> Any:
    return stream if stream is not None else _Nowhere()
