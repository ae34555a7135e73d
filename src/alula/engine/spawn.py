"""Starts the processes of the ranks and ends them. Knows nothing of what they are told.

Each is a new interpreter started with subprocess. multiprocessing's spawn would import the user's main module again
in every rank (a script without `if __name__ == "__main__"` then starts engines without end) and could set a rank's
environment only by changing our own meanwhile; fork would copy torch's locks and threads.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from alula.comm.environment_plan import EnvironmentPlan
from alula.comm.faults import ENDED, explained
from alula.comm.watch import Watch
from alula.core.errors import RankFailure
from alula.engine.channel import Channel

logger = logging.getLogger(__name__)

# The engine's own sys.path: the rank must find the same alula and the same entry module. -P keeps the working
# directory out of the path while json is imported.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from alula.engine.rank_process import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
KILL_WAIT_S = 5.0
EXIT_S = 5.0


@dataclass(frozen=True)
class RankHandle:
    """One rank as the engine holds it."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel

    def ended(self) -> str | None:
        """How the process ended ("was killed by SIGKILL", "exited with code 3"), or None while it lives."""
        code = self.process.poll()
        if code is None:
            return None
        if code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}"

    def lost(self, doing: str, watch: Watch) -> RankFailure:
        """The failure to raise once the rank's channel is closed: that happens a moment before the process is gone."""
        end = time.monotonic() + EXIT_S
        while self.ended() is None and time.monotonic() < end:
            time.sleep(0.01)
        how = self.ended() or "closed its channel and lives on"
        code = self.process.poll()
        ended_by = -code if code is not None and code < 0 else None
        why = explained(watch, ENDED, (self.rank,), ended_by)
        return RankFailure(f"rank {self.rank} {how} while {doing}. {why}", self.rank)


class RankProcesses:
    """The processes of one pool, and the thread that starts them.

    Linux kills a rank when the *thread* that started it ends (PR_SET_PDEATHSIG), and callers may build an engine in
    a thread that ends soon. So a thread of our own starts the ranks and lives as long as they do. It blocks SIGINT
    first; a process inherits that, so Ctrl-C cannot hit a rank even in its first moments.
    """

    def __init__(self) -> None:
        self.handles: tuple[RankHandle, ...] = ()
        self._error: OSError | None = None
        self._started, self._ended = threading.Event(), threading.Event()

    def start(self, plan: EnvironmentPlan, segment_fd: int) -> None:
        """Raises OSError where a process cannot be started. `kill` is due in any case."""
        threading.Thread(target=self._keep, args=(plan, segment_fd), name="alula-ranks", daemon=True).start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def wait(self, timeout_s: float) -> None:
        """Returns when all processes have ended by themselves, or after this long."""
        end = time.monotonic() + timeout_s
        for handle in self.handles:
            try:
                handle.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return

    def kill(self) -> None:
        """Ends every process at once and lets go of everything. Idempotent."""
        self._ended.set()
        handles = self.handles
        for handle in handles:
            handle.process.kill()  # does nothing to one that has been waited for
        for handle in handles:
            try:
                handle.process.wait(KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                logger.warning("rank %d (process %d) does not end on SIGKILL", handle.rank, handle.process.pid)
            handle.channel.close()

    def _keep(self, plan: EnvironmentPlan, segment_fd: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for rank in range(len(plan.own)):
                self.handles = (*self.handles, _spawn(plan, rank, segment_fd))
        except OSError as error:
            self._error = error
        self._started.set()
        self._ended.wait()
        self.kill()  # those started after an interrupted caller gave up


def _spawn(plan: EnvironmentPlan, rank: int, segment_fd: int) -> RankHandle:
    ours, theirs = socket.socketpair()
    with theirs:
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, path, str(theirs.fileno()), str(os.getpid())],
            env=plan.for_rank(rank),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), segment_fd),
        )
    return RankHandle(rank, process, Channel(ours))
