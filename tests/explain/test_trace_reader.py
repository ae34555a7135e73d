"""Traces: phases from marks or from graphs, graph launches, collectives over ranks, streaming, damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from reading import only_run, read
from trace_samples import NCCL, ONE_SHOT, TraceMaker, sglang_cycles

from alula.explain.readers import trace_events
from alula.explain.readers.inputs import read_inputs
from alula.explain.readers.trace_kernels import family_of
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q


def test_phases_of_sglang_with_their_graphs() -> None:
    run = only_run(sglang_cycles().text())
    assert run.text(Q.ENGINE) == "sglang"
    assert run.number(Q.GPU_SPAN_MS, phase="verify") == pytest.approx(190 * 50.5e-3 + 10 * 20.5e-3, abs=0.01)
    assert run.number(Q.GPU_BUSY_MS, phase="verify") == pytest.approx(9.7)
    assert run.number(Q.KERNEL_MS, phase="verify", name=None) == pytest.approx(9.7)
    assert [run.number(Q.GRAPH_NODES, phase=phase) for phase in ("verify", "draft")] == [200, 20]
    assert [run.number(Q.GRAPH_LAUNCH_MS, phase=phase) for phase in ("verify", "draft")] == [2.0, 0.1]
    assert [run.yes(Q.GRAPH_REPLAYED, phase=phase) for phase in ("verify", "draft", "extend")] == [
        True,
        True,
        False,
    ]


def test_a_cycle_adds_up() -> None:
    run = only_run(sglang_cycles().text())
    parts = [run.number(one) or 0.0 for one in (Q.VERIFY_MS, Q.DRAFT_MS, Q.EXTEND_MS, Q.HOST_MS)]
    assert run.number(Q.CYCLE_MS, batch=1) == pytest.approx(sum(parts), rel=1e-6)
    assert run.number(Q.HOST_MS, batch=1) == pytest.approx(0.4, abs=0.01)


def test_collectives_of_one_rank_say_backend_and_bytes_but_not_transfer() -> None:
    run = only_run(sglang_cycles().text())
    assert run.number(Q.NUM_ALLREDUCES, phase="verify") == 10
    assert run.text(Q.ALLREDUCE_BACKEND, phase="verify", num_bytes=43008) == "nccl"
    assert run.number(Q.KERNEL_MS, phase="verify", name="nccl all-reduce") == pytest.approx(0.2)
    assert not run.all(Q.COLLECTIVE_MS)
    assert not run.all(Q.NCCL_PROTOCOL), "a kernel's name proves no protocol"


def test_over_ranks_the_shortest_is_transfer_and_the_rest_is_waiting(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"trace-{rank}.json").write_text(
            sglang_cycles(rank=rank, world=3, wait_us=5.0 * rank).text(None)
        )
    (tmp_path / "other.json").write_text(sglang_cycles(rank=0, world=1).text())
    sinks = read_inputs([str(tmp_path)], Label.UNKNOWN, lambda text: None)
    found = [one for sink in sinks for run in sink.runs() for one in run]
    transfer = [one.value for one in found if one.quantity is Q.COLLECTIVE_MS]
    waits = {one.scope.rank: one.value for one in found if one.quantity is Q.COLLECTIVE_WAIT_MS}
    assert transfer == [pytest.approx(0.2)]
    assert waits == {0: pytest.approx(0.0), 1: pytest.approx(0.05), 2: pytest.approx(0.1)}


def test_phases_of_vllm() -> None:
    trace = TraceMaker()
    for _ in range(6):
        start = trace.now
        trace.forward(
            "gpu_model_runner: forward", num_kernels=100, kernel_us=40.0, collective=ONE_SHOT, num_collectives=5
        )
        trace._event("gpu_user_annotation", "execute_context_0(0)_generation_2(8)", start, trace.now - start, {})
        trace.forward("gpu_model_runner: sample", num_kernels=3, kernel_us=10.0, launch_us=None)
        trace.forward("gpu_model_runner: draft", num_kernels=30, kernel_us=20.0, launch_us=None)
    run = only_run(trace.text())
    assert run.text(Q.ENGINE) == "vllm"
    assert run.yes(Q.GRAPH_REPLAYED, phase="verify") is True
    assert run.yes(Q.GRAPH_REPLAYED, phase="draft") is False
    assert run.text(Q.ALLREDUCE_BACKEND, phase="verify") == "custom"
    assert run.number(Q.CYCLE_MS, batch=2) is not None
    assert run.number(Q.PHASE_MS, phase="accept") == pytest.approx(0.0315, abs=0.001)


def test_plain_decoding_is_a_step_and_no_cycle() -> None:
    trace = TraceMaker()
    for _ in range(6):
        trace.forward("step[DECODE bs=4]", num_kernels=100, kernel_us=40.0)
        trace.idle(50.0)
    run = only_run(trace.text())
    assert run.number(Q.STEP_MS, batch=4) == pytest.approx(4.1, abs=0.01)
    assert not run.all(Q.CYCLE_MS)
    assert run.number(Q.GPU_SPAN_MS, phase="decode") == pytest.approx(4.05, abs=0.01)


def test_without_marks_graphs_are_told_by_size() -> None:
    trace = TraceMaker()
    for _ in range(8):
        trace.forward(None, num_kernels=2876, kernel_us=4.0, gap_us=0.3, launch_us=2826.0)
        trace.forward(None, num_kernels=60, kernel_us=10.0, launch_us=70.0)
        trace.idle(100.0)
    run = only_run(trace.text(None))
    assert [run.number(Q.GRAPH_NODES, phase=phase) for phase in ("verify", "draft")] == [2876, 60]
    assert run.number(Q.GRAPH_LAUNCH_MS, phase="verify") == pytest.approx(2.826)


def test_marks_of_the_host_alone_are_followed_through_launches() -> None:
    trace = TraceMaker()
    for _ in range(6):
        start = trace.now
        trace.forward(None, num_kernels=10, kernel_us=40.0, launch_us=20.0)
        trace._event("user_annotation", "step[TARGET_VERIFY bs=1]", start - 30.0, 25.0, {})
    assert only_run(trace.text()).number(Q.NUM_KERNELS, phase="verify") == 10


def test_a_mark_on_two_streams_is_one_phase() -> None:
    trace = TraceMaker()
    for _ in range(6):
        start = trace.now
        trace.forward("step[TARGET_VERIFY bs=1]", num_kernels=50, kernel_us=40.0)
        trace._event(
            "gpu_user_annotation", "step[TARGET_VERIFY bs=1]", start + 500.0, trace.now - start - 490.0, {}
        )
        trace.idle(100.0)
    run = only_run(trace.text())
    found = run.first(Q.NUM_KERNELS, phase="verify")
    assert found is not None
    assert (found.value, found.num_samples) == (50, 6)


def test_a_target_in_pieces() -> None:
    trace = TraceMaker()
    for _ in range(4):
        start = trace.now
        for _layer in range(20):
            trace.forward(None, num_kernels=14, kernel_us=10.0, launch_us=30.0)
            trace.forward(None, num_kernels=1, kernel_us=10.0, launch_us=None)
        trace._event("gpu_user_annotation", "step[TARGET_VERIFY bs=1]", start, trace.now - start, {})
    run = only_run(trace.text())
    assert run.text(Q.GRAPH_MODE, phase="verify") == "piecewise"
    assert run.yes(Q.GRAPH_REPLAYED, phase="verify") is False


@pytest.mark.parametrize("size", [200, 1000, 5000])
def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    text = sglang_cycles(4).text()
    whole = only_run(text)
    monkeypatch.setattr(trace_events, "PIECE_BYTES", size)
    assert list(only_run(text)) == list(whole)


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.98])
def test_a_cut_off_trace_gives_what_came_before(cut: float) -> None:
    text = sglang_cycles().text()
    sink = read(text[: int(len(text) * cut)])
    (run,) = sink.runs()
    assert run.number(Q.GPU_SPAN_MS, phase="verify") == pytest.approx(9.8, abs=0.01)
    assert any("cut off" in note for note in sink.notes)


def test_numbers_that_json_does_not_know_and_bad_bytes() -> None:
    text = sglang_cycles(6).text(None)
    dirty = (
        text.replace('"stream": 7', '"stream": 7, "occupancy": NaN, "x": -Infinity')
        .encode()
        .replace(b"nvjet_tst", b"nvj\xff\xfetst")
    )
    assert only_run(dirty).number(Q.NUM_KERNELS, phase="verify") == 200


def test_types_that_nobody_expects() -> None:
    events = json.loads(sglang_cycles(6).text(None))["traceEvents"]
    for event in events[::7]:
        event["ts"] = str(event.get("ts", "x"))
    events += [{"ph": "X", "cat": "kernel", "name": "n", "ts": None, "args": 5}, {"ph": 1, "name": ["x"]}]
    run = only_run(json.dumps(events))
    assert run.number(Q.NUM_KERNELS, phase="verify") == 200


def test_a_packed_trace(tmp_path: Path) -> None:
    path = tmp_path / "whatever"
    path.write_bytes(gzip.compress(sglang_cycles().text().encode()))
    (sink,) = read_inputs([str(path)], Label.UNKNOWN, lambda text: None)
    assert sink.recognised["profiler trace"] > 0


def test_a_trace_without_gpu_work_says_so() -> None:
    sink = read('{"traceEvents": [{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 2}]}')
    assert sink.notes == ["the trace holds no GPU kernels"]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (NCCL, "nccl"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWork)", "nccl"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgs)", "nccl"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16", "nccl_symm_mem"),
        (ONE_SHOT, "custom"),
        ("void sglang::cross_device_reduce_2stage<float, 4>()", "custom"),
        ("void all_reduce_one_shot_push_kernel<__nv_bfloat16, 8>", "custom_v2"),
        ("one_shot_all_reduce_kernel", "symm_mem"),
        ("multimem_all_reduce_kernel", "symm_mem"),
        ("push_oneshot_param_kernel", "flashinfer_pcie_ipc"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>", "flashinfer"),
        ("allreduceRsAgZeroCopy", "mscclpp"),
    ],
)
def test_collectives_by_name(name: str, backend: str) -> None:
    family = family_of(name)
    assert family is not None
    assert family.backend == backend


@pytest.mark.parametrize(
    "name", ["reduce_kernel<512, 1>", "splitKreduce_kernel", "fused_moe_kernel", "push_back", "nvjet_tst"]
)
def test_other_kernels_are_no_collective(name: str) -> None:
    assert family_of(name) is None
