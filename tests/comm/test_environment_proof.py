"""The proof in this process, between records, and NCCL's words against a plan. In ranks: tests/engine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from alula.comm import communicator_guard
from alula.comm.configuration_files import configured_variables, parse_configuration
from alula.comm.environment_agreement import compare_environments, environment_facts, fingerprint
from alula.comm.environment_plan import FAMILIES, EnvironmentPlan, plan_environment
from alula.comm.environment_proof import explained, prove_at_start, prove_worker
from alula.comm.nccl_log import Setting, parse_nccl_log
from alula.comm.nccl_words import read_log, spoken_findings, unspoken
from alula.core.config import ParallelConfig
from alula.core.environment import c_environment, c_getenv, exec_environment
from alula.core.errors import CheckpointError, RankFailure
from alula.core.records import EnvironmentRecord, EnvironmentVariable


@pytest.fixture(autouse=True)
def _only_what_is_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(FAMILIES):
            monkeypatch.delenv(name)
    monkeypatch.setattr("alula.comm.configuration_files.SYSTEM_FILE", tmp_path / "none.conf")
    monkeypatch.setattr(communicator_guard, "_created", [])


def plan_in_force(
    monkeypatch: pytest.MonkeyPatch, mode: str = "strict", device: str = "cpu", log_folder: str | None = None
) -> EnvironmentPlan:
    """A plan for two ranks, applied to this process as rank 1."""
    parallel = ParallelConfig(tp=2, comm_proof=mode)
    plan = plan_environment(parallel, device, {}, log_folder=log_folder)
    for name, value in plan.for_rank(1).items():
        monkeypatch.setenv(name, value)
    return plan


def test_the_proof_reads_what_c_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in_force(monkeypatch)
    record = prove_at_start(plan, 1)
    found = {variable.name: variable.found for variable in record.variables}
    assert found == {**plan.alike(), **plan.own[1]}
    assert {step.name: step.verdict for step in record.steps} == {
        "C getenv": "ok",
        "no communicator yet": "ok",
        "configuration files": "ok",
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(RankFailure, match=r"rank 1 runs with OMP_NUM_THREADS '7', planned was '1'") as caught:
        prove_at_start(plan, 1)
    assert caught.value.rank == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    with pytest.raises(RankFailure, match="OMP_NUM_THREADS unset"):
        prove_at_start(plan, 1)


def test_a_variable_that_c_alone_knows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a library sets it: os.environ is a copy that Python took at its start."""
    plan = plan_in_force(monkeypatch)
    library = ctypes.CDLL(None)
    library.setenv(b"NCCL_ALGO", b"Tree", 1)
    try:
        assert "NCCL_ALGO" not in os.environ
        assert c_getenv("NCCL_ALGO") == c_environment()["NCCL_ALGO"] == "Tree"
        with pytest.raises(RankFailure, match="NCCL_ALGO 'Tree', planned was unset"):
            prove_at_start(plan, 1)
    finally:
        library.unsetenv(b"NCCL_ALGO")


def test_what_came_by_exec_is_told_from_what_was_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = exec_environment()
    assert begun is not None
    monkeypatch.setenv("ALULA_TEST_LATE", "1")
    assert "ALULA_TEST_LATE" not in begun
    assert "ALULA_TEST_LATE" in c_environment()
    assert begun["PATH"] == c_getenv("PATH")


def test_warn_records_each_mismatch_once_and_off_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in_force(monkeypatch, "warn")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    start = prove_at_start(plan, 1)
    record = prove_worker(plan, 1, start)
    (mismatch,) = record.mismatches
    assert (mismatch.variable, mismatch.planned, mismatch.found) == ("OMP_NUM_THREADS", "1", "7")
    assert [step.verdict for step in record.steps] == ["mismatch", "ok", "ok", "mismatch"]
    off = prove_at_start(plan_in_force(monkeypatch, "off"), 1)
    assert (off.mode, off.variables, off.findings) == ("off", (), ())
    assert [step.verdict for step in off.steps] == ["unknown"]
    assert prove_worker(plan, 1, off) == off


def test_a_communicator_before_the_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in_force(monkeypatch)
    communicator_guard.note_created("nccl: low latency")
    assert communicator_guard.created() == ("nccl: low latency",)
    with pytest.raises(RankFailure, match=r"rank 1 has a communicator \(nccl: low latency\), planned was none"):
        prove_at_start(plan, 1)


def test_a_value_in_a_configuration_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_in_force(monkeypatch, "warn")
    (tmp_path / "none.conf").write_text("# NCCL_ALGO=Tree\nNCCL_PROTO=LL\nOMP_NUM_THREADS=9\n")
    (mismatch,) = prove_at_start(plan, 1).mismatches  # the environment wins where it has the variable
    assert (mismatch.variable, mismatch.planned, mismatch.found) == ("NCCL_PROTO", None, "LL")
    assert "none.conf sets it" in mismatch.cause
    named = tmp_path / "named.conf"
    named.write_text("NCCL_PROTO=Simple\nNCCL_ALGO=Ring")
    monkeypatch.setenv("NCCL_CONF_FILE", str(named))
    assert [(name, value) for _, name, value in configured_variables()] == [
        ("NCCL_PROTO", "Simple"),
        ("NCCL_ALGO", "Ring"),
        ("OMP_NUM_THREADS", "9"),
    ]


def test_configuration_files_are_read_as_nccl_reads_them() -> None:
    text = "A=1=2\n B = x \n#C=1\nnothing\n=y\nA=3\nD="
    assert parse_configuration(text) == {"A": "1=2", " B ": " x ", "D": ""}


def record_of(rank: int, mode: str = "strict", **values: str) -> EnvironmentRecord:
    variables = tuple(
        EnvironmentVariable(name=name, planned="LL", found=value, source="--nccl") for name, value in values.items()
    )
    own = EnvironmentVariable(
        name="RANK", planned=str(rank), found=str(rank), source="default: each rank has its own"
    )
    variables = (*variables, own)
    return EnvironmentRecord(rank=rank, mode=mode, variables=variables, fingerprint=fingerprint(variables))


def test_ranks_that_differ_are_an_error_that_names_the_variable() -> None:
    first, same = record_of(0, NCCL_PROTO="LL"), record_of(1, NCCL_PROTO="LL")
    compared = compare_environments([first, same])
    assert [step.verdict for record in compared for step in record.steps] == ["ok", "ok"]
    odd = record_of(2, NCCL_PROTO="Simple", NCCL_ALGO="Ring")
    message = (
        r"NCCL_ALGO is 'Ring' in rank 2 and unset in rank 0; NCCL_PROTO is 'Simple' in rank 2 and 'LL' in rank 0"
    )
    with pytest.raises(RankFailure, match=message) as caught:
        compare_environments([first, same, odd])
    assert caught.value.rank == 2
    (_, warned) = compare_environments(
        [record_of(0, "warn", NCCL_PROTO="LL"), record_of(1, "warn", NCCL_PROTO="X")]
    )
    assert [finding.variable for finding in warned.mismatches] == ["NCCL_PROTO"]
    facts = environment_facts([warned])
    assert (facts["mode"], facts["num_mismatches"]) == ("warn", 1)


LOG = """NCCL version 2.30.7+cuda13.3
box:77:77 [0] NCCL INFO NCCL_PROTO set by environment to LL
box:77:77 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
box:77:77 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
box:77:77 [0] NCCL INFO NCCL_MAX_CTAS set by environment to 16.
box:77:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
box:77:77 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init COMPLETE
"""


def test_nccl_s_words_are_held_against_the_plan() -> None:
    log = parse_nccl_log(LOG)
    planned = {"NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0", "NCCL_P2P_LEVEL": "5", "NCCL_MAX_CTAS": "0x10"}
    assert spoken_findings(log, planned) == ()
    assert unspoken(log, {**planned, "NCCL_DEBUG": "INFO", "NCCL_IB_DISABLE": "1"}) == ("NCCL_IB_DISABLE",)
    found = spoken_findings(log, {**planned, "NCCL_PROTO": "Simple"})
    assert [(finding.variable, finding.planned, finding.found) for finding in found] == [
        ("NCCL_PROTO", "Simple", "LL")
    ]
    (stray,) = spoken_findings(log, {name: value for name, value in planned.items() if name != "NCCL_MAX_CTAS"})
    assert (stray.variable, stray.planned, stray.found) == ("NCCL_MAX_CTAS", None, "16")
    # A text where a number belongs: NCCL takes 0 and says so, and a number out of range gives the default.
    other = parse_nccl_log(LOG + "box:77:77 [0] NCCL INFO Invalid value 9 for NCCL_BUFFSIZE, using default -2.\n")
    assert Setting("NCCL_BUFFSIZE", "9", "an invalid value") in other.settings
    assert [f.variable for f in spoken_findings(other, {**planned, "NCCL_BUFFSIZE": "9"})] == ["NCCL_BUFFSIZE"]


def test_the_rank_reads_its_own_log_after_the_group_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_in_force(monkeypatch, "warn", "cuda", str(tmp_path))
    start = prove_at_start(plan, 1)
    silent = prove_worker(plan, 1, start)
    assert (silent.steps[-1].verdict, silent.nccl_version) == ("unknown", None)
    log = tmp_path / f"nccl.box.{os.getpid()}.log"
    log.write_text(LOG.replace(":77:77", f":{os.getpid()}:1"))
    (tmp_path / "nccl.box.1.log").write_text(LOG.replace("PROTO", "ALGO"))  # another rank's
    record = prove_worker(plan, 1, start)
    assert record.nccl_version == "2.30.7+cuda13.3"
    assert record.nccl["transports"] == ["P2P/CUMEM"]
    assert record.nccl["completed"] == 1
    assert {finding.variable for finding in record.mismatches} == {"NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_MAX_CTAS"}
    assert record.steps[-1].verdict == "mismatch"
    with pytest.raises(RankFailure, match="has a log of NCCL, planned was none before the proof"):
        prove_at_start(plan_in_force(monkeypatch, "strict", "cuda", str(tmp_path)), 1)


def test_a_failure_is_told_in_nccl_s_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_in_force(monkeypatch, "strict", "cuda", str(tmp_path))
    error = RuntimeError("invalid usage")
    assert explained(error, plan, 1) is error
    warning = f'box:{os.getpid()}:9 [0] graph/tuning.cc:70 (parse) NCCL WARN Unrecognized element token "X"'
    (tmp_path / f"nccl.box.{os.getpid()}.log").write_text(f"\n[2026-01-01 00:00:00] {warning}\n")
    log = read_log(str(tmp_path))
    assert log is not None and log.warnings == ('Unrecognized element token "X"',)
    told = explained(error, plan, 1)
    assert isinstance(told, RankFailure) and told.rank == 1
    assert str(told) == 'rank 1 failed: RuntimeError: invalid usage; NCCL says: Unrecognized element token "X"'
    echo = explained(RankFailure("rank 0 did not arrive", rank=0), plan, 1)
    assert isinstance(echo, RankFailure) and echo.rank == 0
    assert str(echo) == 'rank 0 did not arrive; NCCL says: Unrecognized element token "X"'
    ours = CheckpointError("truncated")
    assert explained(ours, plan, 1) is ours
