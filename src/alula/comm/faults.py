"""What a fault of ranks is called, and the sentence that says what to look at next. Pure; knows no process.

A message names the rank, the phase and the last calls, which `account` takes from the ranks' own words.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec

from alula.comm.watch import Watch

# What is known of a fault.
ENDED = "ended"  # the process is gone
SILENT = "silent"  # no heartbeat
BEHIND = "behind"  # it beats, and others wait for it
STUCK = "stuck"  # every rank waits, none computes
CALLS = "calls"  # ranks make different calls
BITS = "bits"  # ranks hold different bits

_CAUSES = {
    ENDED: "it left on purpose or through a library; what it printed last is on stderr",
    SILENT: "the process was stopped (SIGSTOP, a debugger), or its machine is overloaded or out of memory and swaps; "
    "`ps -o pid,stat,wchan` shows T for a stopped one",
    BEHIND: "it computes, compiles or loops outside of collectives while the others wait; `py-spy dump --pid` shows "
    "where. Where it is merely slow, raise --rank-deadline",
    STUCK: "a collective was captured into a graph on one rank and ran eagerly, or not at all, on another, or the GPUs "
    "cannot reach each other's memory (peer access, IOMMU, ACS: `alula check`); see whether it also happens with "
    "--no-graphs, and with another --collectives. A phase that honestly takes that long needs a longer --rank-deadline",
    CALLS: "the ranks ran different code or took different decisions; the calls above show where they part. Compare "
    "their versions of alula and torch, and report it",
    BITS: "a backend whose sums differ from rank to rank, or failing memory; see whether it also happens with "
    "--collectives torch_distributed",
}
_SIGNALS: dict[int, str] = {
    signal.SIGKILL: "the kernel's out-of-memory killer, a container's limit, or somebody's kill -9; `dmesg` tells",
    signal.SIGTERM: "somebody, or a job scheduler, asked it to end",
    signal.SIGBUS: "a file that was mapped has become shorter, or /dev/shm is full (`df /dev/shm`)",
}
_CRASH = "a fault in native code; its stack is on stderr"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What a wait ended with. ranks: those to blame, of which the first is named by the error."""

    kind: str
    ranks: tuple[int, ...]
    waited_s: float


def likely_cause(kind: str, ended_by: int | None = None) -> str:
    """One sentence: the likely cause and the next step. ended_by: the signal that ended the process, if one did."""
    if kind == ENDED and ended_by is not None:
        return _SIGNALS.get(ended_by, _CRASH)
    return _CAUSES[kind]


def name_ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def describe(fault: Fault) -> str:
    """What those to blame do, as a clause."""
    return {
        SILENT: f"no heartbeat for {fault.waited_s:.3g} s: stopped, or on an overloaded machine",
        BEHIND: f"it has a heartbeat, but is behind: no progress for {fault.waited_s:.3g} s",
        STUCK: f"it waits elsewhere, and no rank computes: no progress for {fault.waited_s:.3g} s",
    }[fault.kind]


def account(watch: Watch, ranks: Iterable[int]) -> str:
    """The phase and the last calls of ranks, as sentences."""
    return " ".join(_account(watch, rank) for rank in ranks)


def _account(watch: Watch, rank: int) -> str:
    calls = watch.last_calls(rank)
    if not calls:
        return f"Rank {rank} has made no collective call yet."
    return f"Rank {rank} was last seen in phase {watch.phase(rank)}; its last calls: {'; '.join(calls)}."


def explained(watch: Watch, kind: str, ranks: Iterable[int], ended_by: int | None = None) -> str:
    """The second half of a message: the account and the likely cause."""
    return f"{account(watch, ranks)} Likely cause: {likely_cause(kind, ended_by)}"
