"""A trace of a few cycles, from file to verdict: whose the time is, and what the graph of verify costs to launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_samples import NCCL, TraceMaker

from alula.explain.judge import explain
from alula.explain.readers.inputs import read_inputs
from alula.explain.verdict import as_document
from alula.profile.evidence import Label


def cycles(
    nodes: int, kernel_us: float, gap_us: float, launch_us: float, draft_nodes: int, world: int
) -> TraceMaker:
    trace = TraceMaker(0, world)
    for _ in range(12):
        trace.forward(
            "step[TARGET_VERIFY bs=1]",
            num_kernels=nodes,
            kernel_us=kernel_us,
            gap_us=gap_us,
            launch_us=launch_us,
            collective=NCCL,
            num_collectives=10,
            message_elements=21504,
        )
        trace.forward("draft", num_kernels=draft_nodes, kernel_us=6.6, gap_us=0.3, launch_us=100.0)
        trace.idle(400.0)
    return trace


# nodes of verify's graph, microseconds of a kernel, of a gap and of the launch, the draft's nodes, ranks
@pytest.mark.parametrize(
    "sizes",
    [(2876, 3.9, 0.3, 2826.0, 100, 2), (2187, 4.0, 0.25, 1983.0, 60, 2), (640, 9.0, 1.5, 900.0, 40, 1)],
    ids=["large graph", "another engine", "few long kernels"],
)
def test_a_trace_says_whose_the_cycle_is_and_what_its_graph_costs(
    tmp_path: Path, sizes: tuple[int, float, float, float, int, int]
) -> None:
    nodes, kernel_us, gap_us, launch_us, draft_nodes, world = sizes
    path = tmp_path / "anything.json"
    path.write_text(cycles(nodes, kernel_us, gap_us, launch_us, draft_nodes, world).text(None))
    document = as_document(explain(read_inputs([str(path)], Label.UNKNOWN, print)))
    verify_ms = (nodes * (kernel_us + gap_us) + 10 * (20.0 - kernel_us)) / 1e3
    cycle_ms = verify_ms + draft_nodes * 6.9 / 1e3 + 0.4
    assert document["cycle_ms"] == pytest.approx(cycle_ms, rel=0.01)
    assert document["pays"] is None  # no plain step is known
    findings = {finding["id"]: finding for finding in document["findings"]}
    assert findings["verify_without_graph"]["status"] == "refuted"
    launches = findings["host_or_launch_bound"]
    assert launches["status"] == "refuted"  # the device idles for a small part of the cycle only
    assert f"Verify's graph has {nodes} nodes." in launches["text"]
    assert f"Launching it takes the host {launch_us / 1e3:.3g} ms." in launches["text"]
    gaps_ms = float(launches["text"].split("Gaps inside verify: ")[1].split(" ms")[0])
    assert gaps_ms == pytest.approx(nodes * gap_us / 1e3, rel=0.02)
