"""The pool of rank processes: lockstep, failures of every kind, and nothing left behind by any of them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from alula.comm.environment_plan import plan_environment
from alula.core.config import ParallelConfig
from alula.core.errors import CheckpointError, OutOfPages, RankFailure
from alula.engine.ranks import RankPool

PROMPT_S = 6.0  # "at once", on a busy machine


def make_pool(
    size: int = 2,
    timeout_s: float = 30.0,
    entry: str = "rank_workers:build",
    payload: Any = None,
    base: dict[str, str] | None = None,
) -> RankPool:
    plan = plan_environment(
        ParallelConfig(tp=size, rank_deadline_s=timeout_s), "cpu", {**os.environ, **(base or {})}
    )
    return RankPool(entry, size, payload, plan, timeout_s)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = open_files()
    yield
    gc.collect()
    assert until(lambda: open_files() <= before), f"left behind: {open_files() - before}"


def open_files() -> set[str]:
    """What this process's descriptors point to, and what lies in the machine's named shared memory."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.lexists(link)} | set(os.listdir("/dev/shm"))


def until(condition: Callable[[], bool], seconds: float = PROMPT_S) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def gone(pids: tuple[int, ...]) -> bool:
    return not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # an orphan that nobody reaps is dead all the same


def test_lockstep_and_close(capfd: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(3)
    pids = pool.process_ids()
    assert pool.call_all(("describe",)) == [(rank, 3, 1, str(rank)) for rank in range(3)]
    large = bytes(3_000_000)
    assert pool.call(("echo", large)) == large
    assert len(set(pool.call_all(("interrupt",)))) == 3  # SIGINT does nothing to a rank
    for _ in range(2):
        with pytest.raises(OutOfPages, match="9 pages"):
            pool.call(("out_of_pages",))
    assert pool.call(("echo", 5)) == 5
    pool.close()
    assert gone(pids)
    pool.close()
    with pytest.raises(RankFailure, match="closed"):
        pool.call(("echo", 5))
    captured = capfd.readouterr()
    assert "stray" not in captured.out
    assert "Traceback" not in captured.err


def test_one_rank_raises(caplog: pytest.LogCaptureFixture) -> None:
    with make_pool() as pool:
        pids = pool.process_ids()
        start = time.monotonic()
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(RankFailure, match="rank 1 failed: ValueError: seven is odd") as caught,
        ):
            pool.call(("one_raises",))
        assert caught.value.rank == 1
        assert time.monotonic() - start < PROMPT_S
        assert "in one_raises" in caplog.text
        assert gone(pids)
        with pytest.raises(RankFailure, match="cannot run commands: it ended after RankFailure"):
            pool.call(("echo", 1))


def test_one_rank_dies_in_a_collective() -> None:
    with make_pool() as pool:
        pids = pool.process_ids()
        start = time.monotonic()
        with pytest.raises(RankFailure, match="rank 1 was killed by SIGKILL") as caught:
            pool.call(("one_dies",))
        assert caught.value.rank == 1
        assert time.monotonic() - start < 4.0  # a fraction of a second on an idle machine
        assert gone(pids)


def test_a_rank_that_dies_between_calls_is_named_by_the_next() -> None:
    with make_pool() as pool:
        os.kill(pool.process_ids()[1], signal.SIGSEGV)
        with pytest.raises(RankFailure, match="rank 1 was killed by SIGSEGV while running tuple"):
            pool.call(("echo", 1))


def test_silence_is_limited_and_length_is_not() -> None:
    with make_pool(timeout_s=1.0) as pool:
        pids = pool.process_ids()
        assert pool.call(("long_but_alive", 3.0)) == "done"
        start = time.monotonic()
        with pytest.raises(RankFailure, match="rank 1 did not arrive"):
            pool.call(("wait_in_collective",))
        assert time.monotonic() - start < 1.0 + PROMPT_S
        assert gone(pids)


def test_a_stopped_rank_is_named_and_ended() -> None:
    with make_pool(1, timeout_s=0.5) as pool:
        pids = pool.process_ids()
        with pytest.raises(RankFailure, match="rank 0 gave no sign of life"):
            pool.call(("stop",))
        assert gone(pids)


@pytest.mark.parametrize(
    ("size", "payload", "error", "message"),
    [
        (2, "checkpoint", CheckpointError, "shard 2 is truncated"),
        (1, "exit", RankFailure, "rank 0 exited with code 3 while starting"),
        (1, "environment", RankFailure, "rank 0 runs with OMP_NUM_THREADS '9', planned was '1'"),
    ],
)
def test_a_worker_that_cannot_be_built(size: int, payload: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_pool(size, entry="rank_workers:build_badly", payload=payload)


def test_an_entry_that_does_not_exist() -> None:
    with pytest.raises(RankFailure, match="rank 0 failed: ModuleNotFoundError: No module named 'no_such_module'"):
        make_pool(1, entry="no_such_module:build")


def test_an_environment_that_is_not_the_planned_one_stops_the_start(tmp_path: Path) -> None:
    """A start-up file of Python changes a variable in one rank, which no look at our own plan would show."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('RANK') == '1': os.environ['GLOO_SOCKET_IFNAME'] = 'eth7'\n"
    )
    with pytest.raises(RankFailure, match=r"rank 1 runs with GLOO_SOCKET_IFNAME 'eth7', planned was '\w+'"):
        make_pool(base={"PYTHONPATH": str(tmp_path)})


def test_a_pool_outlives_the_thread_that_made_it_and_not_its_last_reference() -> None:
    pools: list[RankPool] = []
    maker = threading.Thread(target=lambda: pools.append(make_pool(1)))
    maker.start()
    maker.join()
    time.sleep(0.3)
    pids = pools[0].process_ids()
    assert pools[0].call(("echo", 4)) == 4
    pools.clear()
    gc.collect()
    assert gone(pids)


# No `if __name__ == "__main__"`: a user's script need not have one.
SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from alula.comm.environment_plan import plan_environment
from alula.core.config import ParallelConfig
from alula.engine.ranks import RankPool
pool = RankPool("rank_workers:build", 2, None, plan_environment(ParallelConfig(tp=2), "cpu", os.environ), 600.0)
print(*pool.process_ids(), flush=True)
try:
    pool.call(("wait_in_collective",))
except KeyboardInterrupt:
    pool.close()
    sys.exit(130)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_engine(end: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as engine:
        assert engine.stdout is not None and engine.stderr is not None
        pids = tuple(int(word) for word in engine.stdout.readline().split())
        assert len(pids) == 2
        time.sleep(0.5)  # one rank is in a collective by now, the other asleep
        if end is signal.SIGINT:
            os.killpg(engine.pid, end)  # as Ctrl-C does
        else:
            engine.send_signal(end)
        assert until(lambda: gone(pids))
        assert engine.wait(PROMPT_S) == (130 if end is signal.SIGINT else -end)
        assert "Traceback" not in engine.stderr.read()
