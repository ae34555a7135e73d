"""Which path the collectives of decode and of verify took, where the two part, and which rank the others wait for.

Pure functions over records. They lie in `core`, beside the records, because both towers ask them: the run tower writes
the differences, and whoever reads a file of records, with or without torch, finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from alula.core.records import DECODE, VERIFY, DispatchRecord, PathDifference, RankWaitRecord, Record

# A rank that the others wait for: they spend at least this share of their cycles waiting, and it waits for at most
# this part of what the least patient of them does.
LATE_SHARE, LATE_PART = 0.1, 1 / 3
# The target's forward, which decode and verify both run; draft and extend belong to drafted cycles alone.
_FORWARD = "verify"


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the collectives of a run. dispatched: rank 0's, which are every rank's. waits: of each rank."""

    dispatched: tuple[DispatchRecord, ...]
    waits: tuple[RankWaitRecord, ...]

    @property
    def differences(self) -> tuple[PathDifference, ...]:
        return path_differences(self.dispatched)

    def records(self) -> Iterator[Record]:
        """As they stand in a file: the decisions, the differences that follow, the waits."""
        yield from self.dispatched
        yield from self.differences
        yield from self.waits


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operation, dtype and size in one phase. times: how often they ran, eagerly or in replays."""

    op: str
    phase: str
    dtype: str
    num_bytes: int
    backend: str
    times: int
    captured: bool
    measured_us: float | None = None


def paths_of(records: Iterable[DispatchRecord], work: str) -> tuple[Path, ...]:
    """The paths of what was done as `work`, by operation, phase and size. One that ran both captured and not is two."""
    found: dict[Path, int] = {}
    for record in records:
        if record.work == work:
            path = Path(
                op=record.op,
                phase=record.phase,
                dtype=record.dtype,
                num_bytes=record.num_bytes,
                backend=record.backend,
                times=0,
                captured=record.captured,
                measured_us=record.measured_us,
            )
            # Where it was captured nothing ran; replays did.
            found[path] = found.get(path, 0) + (record.num_replays if record.captured else record.num_calls)
    paths = [msgspec.structs.replace(path, times=times) for path, times in found.items()]
    return tuple(sorted(paths, key=lambda path: (path.op, path.phase, path.num_bytes, path.backend, path.captured)))


def path_differences(records: Sequence[DispatchRecord]) -> tuple[PathDifference, ...]:
    """For each operation and dtype of the target's forward: every two backends of which decode took the one and verify
    the other. Of batches that grow only those pairs count in which a message of verify is the larger one: a batch's
    verify has more rows than its decode."""
    found = []
    for op, dtype in sorted({(record.op, record.dtype) for record in records}):
        decode, verify = (_by_backend(records, op, dtype, work) for work in (DECODE, VERIFY))
        found += [
            _difference(decode[one], verify[other])
            for one in sorted(decode)
            for other in sorted(verify)
            if one != other and _sizes(verify[other])[-1] > _sizes(decode[one])[0]
        ]
    return tuple(found)


def late_ranks(waits: Sequence[RankWaitRecord]) -> tuple[int, ...]:
    """The rank that all others wait for, or none: it waits much less than each of them, and they wait for long."""
    if len(waits) < 2:
        return ()
    first, *others = sorted(waits, key=lambda wait: wait.share)
    least = others[0].share
    return (first.rank,) if least >= LATE_SHARE and first.share <= least * LATE_PART else ()


def _by_backend(
    records: Iterable[DispatchRecord], op: str, dtype: str, work: str
) -> dict[str, list[DispatchRecord]]:
    found: dict[str, list[DispatchRecord]] = {}
    for record in records:
        if (record.op, record.dtype, record.work, record.phase) == (op, dtype, work, _FORWARD):
            found.setdefault(record.backend, []).append(record)
    return found


def _difference(decode: Sequence[DispatchRecord], verify: Sequence[DispatchRecord]) -> PathDifference:
    decode_backend, verify_backend = decode[0].backend, verify[0].backend
    return PathDifference(
        op=decode[0].op,
        dtype=decode[0].dtype,
        decode_backend=decode_backend,
        decode_bytes=_sizes(decode),
        decode_because=_because(decode, verify_backend),
        verify_backend=verify_backend,
        verify_bytes=_sizes(verify),
        verify_because=_because(verify, decode_backend),
    )


def _sizes(records: Iterable[DispatchRecord]) -> tuple[int, ...]:
    return tuple(sorted({record.num_bytes for record in records}))


def _because(records: Sequence[DispatchRecord], other: str) -> str:
    """Why these calls did not take the other backend, by what was said when they were decided: by size, where sizes
    were told different things."""
    said: dict[str, list[int]] = {}
    for record in sorted(records, key=lambda record: record.num_bytes):
        for refusal in record.refused:
            if refusal.backend == other and record.num_bytes not in said.setdefault(refusal.reason, []):
                said[refusal.reason].append(record.num_bytes)
    if len(said) == 1:
        return next(iter(said))
    if said:
        return "; ".join(f"{', '.join(map(str, sizes))} bytes: {reason}" for reason, sizes in said.items())
    # Without a table the first backend that takes a call is chosen, and those behind it are not asked.
    return f"{records[0].backend} comes before {other} and takes it"
