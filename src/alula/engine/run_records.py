"""The record file of one run, where one was asked for. A disk that refuses it does not end the run.

Knows nothing of what the records say.
"""

from __future__ import annotations

from pathlib import Path

from alula.core.errors import RecordWriteError
from alula.core.records import Record, RecordWriter


class RunRecords:
    """Records to `path`, or to nowhere where that is None. Raises RecordWriteError where the file cannot be made."""

    def __init__(self, path: Path | None) -> None:
        self._writer = RecordWriter(path) if path else None
        self._error: RecordWriteError | None = None

    @property
    def open(self) -> bool:
        """Whether records still go anywhere."""
        return self._writer is not None

    def write(self, record: Record) -> None:
        """The answer under way is worth more than its records: an error ends them, and waits for `raise_error`."""
        if self._writer is None:
            return
        try:
            self._writer.write(record)
        except RecordWriteError as error:
            self._error = error
            self.close()

    def close(self) -> None:
        """May be called again. An error waits for `raise_error`."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except RecordWriteError as late:
            self._error = self._error or late

    def raise_error(self) -> None:
        """Raises the first error that there was, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
