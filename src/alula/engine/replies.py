"""Waits for one reply of every rank, or for the reason why there will be none. Sends nothing, ends nothing."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from alula.comm.faults import BEHIND, SILENT, Fault, describe, explained, likely_cause, name_ranks
from alula.comm.patience import PATIENCE, RunningTime, Silence, longest_wait_s
from alula.comm.watch import READY, Watch
from alula.core.errors import RankFailure
from alula.engine.channel import ChannelClosed, Kind
from alula.engine.rank_messages import Failure, decode
from alula.engine.spawn import RankHandle

logger = logging.getLogger(__name__)

TICK_S = 0.2
# How long the others may take after a first failure: ranks that run the same command fail together, or one of them
# failed alone and the others wait for it in vain.
GRACE_S = 2.0
# Without any collective or answer, while all ranks beat: long, since each may read weights or compute by itself.
LONGEST_QUIET_S = 600.0


@dataclass
class Replies:
    """What came: bodies by rank, and failures by rank. Complete where the two together name every rank."""

    num_ranks: int
    bodies: dict[int, bytes] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def unanimous(self) -> bool:
        """Whether all ranks raised the same error on purpose: they are still in step and can go on."""
        errors = {(type(failure.error), str(failure.error)) for failure in self.failures.values()}
        return (
            len(self.failures) == self.num_ranks
            and len(errors) == 1
            and all(f.ours and not isinstance(f.error, RankFailure) for f in self.failures.values())
        )

    def raise_failure(self) -> None:
        """Nothing where no rank failed; else raises the failure nearest to the cause.

        A rank's own exception comes before the RankFailure of a rank that waited for it in vain.
        """
        if not self.failures:
            return
        ranked = sorted(self.failures.values(), key=lambda failure: (_is_echo(failure), failure.rank))
        if not self.unanimous():
            for failure in ranked:
                if not failure.ours:  # what was raised on purpose says by itself what is wrong
                    logger.error("rank %d failed:\n%s", failure.rank, failure.traceback)
        raise ranked[0].error


def _is_echo(failure: Failure) -> bool:
    return isinstance(failure.error, RankFailure) and failure.error.rank != failure.rank


class Collector:
    """Waits for replies. A limit on the whole would end an honest prefill of a large model on a slow machine, so what
    is limited is the *silence* of a rank: without a heartbeat, or (longer) behind others that have answered already.

    Ranks that wait for each other give up by themselves and report (comm/patience.py); only the time in which this
    process itself runs counts.
    """

    def __init__(
        self,
        handles: Sequence[RankHandle],
        watch: Watch,
        deadline_s: float,
        quiet_s: float = LONGEST_QUIET_S,
    ) -> None:
        self._longest_quiet_s = quiet_s
        self._handles = handles
        self._watch = watch
        self._deadline_s = deadline_s

    def collect(self, doing: str) -> Replies:
        """Raises RankFailure where a rank ended or stayed silent; failures that ranks report are returned."""
        replies = Replies(len(self._handles))
        pending = {handle.rank: handle for handle in self._handles}
        silence, running = Silence(self._watch, self._deadline_s), RunningTime()
        seen, quiet_s = self._watch.progress(), 0.0
        with selectors.DefaultSelector() as selector:
            for handle in self._handles:
                selector.register(handle.channel, selectors.EVENT_READ, handle)
            while pending:
                ready = [key.data for key, _ in selector.select(TICK_S)]
                for handle in ready:
                    selector.unregister(handle.channel)
                    del pending[handle.rank]
                    self._receive(handle, replies, doing)
                step_s, before, seen = running.take(), seen, self._watch.progress()
                silence.add(step_s)
                quiet_s = 0.0 if ready or seen != before else quiet_s + step_s
                if replies.failures and quiet_s >= GRACE_S:
                    break
                if not replies.failures and (fault := self._fault(silence, quiet_s, replies, pending)):
                    raise self._failure(fault, doing)
                self._check_alive(pending.values(), doing)
        return replies

    def _fault(self, silence: Silence, quiet_s: float, replies: Replies, pending: Iterable[int]) -> Fault | None:
        """Whether the ranks that have not answered are given up."""
        ranks = tuple(sorted(pending))
        if fault := silence.fault(ranks):
            return fault
        # One that others wait for in a collective is reported by them; whom only this process waits for may go on.
        awaited = replies.bodies and all(self._watch.stage(rank) == READY for rank in ranks)
        limit_s = PATIENCE * self._deadline_s + GRACE_S if awaited else max(self._longest_quiet_s, self._deadline_s)
        if not ranks or quiet_s < limit_s:
            return None
        progress = self._watch.progress()
        fewest = min(progress[rank] for rank in ranks)
        behind = tuple(rank for rank in ranks if progress[rank] == fewest)
        return Fault(kind=BEHIND, ranks=behind, waited_s=quiet_s)

    def _failure(self, fault: Fault, doing: str) -> RankFailure:
        why = explained(self._watch, fault.kind, fault.ranks)
        return RankFailure(
            f"{name_ranks(fault.ranks)} did not answer while {doing} ({describe(fault)}). {why}",
            rank=fault.ranks[0],
        )

    def _receive(self, handle: RankHandle, replies: Replies, doing: str) -> None:
        try:
            frame = handle.channel.receive(time.monotonic() + longest_wait_s(self._deadline_s))
        except ChannelClosed:
            raise handle.lost(doing, self._watch) from None
        except TimeoutError:
            raise RankFailure(
                f"rank {handle.rank} stopped in the middle of a reply while {doing}. "
                f"Likely cause: {likely_cause(SILENT)}",
                handle.rank,
            ) from None
        if frame.kind is Kind.FAILURE:
            replies.failures[handle.rank] = decode(frame.body)
        else:
            replies.bodies[handle.rank] = frame.body

    def _check_alive(self, handles: Iterable[RankHandle], doing: str) -> None:
        """A rank's end shows on its channel, unless a process that it started holds a copy of the other end."""
        for handle in handles:
            # In this order: it may just have replied.
            if handle.ended() is not None and not handle.channel.readable():
                raise handle.lost(doing, self._watch)
