"""Waits for the device with a deadline, over made-up events and a made-up clock; on a GPU, over a rank that is stopped.

The rules of patience themselves are tested in tests/comm/test_patience.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import tiny_models
from alula.comm.device_deadline import SPIN_S, wait_for
from alula.comm.faults import BEHIND, SILENT, STUCK
from alula.comm.patience import PATIENCE, Peers
from alula.comm.segment import Segment, create_segment_file
from alula.comm.watch import READY, RankWatch, Watch, as_note
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.errors import RankFailure
from alula.core.records import DispatchRecord
from alula.core.sampling import SamplingParams
from alula.engine.device_clock import FlightClock, Mark
from alula.engine.llm import LLM

DEADLINE_S = 10.0


class FakeEvent:
    """Is reached at a moment of the world, or never."""

    def __init__(self, world: World, at_s: float | None) -> None:
        self._world = world
        self._at_s = at_s
        self.num_queries = 0
        self.num_synchronised = 0

    def query(self) -> bool:
        self.num_queries += 1
        self._world.now_s += 1e-6
        return self._at_s is not None and self._world.now_s >= self._at_s

    def synchronize(self) -> None:
        self.num_synchronised += 1


class World:
    """Rank 0 of two, with a clock that moves as it asks and sleeps; `peer` is told at every sleep."""

    def __init__(self) -> None:
        fd = create_segment_file(2, 64)
        segment = Segment(fd)
        os.close(fd)
        self.now_s = 50.0
        self.naps: list[float] = []
        self.peers = Peers(segment, 0, DEADLINE_S)
        self.other = RankWatch(segment, 1)
        self.other.enter(READY)
        self.other.note(as_note("draft", "all_reduce of 64 bytes of bfloat16 through nccl, captured"))
        self.watch = Watch(segment)
        self.peer: Callable[[], None] = self.other.beat
        self.seen_waiting = False

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now_s += seconds
        self.seen_waiting |= self.watch.wait(0) != 0
        self.peer()

    def wait(self, event: FakeEvent) -> None:
        wait_for(event, self.peers, "verify", lambda: self.now_s, self.sleep)

    def fails(self) -> RankFailure:
        with pytest.raises(RankFailure) as caught:
            self.wait(FakeEvent(self, None))
        return caught.value


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_a_single_rank_waits_as_ever(world: World) -> None:
    event = FakeEvent(world, None)
    wait_for(event, None, "verify")
    assert (event.num_synchronised, event.num_queries) == (1, 0)


def test_what_has_been_reached_costs_one_question(world: World) -> None:
    event = FakeEvent(world, 0.0)
    world.wait(event)
    assert (event.num_queries, event.num_synchronised, world.naps) == (1, 0, [])


def test_a_cycle_is_waited_for_without_sleeping_and_longer_ones_with_short_naps(world: World) -> None:
    world.wait(FakeEvent(world, world.now_s + SPIN_S / 2))
    assert not world.naps and not world.seen_waiting
    world.wait(FakeEvent(world, world.now_s + 0.5))
    assert world.seen_waiting and world.watch.wait(0) == 0
    assert all(50e-6 <= nap <= 200e-6 for nap in world.naps) and world.naps[-1] == 200e-6


def test_long_work_of_a_rank_that_computes_is_waited_for(world: World) -> None:
    world.wait(FakeEvent(world, world.now_s + (PATIENCE - 0.5) * DEADLINE_S))


@pytest.mark.parametrize(
    ("kind", "limit_s"), [(SILENT, DEADLINE_S), (STUCK, DEADLINE_S), (BEHIND, PATIENCE * DEADLINE_S)]
)
def test_what_is_never_reached_ends_in_an_error(world: World, kind: str, limit_s: float) -> None:
    begin = world.now_s
    if kind == SILENT:
        world.peer = lambda: None
    if kind == STUCK:
        with world.other.waiting():
            failure = world.fails()
    else:
        failure = world.fails()
    assert failure.rank == 1
    assert world.now_s - begin == pytest.approx(limit_s, rel=0.02)
    text = str(failure)
    assert text.startswith("rank 0 waited in phase verify for its device; rank 1 did not arrive")
    assert "Rank 1 was last seen in phase draft; its last calls: all_reduce of 64 bytes" in text
    assert {SILENT: "SIGSTOP", STUCK: "--no-graphs", BEHIND: "py-spy"}[kind] in text
    assert world.watch.wait(0) == 0


def test_the_phase_of_a_cycle_that_stands_still_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft has run, verify never ends."""
    clock = FlightClock(torch.device("cpu"), world.peers)
    for phase in ("draft", "verify", "extend"):
        clock.enter(phase)
    clock.finish()
    asked: list[str] = []

    def wait(mark: Mark, peers: Peers | None, phase: str) -> None:
        asked.append(phase)
        assert peers is world.peers
        if phase == "verify":
            raise RankFailure("phase verify", 1)

    monkeypatch.setattr(Mark, "wait", wait)
    with pytest.raises(RankFailure, match="phase verify"):
        clock.resolve(None)
    assert asked == ["draft", "verify"]


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.gpu
@pytest.mark.parametrize("named", [0, 1])
def test_a_rank_that_is_stopped_between_replays_ends_the_run(named: int) -> None:
    """Two ranks on one GPU. The kernels of the other one spin in a collective that nothing will ever complete."""
    deadline_s = 5.0
    config = EngineConfig(
        device="cuda",
        dtype="bfloat16",
        max_batch=2,
        context_tokens=512,
        parallel=ParallelConfig(tp=2, share_gpus=True, rank_deadline_s=deadline_s),
        speculation=SpeculationConfig(speculate="always"),
    )
    head = tiny_models.head("group4_llama3", "bigram")
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    with LLM(str(tiny_models.checkpoint("group4_llama3")), draft=str(head), config=config) as llm:
        processes = llm._backend._pool.process_ids()  # type: ignore[attr-defined]
        stream = llm.stream(tiny_models.random_ids(20), sampling)
        for _ in range(10):
            next(stream)
        assert llm.take_cycles()[-1].outcomes["verify"].replayed
        collectives = llm.collectives()
        assert collectives is not None
        captured = [record for record in collectives.dispatched if record.captured]
        assert captured and all(isinstance(record, DispatchRecord) for record in captured)
        assert any(record.num_replays for record in captured)
        os.kill(processes[named], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(RankFailure, match=f"rank {named} did not .*no heartbeat") as caught:
            for _ in stream:
                pass
        assert time.monotonic() - start < deadline_s + 15.0  # with what was on its way already
        assert caught.value.rank == named
        assert "replay of the graph of" in str(caught.value) and "SIGSTOP" in str(caught.value)
        assert not any(map(is_running, processes))
