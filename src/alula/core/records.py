"""Records: what the run tower writes and the reason tower reads. Small frozen structs, one JSON object a line.

Every line carries a `type` tag, so a file may mix them. Times are milliseconds of wall time unless a name says
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from alula.core.errors import CheckpointError, ModelNotFound, RecordWriteError

PHASES = ("schedule", "draft", "verify", "accept", "extend", "emit", "other")
# What CycleRecord.speculation begins with.
DRAFTED, PLAIN = "drafted", "plain"
# What a collective call was for.
PREFILL, DECODE, VERIFY = "prefill", "decode", "verify"
RECORD_SCHEMA = 1


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A collective backend that was not used for a call, and why."""

    backend: str
    reason: str


class DispatchRecord(msgspec.Struct, frozen=True, kw_only=True, tag="dispatch"):
    """One decision of the communication layer: made once for each distinct call, counted afterwards.

    work: what the cycle did that the call belongs to: "prefill", "decode" (one row a request), "verify" (several), or
    "" outside of cycles. captured: the call belongs to graphs; num_calls then counts it where it was captured, and
    num_replays how often graphs have run it since. measured_us: what the measured table says of the chosen backend.
    rule: what the choice had to keep to besides speed, or that it kept to nothing else.
    """

    op: str  # all_reduce | all_gather | broadcast
    num_bytes: int
    dtype: str
    num_ranks: int
    phase: str  # draft | verify | extend | other
    backend: str
    refused: tuple[Refusal, ...] = ()
    num_calls: int = 0
    num_replays: int = 0
    captured: bool = False
    work: str = ""
    measured_us: float | None = None
    rule: str | None = None


class PathDifference(msgspec.Struct, frozen=True, kw_only=True, tag="path_difference"):
    """Decode's messages of an operation took one backend and verify's another: which sizes, and why.

    decode_because: why decode did not take verify's backend; verify_because: the other way round.
    """

    op: str
    dtype: str
    decode_backend: str
    decode_bytes: tuple[int, ...]
    decode_because: str
    verify_backend: str
    verify_bytes: tuple[int, ...]
    verify_because: str


class RankWaitRecord(msgspec.Struct, frozen=True, kw_only=True, tag="rank_wait"):
    """How long one rank waited for the others, in collectives of the host, while it ran cycles.

    share: of the time that it spent in cycles. A rank that waits much less than the others is the one they wait for.
    """

    rank: int
    num_calls: int
    waited_ms: float
    share: float


class PhaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the forwards of one phase ran: a graph replay, or eagerly and why."""

    replayed: bool
    reason: str | None = None


class RequestCycle(msgspec.Struct, frozen=True, kw_only=True):
    """What one request did in one cycle. `accepted` counts drafts before truncation by a stop or a length."""

    request_id: str
    width: int
    num_prefill: int  # rows that fed known tokens (prompt, or everything after a preemption)
    drafted: int
    accepted: int
    emitted: int
    truncated: bool
    kv_tokens: int


class CycleRecord(msgspec.Struct, frozen=True, kw_only=True, tag="cycle"):
    """One cycle: propose, verify, accept, commit, count.

    speculation: "drafted" or "plain", with ": " and a reason where there is one to give; None where no request of the
    cycle could draft (prompts being read, no head, requests that asked for no drafts). num_caught_up: positions whose
    features were kept from earlier plain cycles and that the draft read in this one.
    """

    index: int
    wall_ms: float
    phases_ms: dict[str, float]
    requests: tuple[RequestCycle, ...]
    outcomes: dict[str, PhaseOutcome]
    num_rows: int
    exactness: str | None = None  # None: exact as promised; else why it is off
    speculation: str | None = None
    num_caught_up: int = 0

    @property
    def drafted(self) -> bool:
        return any(request.drafted for request in self.requests)


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One finished request. Identity, before truncation: emitted tokens = accepted + decode cycles."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: str
    num_cycles: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    drafted_per_position: tuple[int, ...]
    num_truncated_cycles: int
    num_preemptions: int
    error: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """The first line of a record file: what ran, where."""

    schema: int = RECORD_SCHEMA
    alula: str
    torch: str
    model: str
    draft: str | None
    device: str
    dtype: str
    tp: int
    draft_placement: str
    steps: int
    exact: bool
    speculate: str = "always"  # of a record that says nothing: the mode did not exist yet
    facts: dict[str, Any] = {}


class EnvironmentVariable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable in one rank; None is unset. source: "inherited", "default: " and why, or "--nccl"; None where nobody
    planned it. at_exec: the value that the process was started with. overruled: weaker sources and their values.
    """

    name: str
    planned: str | None
    found: str | None
    source: str | None
    at_exec: str | None = None
    overruled: tuple[str, ...] = ()


class EnvironmentStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the proof. verdict: "ok", "mismatch", or "unknown" where there was nothing to go by."""

    name: str
    moment: str
    expected: str
    found: str
    verdict: str


class EnvironmentFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as planned. verdict: "mismatch", or "warning" where it may be meant. cause: the likely one.

    Where it is about a variable, planned and found are its values and None is unset; else they say so in words.
    """

    step: str
    verdict: str
    variable: str | None
    planned: str | None
    found: str | None
    cause: str

    def text(self) -> str:
        """A clause whose subject is the rank."""
        if self.variable is None:
            return f"has {self.found}, planned was {self.planned}; {self.cause}"
        planned, found = ("unset" if value is None else repr(value) for value in (self.planned, self.found))
        if planned == found:
            return f"runs with {self.variable} {found} as planned; {self.cause}"
        return f"runs with {self.variable} {found}, planned was {planned}; {self.cause}"


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True, tag="environment"):
    """What one rank found in force of the planned environment. mode: of --comm-proof; "off" has looked at nothing.

    nccl: facts from NCCL's own log, where it has written one. fingerprint: a hash of what all ranks must share.
    """

    rank: int
    mode: str
    variables: tuple[EnvironmentVariable, ...] = ()
    steps: tuple[EnvironmentStep, ...] = ()
    findings: tuple[EnvironmentFinding, ...] = ()
    nccl_version: str | None = None
    nccl: dict[str, Any] = {}
    fingerprint: str = ""

    @property
    def mismatches(self) -> tuple[EnvironmentFinding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "mismatch")


Record = (
    RunRecord | CycleRecord | RequestRecord | DispatchRecord | PathDifference | EnvironmentRecord | RankWaitRecord
)
_decoder = msgspec.json.Decoder(Record)


class RecordWriter:
    """Appends records to a JSONL file, a line at a time. Raises RecordWriteError where the disk refuses.

    Lines are flushed as they are written, so a crash loses at most the line under way.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise RecordWriteError(f"cannot write records to {path}: {error.strerror}") from error

    def write(self, record: Record) -> None:
        try:
            self._file.write(self._encoder.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise RecordWriteError(
                f"cannot write records to {self._path}: {error.strerror}; free space or choose another --record path"
            ) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise RecordWriteError(f"cannot close {self._path}: {error.strerror}") from error


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSONL file, in order. Raises CheckpointError with the line number of a bad line."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelNotFound(f"cannot read records from {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise CheckpointError(
                    f"{path}:{number}: not a record of schema {RECORD_SCHEMA}: {error}"
                ) from error
