"""Dispatch as a pure decision: the first backend that admits a call, and a reason for each one before it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.backends.shared_memory import SharedMemoryBackend
from alula.comm.backends.torch_distributed import TorchDistributedBackend
from alula.comm.call import CollectiveCall, describe_call
from alula.comm.dispatch import Dispatcher, choose
from alula.comm.group import Group, single_group
from alula.comm.join import GroupMember, join_group
from alula.comm.process_groups import ProcessGroups
from alula.comm.segment import Segment, create_segment_file
from alula.comm.watch import RankWatch, Watch
from alula.core.errors import InvalidOption
from alula.core.records import Refusal


@dataclass
class UpTo:
    """A backend that takes calls up to a size."""

    name: str
    limit_bytes: int
    num_questions: int = 0
    capturable: bool = True

    def admits(self, call: CollectiveCall) -> Verdict:
        self.num_questions += 1
        return (
            YES if call.num_bytes <= self.limit_bytes else no(f"{call.num_bytes} bytes exceed {self.limit_bytes}")
        )

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + 1

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return x

    def close(self) -> None:
        pass


def make_call(num_bytes: int, **changes: object) -> CollectiveCall:
    fields = {
        "op": "all_reduce",
        "num_bytes": num_bytes,
        "dtype": "float32",
        "aligned": True,
        "num_ranks": 2,
        "phase": "verify",
        "device": "cpu",
    }
    return CollectiveCall(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_first_backend_that_admits_is_chosen_with_the_refusals_before_it() -> None:
    backends = (UpTo("small", 64), UpTo("middle", 1024), UpTo("large", 1 << 30))
    assert choose(make_call(64), backends).refused == ()
    decision = choose(make_call(4096), backends)
    assert decision.index == 2
    assert decision.refused == (
        Refusal(backend="small", reason="4096 bytes exceed 64"),
        Refusal(backend="middle", reason="4096 bytes exceed 1024"),
    )


def test_no_backend_at_all_names_every_reason() -> None:
    with pytest.raises(
        InvalidOption, match=r"all_reduce of 128 bytes.*a: 128 bytes exceed 1; b: 128 bytes exceed 2"
    ):
        choose(make_call(128), (UpTo("a", 1), UpTo("b", 2)))


def test_a_distinct_call_is_decided_once_and_counted() -> None:
    small, large = UpTo("small", 64), UpTo("large", 1 << 30)
    group = Group(0, 2, Dispatcher((small, large), 2))
    for _ in range(10):
        assert group.all_reduce(torch.zeros(100), "verify")[0] == 1
    group.all_reduce(torch.zeros(100), "draft")
    group.all_reduce(torch.zeros(4), "draft")
    assert (small.num_questions, large.num_questions) == (3, 2)
    records = group.dispatch_records()
    assert [(r.phase, r.num_bytes, r.backend, r.num_calls) for r in records] == [
        ("verify", 400, "large", 10),
        ("draft", 400, "large", 1),
        ("draft", 16, "small", 1),
    ]
    assert records[0].refused == (Refusal(backend="small", reason="400 bytes exceed 64"),)


def watched(rank: int = 1) -> tuple[RankWatch, Watch]:
    segment = Segment(create_segment_file(2, 64))
    return RankWatch(segment, rank), Watch(segment)


def test_every_call_is_noted_before_it_is_made_with_what_it_is_for() -> None:
    own, watch = watched()
    seen: list[tuple[str, ...]] = []

    class Asking(UpTo):
        def all_reduce(self, x: Tensor) -> Tensor:
            seen.append(watch.last_calls(1))
            return x

    group = Group(1, 2, Dispatcher((Asking("asking", 1 << 30),), 2, watch=own))
    group.work_on("decode")
    group.all_reduce(torch.zeros(4), "verify")
    group.work_on("verify")
    group.all_reduce(torch.zeros(16), "verify")
    group.all_reduce(torch.zeros(4), "draft")
    first = "all_reduce of 16 bytes of float32 through asking (decode)"
    assert seen[0] == (first,) and seen[1] == (first, "all_reduce of 64 bytes of float32 through asking (verify)")
    assert watch.phase(1) == "draft" and watch.calls(1) == 3
    assert [(record.work, record.phase) for record in group.dispatch_records()] == [
        ("decode", "verify"),
        ("verify", "verify"),
        ("verify", "draft"),
    ]


def test_replays_are_counted_and_noted_with_what_the_graph_holds() -> None:
    own, watch = watched()
    dispatcher = Dispatcher((UpTo("any", 1 << 30),), 2, capturing=lambda x: x.numel() > 8, watch=own)
    group = Group(1, 2, dispatcher)
    with group.recording("verify", "the graph of verify, batch 1") as recording:
        group.all_reduce(torch.zeros(16), "verify")
        group.all_reduce(torch.zeros(16), "verify")
    for _ in range(5):
        recording.replayed()
    text = "replay of the graph of verify, batch 1 with 2 calls, the last all_reduce of 64 bytes of float32 through any"
    assert watch.last_calls(1)[-1] == f"{text}, captured"
    assert watch.phase(1) == "verify"
    (record,) = group.dispatch_records()
    assert (record.captured, record.num_calls, record.num_replays) == (True, 2, 10)
    with pytest.raises(RuntimeError, match="refused"), group.recording("draft", "another"):
        group.all_reduce(torch.zeros(32), "draft")
        raise RuntimeError("refused")
    assert len(group.dispatch_records()) == 1


def test_a_call_is_described_by_what_all_ranks_share() -> None:
    call = describe_call("all_gather", torch.zeros(8, dtype=torch.bfloat16)[1:], "draft", 4)
    assert (call.num_bytes, call.dtype, call.aligned, call.device) == (14, "bfloat16", False, "cpu")
    with pytest.raises(ValueError, match="phase 'prefill'"):
        describe_call("all_reduce", torch.zeros(1), "prefill", 4)


def test_real_backends_refuse_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment(create_segment_file(2))
    shared = SharedMemoryBackend(segment, 0, 1.0)
    assert shared.admits(make_call(1 << 40)).admitted  # cut into blocks
    assert "on cuda" in str(shared.admits(make_call(4, device="cuda")).reason)
    assert "float8_e4m3fn" in str(shared.admits(make_call(4, dtype="float8_e4m3fn")).reason)
    assert "sum of bool" in str(shared.admits(make_call(4, dtype="bool")).reason)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "aarch64" in str(SharedMemoryBackend(segment, 0, 1.0).admits(make_call(4)).reason)
    last = TorchDistributedBackend(ProcessGroups(segment, 0, 1.0), "cpu")
    assert last.admits(make_call(4, dtype="float8_e4m3fn", op="all_gather")).admitted
    assert "the group on cpu" in str(last.admits(make_call(4, device="cuda")).reason)


def test_unknown_backend_names_are_refused() -> None:
    member = GroupMember(rank=0, size=2, device="cpu", collectives="nccl2", timeout_s=1.0, segment_fd=-1)
    with pytest.raises(
        InvalidOption,
        match=r"'nccl2'; expected one of auto, fastest, peer_push.*, torch_distributed",
    ):
        join_group(member)


def test_a_group_of_one_returns_its_tensors_and_records_nothing() -> None:
    group = single_group()
    x = torch.ones(3)
    assert group.all_reduce(x, "verify") is x
    assert group.all_gather(x, "verify") is x
    assert group.broadcast(x, 0, "verify") is x
    assert group.bits_agree(x)
    assert group.dispatch_records() == ()
    group.close()
