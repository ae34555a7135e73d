"""The collectives of a run for people: one table of decode's paths beside verify's, and a sentence for each difference
and for a rank that the others wait for. Formats records; decides nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from rich.table import Table

from alula.core.dispatch_paths import Collectives, Path, late_ranks, paths_of
from alula.core.records import DECODE, VERIFY, PathDifference

COLUMNS = (
    "operation",
    "phase",
    "decode: bytes",
    "through",
    "times",
    "us",
    "verify: bytes",
    "through",
    "times",
    "us",
)
_ABSENT = "-"


def as_document(collectives: Collectives) -> dict[str, Any]:
    """paths: of decode and of verify, every one. differences: between the two. waits: of each rank."""
    paths = [
        {"work": work, **msgspec.to_builtins(path)}
        for work in (DECODE, VERIFY)
        for path in paths_of(collectives.dispatched, work)
    ]
    return {
        "paths": paths,
        "differences": [_untagged(difference) for difference in collectives.differences],
        "waits": [_untagged(wait) for wait in collectives.waits],
    }


def path_rows(collectives: Collectives) -> list[tuple[str, ...]]:
    """For each operation and phase, a line for each backend that decode or verify took, in order of size."""
    decode, verify = (_by_place(paths_of(collectives.dispatched, work)) for work in (DECODE, VERIFY))
    rows: list[tuple[str, ...]] = []
    for place in sorted({*decode, *verify}):
        pairs = zip_longest(decode.get(place, []), verify.get(place, []))
        rows += [(*place, *_cells(left), *_cells(right)) for left, right in pairs]
    return rows


def path_table(collectives: Collectives) -> Table:
    result = Table(
        title="Collectives, by what the target or the head did", title_justify="left", title_style="bold"
    )
    for column in COLUMNS:
        number = "bytes" in column or column in ("times", "us")
        result.add_column(column, justify="right" if number else "left")
    for row in path_rows(collectives):
        result.add_row(*row)
    return result


def collective_sentences(collectives: Collectives) -> list[str]:
    """A sentence for each difference, and one where a rank is late."""
    said = [_difference(difference) for difference in collectives.differences]
    if not said and collectives.dispatched:
        said = ["Decode and verify took the same collective backends."]
    for rank in late_ranks(collectives.waits):
        shares = ", ".join(f"rank {wait.rank} {wait.share:.0%}" for wait in collectives.waits)
        said.append(
            f"The other ranks wait for rank {rank}: of their cycles they spent in waits {shares}. See what else runs "
            "on its cores or its GPU, and its clocks."
        )
    return said


def _difference(found: PathDifference) -> str:
    return (
        f"{found.op} of {found.dtype}: decode's {_sizes(found.decode_bytes)} bytes went through {found.decode_backend} "
        f"(not {found.verify_backend}: {found.decode_because}), verify's {_sizes(found.verify_bytes)} through "
        f"{found.verify_backend} (not {found.decode_backend}: {found.verify_because})."
    )


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _by_place(paths: Iterable[Path]) -> dict[tuple[str, str], list[list[Path]]]:
    """What ran, by (operation, phase): the paths of each backend."""
    found: dict[tuple[str, str], dict[str, list[Path]]] = {}
    for path in paths:  # sizes rise
        if path.times:
            found.setdefault((path.op, path.phase), {}).setdefault(path.backend, []).append(path)
    return {place: list(by_backend.values()) for place, by_backend in found.items()}


def _cells(paths: list[Path] | None) -> tuple[str, str, str, str]:
    """Sizes, backend, how often, and microseconds by the measured table, of one backend."""
    if paths is None:
        return _ABSENT, _ABSENT, _ABSENT, _ABSENT
    sizes = [str(path.num_bytes) for path in paths]
    times_us = [f"{path.measured_us:.1f}" for path in paths if path.measured_us is not None]
    return _span(sizes), paths[0].backend, str(sum(path.times for path in paths)), _span(times_us)


def _span(rising: list[str]) -> str:
    """The first and the last, or the one, or none."""
    if not rising:
        return _ABSENT
    return rising[0] if rising[0] == rising[-1] else f"{rising[0]}-{rising[-1]}"


def _untagged(record: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(record).items() if name != "type"}
