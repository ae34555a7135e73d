"""Waits for one reply of every rank, or for the reason why there will be none. Sends nothing, ends nothing."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from alula.core.errors import RankFailure
from alula.engine.channel import ChannelClosed, Kind
from alula.engine.rank_messages import Failure, decode
from alula.engine.spawn import RankHandle

logger = logging.getLogger(__name__)

TICK_S = 0.2
# How long the others may take after a first failure: ranks that run the same command fail together, or one of them
# failed alone and the others wait for it in vain.
GRACE_S = 2.0


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
                logger.error("rank %d failed:\n%s", failure.rank, failure.traceback)
        raise ranked[0].error


def _is_echo(failure: Failure) -> bool:
    return isinstance(failure.error, RankFailure) and failure.error.rank != failure.rank


class Collector:
    """Waits for replies with a limit on *silence*: time in which no reply comes and no collective makes progress.

    A limit on the whole would end an honest prefill of a large model on a slow machine. `progress` gives a number
    for each rank that grows with each collective it enters.
    """

    def __init__(self, handles: Sequence[RankHandle], progress: Callable[[], tuple[int, ...]]) -> None:
        self._handles = handles
        self._progress = progress

    def collect(self, silence_s: float, doing: str) -> Replies:
        """Raises RankFailure where a rank ended or stayed silent; failures that ranks report are returned."""
        replies = Replies(len(self._handles))
        pending = {handle.rank: handle for handle in self._handles}
        seen, deadline = self._progress(), time.monotonic() + silence_s
        with selectors.DefaultSelector() as selector:
            for handle in self._handles:
                selector.register(handle.channel, selectors.EVENT_READ, handle)
            while pending:
                ready = [key.data for key, _ in selector.select(min(TICK_S, max(0.0, deadline - time.monotonic())))]
                for handle in ready:
                    selector.unregister(handle.channel)
                    del pending[handle.rank]
                    _receive(handle, replies, time.monotonic() + silence_s, doing)
                if ready or seen != self._progress():
                    seen = self._progress()
                    deadline = time.monotonic() + (GRACE_S if replies.failures else silence_s)
                elif time.monotonic() >= deadline:
                    break
                _check_alive(pending.values(), doing)
        if pending and not replies.failures:
            raise self._silent(sorted(pending), silence_s, doing)
        return replies

    def _silent(self, ranks: list[int], silence_s: float, doing: str) -> RankFailure:
        """Of the ranks that did not answer, those behind in collectives are named: the others wait for them."""
        progress = self._progress()
        fewest = min(progress[rank] for rank in ranks)
        named = [rank for rank in ranks if progress[rank] == fewest]
        return RankFailure(
            f"rank{'s' if len(named) > 1 else ''} {', '.join(map(str, named))} gave no sign of life for "
            f"{silence_s:g} s while {doing}; a machine that is merely slow needs a longer timeout",
            rank=named[0],
        )


def _receive(handle: RankHandle, replies: Replies, deadline: float, doing: str) -> None:
    try:
        frame = handle.channel.receive(deadline)
    except ChannelClosed:
        raise handle.lost(doing) from None
    except TimeoutError:
        raise RankFailure(
            f"rank {handle.rank} stopped in the middle of a reply while {doing}", handle.rank
        ) from None
    if frame.kind is Kind.FAILURE:
        replies.failures[handle.rank] = decode(frame.body)
    else:
        replies.bodies[handle.rank] = frame.body


def _check_alive(handles: Iterable[RankHandle], doing: str) -> None:
    """A rank's end shows on its channel, unless a process that it started holds a copy of the other end."""
    for handle in handles:
        if handle.ended() is not None and not handle.channel.readable():  # in this order: it may just have replied
            raise handle.lost(doing)
