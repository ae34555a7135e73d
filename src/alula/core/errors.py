"""The exception tree.

    AlulaError                  a fault of ours or of the machine: exit code 1
    ├── UserError               something the caller can change: exit code 2, never a traceback
    │   ├── ModelNotFound       no model, head or file under that name
    │   ├── UnsupportedModel    an architecture or a format that alula does not run
    │   ├── CheckpointError     corrupt, truncated, or tensors missing, left over or wrongly shaped
    │   ├── HeadMismatch        an EAGLE-3 head that was made for another target
    │   ├── InvalidOption       an option out of range or options that exclude each other
    │   ├── PromptTooLong       prompt does not fit the context
    │   ├── OutOfPages          one request alone does not fit the KV cache
    │   └── MissingExtra        a dependency of an optional extra is not installed
    ├── OutOfMemory             the device or the host refused an allocation
    ├── RankFailure             a rank died, hung or disagreed; names the rank
    └── RecordWriteError        a record or result file could not be written

Each message says what was found, what was expected and what to change.
"""


class AlulaError(Exception):
    """Root of every error that alula raises on purpose."""

    exit_code = 1


class UserError(AlulaError):
    """Something the caller can change."""

    exit_code = 2


class ModelNotFound(UserError):
    """No model, head or file under the given name."""


class UnsupportedModel(UserError):
    """An architecture, quantisation or option of a checkpoint that alula does not run."""


class CheckpointError(UserError):
    """A checkpoint is corrupt or truncated, or its tensors do not fit its config."""


class HeadMismatch(UserError):
    """An EAGLE-3 head was made for another target."""


class InvalidOption(UserError):
    """An option is out of range, or options exclude each other."""


class PromptTooLong(UserError):
    """A prompt leaves no room in the context."""


class OutOfPages(UserError):
    """One request alone does not fit the KV cache."""


class MissingExtra(UserError):
    """A dependency of an optional extra is not installed."""


class OutOfMemory(AlulaError):
    """The device or the host refused an allocation."""


class RankFailure(AlulaError):
    """A rank died, hung or disagreed with the others.

    `rank` is its number, or None where it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class RecordWriteError(AlulaError):
    """A record or result file could not be written (disk full, no permission)."""
