"""NCCL's log and nvidia-smi's matrix: both shapes of each line, any order, any noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.comm import communicator_guard
from alula.comm.nccl_log import Choice, Setting, parse_nccl_log
from alula.comm.nccl_words import spoken_findings
from alula.comm.topology import (
    NVLINK_ALL,
    NVLINK_NONE,
    NVLINK_SOME,
    detect_topology,
    nvlink_of,
    parse_topology_matrix,
)

LINES = [
    "NCCL version 2.28.9+cuda12.9",
    "box:10:11 [0] NCCL INFO NCCL_PROTO set by environment to LL,Simple",
    "box:20:21 [1] NCCL INFO NCCL_PROTO set by environment to Simple",
    "box:10:11 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
    "box:10:11 [0] NCCL INFO NCCL_SOCKET_IFNAME set by file /etc/nccl.conf to eth0",
    "box:10:11 [0] NCCL INFO Comm config maxCTAs reset to NCCL_MAX_CTAS=8",
    "box:10:11 [0] NCCL INFO AllReduce: 14336 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
    "box:10:11 [0] NCCL INFO 57344 Bytes -> Algo 1 proto 2 time 34.69",
    "box:10:11 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AGxLL_R nchannels 8 nthreads 512 nWorks 1",
    "box:10:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "box:20:21 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct",
    "box:20:21 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0",
    "box:20:21 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/direct pointer/read",
    '[2026-01-01 10:00:00] box:20:21 [1] graph/tuning.cc:412 (parseList) NCCL WARN Unrecognized element token "X"',
    "box:10:11 [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 0 nranks 2 commId 0x1 - Init COMPLETE",
    "a line of somebody else",
]


def test_every_kind_of_line() -> None:
    log = parse_nccl_log("\n".join(LINES))
    assert log.version == "2.28.9+cuda12.9"
    assert log.settings == (
        Setting("NCCL_IB_DISABLE", "1", "environment"),
        Setting("NCCL_MAX_CTAS", "8", "environment"),
        Setting("NCCL_PROTO", "LL,Simple", "environment"),
        Setting("NCCL_PROTO", "Simple", "environment"),
        Setting("NCCL_SOCKET_IFNAME", "eth0", "file /etc/nccl.conf"),
    )
    assert log.choices == (
        Choice("", 57344, "RING", "SIMPLE", 0),
        Choice("AllReduce", 4096, "AGxLL_R", "", 8),
        Choice("AllReduce", 14336, "RING", "LL", 4),
    )
    assert log.transports == ("NET/Socket", "P2P/CUMEM", "P2P/direct pointer", "SHM/direct")
    assert log.warnings == ('Unrecognized element token "X"',)
    assert log.num_communicators == 1


def test_one_process_among_several() -> None:
    log = parse_nccl_log("\n".join(LINES), pid=20)
    assert log.settings == (Setting("NCCL_PROTO", "Simple", "environment"),)
    assert log.version == "2.28.9+cuda12.9"
    assert log.choices == ()
    assert log.num_communicators == 0


@given(st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(source: random.Random) -> None:
    shuffled = source.sample(LINES, len(LINES))
    assert parse_nccl_log("\n".join(shuffled)) == parse_nccl_log("\n".join(LINES))


@given(st.lists(st.sampled_from(LINES[1:13]), min_size=1, max_size=6))
def test_lines_that_run_into_one_another_are_told_apart(lines: list[str]) -> None:
    assert parse_nccl_log(" ".join(lines)) == parse_nccl_log("\n".join(lines))


PIECES = [
    *LINES,
    "NCCL_",
    " set by ",
    " to ",
    "box:1:2 [0] NCCL INFO ",
    "Bytes -> Algo ",
    "9" * 30,
    "GPU",
    "\t",
    "X",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=40), max_size=20), st.sampled_from(["", "\n", " "]))
def test_noise_is_passed_over(pieces: list[str], joint: str) -> None:
    text = joint.join(pieces)
    log = parse_nccl_log(text)
    assert parse_nccl_log(f"{text}\n{text}").settings == log.settings
    assert parse_nccl_log(f"{LINES[3]}\n{text}").settings == tuple(
        sorted({*log.settings, Setting("NCCL_IB_DISABLE", "1", "environment")})
    )
    for first, second in parse_topology_matrix(text):
        assert first < second


MATRIX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPXB\t0-63\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\t0-63\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t64-127\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def test_a_matrix_of_nvidia_smi() -> None:
    assert parse_topology_matrix(MATRIX) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}
    assert parse_topology_matrix("nvidia-smi: command not found") == {}


@pytest.mark.parametrize(
    ("links", "num_gpus", "expected", "num_unknown"),
    [
        ({}, 4, None, 0),
        ({}, 1, NVLINK_NONE, 0),
        ({(0, 1): "NV18", (0, 2): "NV18", (1, 2): "NV18"}, 2, NVLINK_ALL, 0),  # true of any part of them too
        ({(0, 1): "PIX", (0, 2): "SYS", (1, 2): "SYS"}, 2, NVLINK_NONE, 0),
        ({(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}, 3, NVLINK_SOME, 0),
        ({(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}, 2, None, 1),
    ],
)
def test_nvlink_of_all_or_some_of_the_gpus(
    links: dict[tuple[int, int], str], num_gpus: int, expected: str | None, num_unknown: int
) -> None:
    unknown: list[str] = []
    assert nvlink_of(links, num_gpus, unknown) == expected
    assert len(unknown) == num_unknown


def test_this_machine_is_described_whatever_it_has() -> None:
    found = detect_topology()
    if found.num_gpus == 0:
        assert any("torch sees no CUDA device" in reason for reason in found.unknown)
        assert (found.peer_access, found.nvlink) == (None, None)
    else:
        assert found.peer_access is not None or any("peer access" in reason for reason in found.unknown)


def test_what_one_communicator_was_made_with_on_purpose_is_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator_guard, "_variables", {})
    monkeypatch.setattr(communicator_guard, "_created", [])
    log = parse_nccl_log("host:7:8 [0] NCCL INFO NCCL_PROTO set by environment to LL\n", 7)
    (finding,) = spoken_findings(log, {})
    assert (finding.variable, finding.found, finding.planned) == ("NCCL_PROTO", "LL", None)
    communicator_guard.note_created("small messages", {"NCCL_PROTO": "LL"})
    assert spoken_findings(log, {}) == ()
    other = parse_nccl_log("host:7:8 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n", 7)
    assert [finding.found for finding in spoken_findings(other, {})] == ["Simple"]
