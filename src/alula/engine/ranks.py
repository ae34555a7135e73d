"""A pool of rank processes that run the same commands in lockstep. Knows nothing of models or of what a command is.

The pool sends each command to every rank and returns when all have answered. It ends the whole pool when one rank
dies, fails alone, or falls silent: ranks that are out of step could only hang or answer wrongly afterwards.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from alula.comm.environment_agreement import compare_environments, log_findings
from alula.comm.environment_plan import EnvironmentPlan
from alula.comm.faults import SILENT, likely_cause
from alula.comm.segment import Segment, create_segment_file
from alula.comm.tuning_plan import NOTHING_KNOWN, TuningPlan
from alula.comm.watch import Watch
from alula.core.errors import RankFailure
from alula.core.records import EnvironmentRecord
from alula.engine.channel import ChannelClosed, Kind
from alula.engine.rank_messages import Start, decode, encode
from alula.engine.replies import LONGEST_QUIET_S, Collector, Replies
from alula.engine.spawn import RankProcesses

START_TIMEOUT_S = 600.0  # of silence while a rank reads its weights
CLOSE_TIMEOUT_S = 5.0


class RankPool:
    """`size` ranks, each with the worker that `entry` ("module:function") made from (payload, group).

    Start-up returns when every rank has proven its environment and made its worker, and raises like `call` where one
    did not. `timeout_s` limits the silence of ranks, and their waits for each other (comm/patience.py).
    `quiet_s`: how long all may go without a collective or an answer once they have started. `tuning`: what is known of
    the backends of collectives, and which messages matter.
    `environment_records`: what each rank found of its environment. The plan's log folder is removed with the pool.
    """

    def __init__(
        self,
        entry: str,
        size: int,
        payload: Any,
        plan: EnvironmentPlan,
        timeout_s: float,
        tuning: TuningPlan = NOTHING_KNOWN,
        quiet_s: float = LONGEST_QUIET_S,
    ) -> None:
        if len(plan.own) != size:
            raise ValueError(f"the environment is planned for {len(plan.own)} ranks and the pool has {size}")
        self._timeout_s = timeout_s
        self._tuning = tuning
        self._quiet_s = quiet_s
        self._watch: Watch | None = None
        self._lock = threading.Lock()
        self._unusable = "it has not started"
        self.environment_records: tuple[EnvironmentRecord, ...] = ()
        self._collector: Collector | None = None  # exactly while the pool can be used
        self._processes = RankProcesses()
        # A pool that is dropped without `close` ends its ranks too. The processes hold no reference to the pool.
        self._release = weakref.finalize(self, _release, self._processes, plan.log_folder)
        try:
            self._start(entry, encode(payload), plan)
        except BaseException:
            self._release()
            raise

    def call(self, command: Any) -> Any:
        """Rank 0's answer, once every rank has executed the command.

        Raises what the ranks raised: an AlulaError as itself (the pool goes on where all raised the same), anything
        else as RankFailure with the traceback in the log. RankFailure too where a rank died or fell silent.
        """
        kinds = [Kind.COMMAND] + [Kind.QUIET_COMMAND] * (len(self._processes.handles) - 1)
        return decode(self._exchange(kinds, command).bodies[0])

    def call_all(self, command: Any) -> list[Any]:
        """Every rank's answer, in rank order. Raises like `call`."""
        replies = self._exchange([Kind.COMMAND] * len(self._processes.handles), command)
        return [decode(replies.bodies[handle.rank]) for handle in self._processes.handles]

    def process_ids(self) -> tuple[int, ...]:
        return tuple(handle.process.pid for handle in self._processes.handles)

    def close(self) -> None:
        """Ends the ranks: asks them first, kills what remains after some seconds. Idempotent.

        While another thread is in a call the ranks are killed at once, and that call raises RankFailure.
        """
        if self._collector is not None and self._lock.acquire(blocking=False):
            try:
                for handle in self._processes.handles:
                    with suppress(ChannelClosed, TimeoutError):
                        handle.channel.send(Kind.STOP, deadline=time.monotonic() + CLOSE_TIMEOUT_S)
                self._processes.wait(CLOSE_TIMEOUT_S)
            finally:
                self._lock.release()
        self._end("it is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, entry: str, payload: bytes, plan: EnvironmentPlan) -> None:
        if plan.log_folder is not None:  # a pool before this one of the same plan has removed it
            os.makedirs(plan.log_folder, mode=0o700, exist_ok=True)
        segment_fd = create_segment_file(len(plan.own))
        try:
            self._watch = watch = Watch(Segment(segment_fd))
            self._processes.start(plan, segment_fd)
        finally:
            os.close(segment_fd)
        collector = Collector(self._processes.handles, watch, self._timeout_s)
        for handle in self._processes.handles:
            start = Start(handle.rank, entry, payload, plan, segment_fd, self._timeout_s, self._tuning)
            self._send(handle.rank, Kind.START, encode(start), START_TIMEOUT_S, "starting")
        for _ in ("the environment as the process found it", "and again once the worker is made"):
            replies = collector.collect("starting")
            replies.raise_failure()
            found = [decode(replies.bodies[handle.rank]) for handle in self._processes.handles]
            self.environment_records = compare_environments(found)
        log_findings(self.environment_records)
        self._collector = Collector(self._processes.handles, watch, self._timeout_s, self._quiet_s)

    def _exchange(self, kinds: list[Kind], command: Any) -> Replies:
        body, doing = encode(command), f"running {type(command).__name__}"
        with self._lock:
            collector = self._collector
            if collector is None:
                raise RankFailure(f"the rank pool cannot run commands: {self._unusable}")
            try:
                for rank, kind in enumerate(kinds):
                    self._send(rank, kind, body, self._timeout_s, doing)
                replies = collector.collect(doing)
                if replies.failures and not replies.unanimous():
                    replies.raise_failure()
            except BaseException as error:  # an interrupt too: answers under way would be taken for later ones
                self._end(f"it ended after {type(error).__name__}: {error}")
                raise
        replies.raise_failure()
        return replies

    def _send(self, rank: int, kind: Kind, body: bytes, timeout_s: float, doing: str) -> None:
        handle = self._processes.handles[rank]
        try:
            handle.channel.send(kind, body, time.monotonic() + timeout_s)
        except ChannelClosed:
            assert self._watch is not None  # made before the processes
            raise handle.lost(doing, self._watch) from None
        except TimeoutError:
            raise RankFailure(
                f"rank {rank} does not read its commands while {doing}. Likely cause: {likely_cause(SILENT)}", rank
            ) from None

    def _end(self, reason: str) -> None:
        if self._collector is not None:
            self._unusable, self._collector = reason, None
        self._release()


def _release(processes: RankProcesses, log_folder: str | None) -> None:
    processes.kill()
    if log_folder is not None:
        shutil.rmtree(log_folder, ignore_errors=True)
