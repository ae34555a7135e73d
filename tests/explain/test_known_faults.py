"""Each known fault is told by its own lines, in its own engine and versions, and by nothing else."""

from __future__ import annotations

import pytest
from evidence_builder import Found, found, sink_of, verdict_of

from alula.explain.case import assemble, version_numbers
from alula.explain.known_faults import KNOWN_FAULTS, extend_is_captured
from alula.explain.verdict import as_document
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

# id -> engine, a version inside, a version outside (None: unbound), evidence
_SHOWN: dict[str, tuple[str, str, str | None, list[Found]]] = {
    "allreduce_order_as_printed": (
        "vllm",
        "0.33.0",
        None,
        [found(Q.FLAG, "x", text="Using [A, B] (in dispatch order)")],
    ),
    "accept_rate_changed": (
        "sglang",
        "0.5.3",
        None,
        [found(Q.TOKENS_PER_CYCLE, 2, text="accept len: 2, accept rate: 0.5")],
    ),
    "cuda_graph_field": (
        "sglang",
        "0.5.3",
        None,
        [found(Q.TOKENS_PER_CYCLE, 2, text="accept len: 2, cuda graph: True")],
    ),
    "kernel_name_is_no_protocol": (
        "vllm",
        "0.20",
        None,
        [found(Q.KERNEL_MS, 2.0, text="ncclDevKernel_AllReduce_RING_LL")],
    ),
    "v0_acceptance_rate": ("vllm", "0.6.3", None, [found(Q.NUM_ACCEPTED, 5, text="System efficiency: 0.5")]),
    "peak_counts_chunks": (
        "vllm",
        "0.20",
        None,
        [found(Q.TOKENS_PER_S, 5.0, text="Peak output token throughput (tok/s)")],
    ),
    "mfu_counts_tokens": ("sglang", "0.5.23", None, [found(Q.FLAG, 5, text="est. read BW (GB/s per GPU): 100")]),
    "iteration_latency_overlap": ("tensorrt-llm", "1.2", None, [found(Q.CYCLE_MS, 5.0, text='"iterLatencyMS": 5')]),
    "gate_is_one_way": (
        "tensorrt-llm",
        "1.2",
        None,
        [found(Q.FLAG, 1, text="[SpeculationGate] Speculative decoding disabled")],
    ),
    "capture_default_too_small": ("vllm", "0.11", "0.12", [found(Q.MAX_RUNNING, 128), found(Q.STEPS, 2)]),
    "backend_lowers_graph_mode": (
        "vllm",
        "0.23",
        None,
        [
            found(
                Q.GRAPH_REASON,
                "x",
                text="FULL is not supported with spec-decode for attention backend Y",
                phase="verify",
            )
        ],
    ),
    "draft_tp_without_effect": ("vllm", "0.13", "0.14", [found(Q.DRAFT_TP, 1), found(Q.TP, 8)]),
    "acceptance_decays_with_reuse": ("vllm", "0.18.0", "0.19.1", []),
    "connections_overwritten": (
        "sglang",
        "0.5.23",
        None,
        [found(Q.VARIABLE_PLANNED, "1", name="CUDA_DEVICE_MAX_CONNECTIONS")],
    ),
    "ray_setdefault": ("vllm", "0.33", None, [found(Q.VARIABLES_COPIED, "A, B")]),
    "draft_inherits_quantization": (
        "sglang",
        "0.5.23",
        None,
        [found(Q.QUANTIZATION, "fp8"), found(Q.TOKENS_PER_CYCLE, 1.05)],
    ),
}


def _ids(engine: str, version: str, evidence: list[Found]) -> set[str]:
    spec = [found(Q.ENGINE, engine), found(Q.ENGINE_VERSION, version), *evidence]
    case = assemble([sink_of(*spec, label=Label.SPECULATIVE)])
    return {fault.id for fault in KNOWN_FAULTS if fault.found_in(case)}


def test_what_stands_in_every_log_is_a_note_and_the_rest_a_finding() -> None:
    routine = [found(Q.TOKENS_PER_CYCLE, 2.2, text="accept len: 2.2, accept rate: 0.55"), found(Q.ENGINE, "sglang")]
    verdict = verdict_of(routine)
    assert not [one for one in verdict.findings if one.id.startswith("known.")]
    assert "changed its meaning" in as_document(verdict)["facts"]["read_with_care"][0]
    telling = verdict_of([found(Q.NUM_ACCEPTED, 5, text="System efficiency: 0.6"), found(Q.ENGINE, "vllm")])
    assert [one.id for one in telling.findings if one.suspect] == ["known.v0_acceptance_rate"]


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: fault.id)
def test_is_told_by_its_lines_and_only_there(fault) -> None:  # type: ignore[no-untyped-def]
    engine, inside, outside, evidence = _SHOWN[fault.id]
    assert fault.source and fault.what
    if fault.id == "acceptance_decays_with_reuse":
        sink = sink_of(found(Q.ENGINE, engine), found(Q.ENGINE_VERSION, inside), label=Label.SPECULATIVE)
        for value in [3.0] * 20 + [2.4] * 20 + [1.5] * 20:
            sink.sample(Q.TOKENS_PER_CYCLE, value)
        assert fault.found_in(assemble([sink]))
        return
    assert fault.id in _ids(engine, inside, evidence)
    assert fault.id not in _ids(engine, inside, [])
    if outside is not None:
        assert fault.id not in _ids(engine, outside, evidence)
    if fault.engine:
        assert fault.id not in _ids("another", inside, evidence)


def test_every_fault_has_its_sample() -> None:
    assert set(_SHOWN) == {fault.id for fault in KNOWN_FAULTS}


@pytest.mark.parametrize(
    "text,numbers",
    [("v0.5.3.post3", (0, 5, 3)), ("0.28.1rc1.dev500", (0, 28, 1)), ("0.5.17", (0, 5, 17)), ("abc", ()), ("", ())],
)
def test_versions_are_read_as_far_as_they_are_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers


def test_what_is_not_known_of_the_extend_is_not_claimed() -> None:
    assert extend_is_captured("fa3", (0, 5, 17)) is False
    assert extend_is_captured("fa3", (0, 5, 23)) is True
    assert extend_is_captured("fa3", ()) is None
    assert extend_is_captured("flashinfer", ()) is True
    assert extend_is_captured("my_backend", (0, 5, 23)) is None
