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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from alula.comm.environment_plan import plan_environment
from alula.core.config import ParallelConfig
from alula.core.errors import CheckpointError, OutOfPages, RankFailure
from alula.engine.ranks import RankPool

PROMPT_S = 6.0  # "at once", on a busy machine
MARGIN_S = 15.0  # beyond a deadline, where several processes have to be heard and ended


def make_pool(
    size: int = 2,
    timeout_s: float = 30.0,
    entry: str = "rank_workers:build",
    payload: Any = None,
    base: dict[str, str] | None = None,
    collectives: str = "auto",
) -> RankPool:
    parallel = ParallelConfig(tp=size, rank_deadline_s=timeout_s, collectives=collectives)
    plan = plan_environment(parallel, "cpu", {**os.environ, **(base or {})})
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
        with pytest.raises(RankFailure, match="rank 1 was killed by SIGKILL while running tuple") as caught:
            pool.call(("one_dies",))
        assert caught.value.rank == 1
        says(caught.value, "Rank 1 was last seen in phase verify", LAST_CALL, "`dmesg` tells")
        assert time.monotonic() - start < 4.0  # a fraction of a second on an idle machine
        assert gone(pids)


def test_a_rank_that_dies_between_calls_is_named_by_the_next() -> None:
    with make_pool() as pool:
        os.kill(pool.process_ids()[1], signal.SIGSEGV)
        with pytest.raises(RankFailure, match="rank 1 was killed by SIGSEGV while running tuple"):
            pool.call(("echo", 1))


LAST_CALL = "its last calls: all_reduce of 4 bytes of float32 through shared_memory"


def says(failure: RankFailure, *parts: str) -> None:
    """The message names all of these."""
    missing = [part for part in parts if part not in str(failure)]
    assert not missing, f"{missing} not in: {failure}"


def ends(pool: RankPool, command: tuple[Any, ...], within_s: float) -> RankFailure:
    """The failure that a command ends with, in time, and no rank is left."""
    pids, start = pool.process_ids(), time.monotonic()
    with pytest.raises(RankFailure) as caught:
        pool.call(command)
    assert time.monotonic() - start < within_s + MARGIN_S
    assert gone(pids)
    return caught.value


def test_only_silence_is_limited() -> None:
    """With a deadline of a second: collectives for longer; no collective for longer, while nobody waits; and a rank
    that others wait for, since it beats."""
    with make_pool(timeout_s=1.0) as pool:
        assert pool.call(("long_but_alive", 3.0)) == "done"
        assert pool.call(("alone_for", 5.0)) == "done"
        assert pool.call(("one_is_late", 1.8)) == "done"
        found = ends(pool, ("wait_in_collective",), 3.0)
    assert found.rank == 1
    says(
        found,
        "rank 0 waited in all_reduce of 4 bytes of float32; rank 1 did not arrive (it has a heartbeat, but is",
    )
    says(found, "Rank 0 was last seen in phase verify; its last calls:", "--rank-deadline")


@pytest.mark.parametrize("collectives", ["shared_memory", "torch_distributed"])
def test_a_rank_that_is_stopped_in_a_collective(collectives: str) -> None:
    """The others report it where they can see heartbeats while they wait; else the engine does."""
    with make_pool(3, timeout_s=1.0, collectives=collectives) as pool:
        found = ends(pool, ("one_stops",), 1.0)
    assert found.rank == 2
    says(found, "rank 2 did not", "no heartbeat for 1", "Rank 2 was last seen in phase extend", "SIGSTOP")
    says(found, f"its last calls: all_reduce of 32 bytes of float32 through {collectives}")


def test_a_rank_that_does_not_answer_after_the_others_have() -> None:
    with make_pool(timeout_s=1.0) as pool:
        found = ends(pool, ("one_never_answers",), 5.0)
    assert found.rank == 1
    says(found, "rank 1 did not answer while running tuple (it has a heartbeat, but is behind", "in phase emit")


def test_a_rank_that_hangs_in_a_loop() -> None:
    with make_pool(timeout_s=1.0) as pool:
        found = ends(pool, ("one_loops",), 3.0)
    assert found.rank == 1
    says(found, "rank 1 did not arrive (it has a heartbeat, but is behind: no progress for 3", "py-spy dump")
    says(found, "Rank 1 was last seen in phase draft")


def test_a_rank_that_does_not_make_the_call_of_the_others() -> None:
    """It has answered and computes nothing, so waiting for it longer than the deadline would be in vain."""
    with make_pool(timeout_s=1.0) as pool:
        found = ends(pool, ("one_leaves",), 1.0)
    assert found.rank == 1
    says(
        found,
        "rank 1 did not arrive (it waits elsewhere, and no rank computes",
        "Rank 1 has made no collective call",
    )


def test_ranks_that_make_different_calls() -> None:
    with make_pool() as pool:
        found = ends(pool, ("one_differs",), 1.0)
    says(found, "ranks make different calls", "Rank 0 was last seen in phase verify", "Compare their versions")
    says(found, "all_reduce of 4 bytes of float32 through", "all_reduce of 8 bytes of float32 through")


def test_a_stopped_rank_is_named_and_ended() -> None:
    with make_pool(1, timeout_s=0.5) as pool:
        found = ends(pool, ("stop",), 0.5)
    assert found.rank == 0
    says(found, "rank 0 did not answer while running tuple (no heartbeat for", "SIGSTOP")


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
pool = RankPool("rank_workers:build", 2, None, plan_environment(ParallelConfig(tp=2), "cpu", os.environ), 2.0)
print(*pool.process_ids(), flush=True)
try:
    print(pool.call(("long_but_alive", 2.0)), flush=True)
    pool.call((sys.argv[2],))
except KeyboardInterrupt:
    pool.close()
    sys.exit(130)
"""


@contextmanager
def an_engine(tmp_path: Path, command: str) -> Iterator[tuple[subprocess.Popen[str], tuple[int, ...]]]:
    """A program that runs two ranks with a deadline of two seconds -> its process and theirs."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as engine:
        assert engine.stdout is not None
        pids = tuple(int(word) for word in engine.stdout.readline().split())
        assert len(pids) == 2
        yield engine, pids


@pytest.mark.parametrize("command", ["wait_in_collective", "collectives"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_engine(end: signal.Signals, command: str, tmp_path: Path) -> None:
    """Asleep or in a collective, or busy with collectives; a fixture looks at /dev/shm."""
    with an_engine(tmp_path, command) as (engine, pids):
        assert engine.stdout is not None and engine.stderr is not None
        assert engine.stdout.readline() == "done\n"
        time.sleep(0.5)  # one rank is in a collective by now, the other asleep or there too
        if end is signal.SIGINT:
            os.killpg(engine.pid, end)  # as Ctrl-C does
        else:
            engine.send_signal(end)
        assert until(lambda: gone(pids))
        assert engine.wait(PROMPT_S) == (130 if end is signal.SIGINT else -end)
        assert "Traceback" not in engine.stderr.read()


def test_a_run_that_was_suspended_goes_on(tmp_path: Path) -> None:
    """As Ctrl-Z and `fg` do, for longer than the deadline: time in which nobody runs counts for nobody."""
    with an_engine(tmp_path, "no such command") as (engine, pids):
        assert engine.stdout is not None
        time.sleep(0.5)
        os.killpg(engine.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.killpg(engine.pid, signal.SIGCONT)
        assert engine.stdout.readline() == "done\n"
        engine.kill()
        assert until(lambda: gone(pids))
