"""For every public report: what the readers must find in inputs of its kind, and in variations of them."""

from __future__ import annotations

import re

import pytest
from case_texts import CASES
from reading import everything
from trace_samples import TraceMaker

from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity as Q

# case -> (quantity, value, scope) that must be found, each at least once
EXPECTED: dict[str, list[tuple[Q, object, dict[str, object]]]] = {
    "01": [(Q.GRAPH_MODE, "piecewise", {"phase": "verify"}), (Q.GRAPH_CAPTURED, True, {"variant": "piecewise"}), (Q.GRAPH_LOG_COMPLETE, True, {})],
    "02": [(Q.GRAPH_MODE, "piecewise", {"phase": "verify"}), (Q.STEPS, 7, {}), (Q.GRAPH_LOG_COMPLETE, True, {})],
    "04": [(Q.NUM_RUNNING, 40, {}), (Q.STEPS, 2, {}), (Q.GRAPH_MAX_TOKENS, 64, {})],
    "05": [(Q.GRAPH_MAX_TOKENS, 32, {}), (Q.GRAPH_MODE, "piecewise", {}), (Q.ALGORITHM, "none", {}), (Q.DATASET, "random", {}), (Q.CONCURRENCY, 32, {})],
    "07": [(Q.PLAIN_TOKENS_PER_S, 57.0, {}), (Q.SPEC_TOKENS_PER_S, 40.6, {"steps": 1}), (Q.TOKENS_PER_CYCLE, 1.87, {"steps": 1})],
    "10": [(Q.GRAPH_MAX_REQUESTS, 2, {}), (Q.CONCURRENCY, 20, {}), (Q.NUM_DRAFT_TOKENS, 32, {}), (Q.TOPK, 10, {}), (Q.DATASET, "random", {})],
    "11": [(Q.ALLREDUCE_REFUSED, "it's not supported on more than two PCIe-only GPUs", {"name": "custom"})],
    "12": [(Q.ALLREDUCE_US, 19.4, {"num_bytes": 4096}), (Q.ALLREDUCE_US, 83.5, {"num_bytes": 393216})],
    "16": [(Q.NCCL_PROTOCOL, "LL", {"num_bytes": 1835008}), (Q.TOKENS_PER_S, 1131.6, {"variant": "NCCL_PROTO=LL128"})],
    "19": [(Q.P2P, "off", {}), (Q.ALLREDUCE_REFUSED, "it's not supported on more than two PCIe-only GPUs", {}), (Q.VARIABLE_PLANNED, "1", {"name": "NCCL_P2P_DISABLE"})],
    "24": [(Q.NCCL_TRANSPORT, "SHM", {}), (Q.VARIABLE_SEEN, "1", {"name": "NCCL_P2P_DISABLE"}), (Q.ACS_REDIRECT, True, {}), (Q.IOMMU, "on", {})],
    "28": [(Q.VARIABLE_PLANNED, "LL", {"name": "NCCL_PROTO"}), (Q.VARIABLE_SEEN, "/opt/libnccl.so", {"worker": "pid=423"})],
    "31": [(Q.ALGORITHM, "EAGLE", {}), (Q.TOKENS_PER_CYCLE, 1.0, {}), (Q.DRAFT_MODEL, "org/kimi-k2.5-eagle3", {})],
    "32": [(Q.AUX_LAYERS_GUESSED, True, {}), (Q.DRAFT_ARCHITECTURE, "LlamaForCausalLMEagle3", {})],
    "33": [(Q.ACCEPTANCE, 0.1, {"position": 0}), (Q.TOKENS_PER_CYCLE, 1.11, {})],
    "37": [(Q.TOKENS_PER_CYCLE, 3.93, {}), (Q.DATASET, "random-ids", {})],
    "40": [(Q.STEPS, 3, {}), (Q.NUM_CYCLES, 4437, {})],
    "41": [(Q.PLAIN_TOKENS_PER_S, 222.47, {}), (Q.SPEC_TOKENS_PER_S, 207.62, {"variant": "3,3,4"}), (Q.TOKENS_PER_CYCLE, 1.86, {"variant": "3,1,4"})],
    "43": [(Q.MODEL, "glm4moe 106B.A12B", {}), (Q.TOKENS_PER_CYCLE, 1.36, {})],
    "45": [(Q.PLAIN_TOKENS_PER_S, 364.0, {}), (Q.SPEC_TOKENS_PER_S, 216.0, {"steps": 1}), (Q.TOKENS_PER_CYCLE, 1.44, {"steps": 1})],
    "46": [(Q.TTFT_MS, 20923.17, {}), (Q.TOKENS_PER_CYCLE, 2.52, {}), (Q.CONCURRENCY, 47.54, {})],
    "51": [(Q.DRAFT_TP, 4, {}), (Q.TP, 4, {}), (Q.DRAFT_MODEL, "facebook/opt-125m", {})],
    "55": [(Q.PLAIN_TOKENS_PER_S, 26.51, {}), (Q.SPEC_TOKENS_PER_S, 12.2, {"steps": 7}), (Q.GRAPH_CAPTURED, True, {"phase": "draft"})],
    "57": [(Q.CYCLE_MS, 21.89, {"steps": 3}), (Q.PLAIN_TOKENS_PER_S, 66.93, {})],
    "61": [(Q.CLOCK_MHZ, 750.5, {"rank": 0}), (Q.POWER_W, 14.0, {"rank": 0})],
}  # fmt: skip


def _has(found: list[Evidence], quantity: Q, value: object, scope: dict[str, object]) -> bool:
    return any(one.quantity is quantity and one.value == value and one.scope.fits(**scope) for one in found)


def test_every_report_has_an_input() -> None:
    assert {*EXPECTED, "54"} == set(CASES)


@pytest.mark.parametrize("case", EXPECTED)
def test_a_report_is_read(case: str) -> None:
    found = everything(CASES[case])
    missing = [one for one in EXPECTED[case] if not _has(found, *one)]
    assert not missing, [(str(one.quantity), one.value, one.scope.words()) for one in found]


def _noise(text: str) -> str:
    return (
        text
        + '\n[2026-01-01 00:00:00] INFO nothing of interest here: 7 of 9\nINFO: 10.1.1.1:5 - "GET /health HTTP/1.1" 200 OK\n'
    )


VARIATIONS = {
    "inside Markdown": lambda text: "<details><summary>log</summary>\n\n```\n" + text + "```\n\n</details>\n",
    "quoted": lambda text: "".join(f"> {line}" for line in text.splitlines(keepends=True)),
    "with Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "coloured": lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
    "among other lines": _noise,
    "from docker compose": lambda text: "".join(f"vllm-1  | {line}" for line in text.splitlines(keepends=True)),
    "from Kubernetes": lambda text: "".join(f"2026-01-01T10:00:00.123456789Z {line}" for line in text.splitlines(keepends=True)),
    "from journald": lambda text: "".join(f"Nov 30 09:26:01 host vllm[123]: {line}" for line in text.splitlines(keepends=True)),
    "indented": lambda text: "".join(f"    {line}" for line in text.splitlines(keepends=True)),
    "with other line numbers": lambda text: re.sub(r"\[(\w+\.py):\d+\]", r"[\1:9999]", text),
}  # fmt: skip


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("case", [case for case in EXPECTED if case != "32"])  # that one is a JSON file
def test_surroundings_change_nothing(case: str, variation: str) -> None:
    found = everything(VARIATIONS[variation](CASES[case]))
    missing = [one for one in EXPECTED[case] if not _has(found, *one)]
    assert not missing


def test_a_config_pasted_into_markdown_is_read() -> None:
    found = everything(f"The head's config:\n\n```json\n{CASES['32']}\n```\n")
    assert all(_has(found, *one) for one in EXPECTED["32"])


def test_the_trace_of_a_long_graph_launch() -> None:
    trace = TraceMaker()
    for _ in range(12):
        trace.forward("step[TARGET_VERIFY bs=1]", num_kernels=2876, kernel_us=3.9, gap_us=0.29, launch_us=2826.0)
        trace.forward("draft_extend", num_kernels=60, kernel_us=11.0, launch_us=70.0)
        trace.forward("draft", num_kernels=60, kernel_us=10.0, launch_us=65.0)
    found = everything(trace.text(None))
    assert _has(found, Q.GRAPH_NODES, 2876, {"phase": "verify"})
    launch = next(one for one in found if one.quantity is Q.GRAPH_LAUNCH_MS and one.scope.phase == "verify")
    assert launch.number == pytest.approx(2.826)
