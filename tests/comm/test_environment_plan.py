"""The environment plan as arithmetic, and its proof in this process and between proofs. In ranks: tests/engine."""

from __future__ import annotations

import pickle

import pytest

from alula.comm.environment_plan import (
    EnvironmentProof,
    compare_proofs,
    plan_environment,
    prove_environment,
)
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption, RankFailure

BASE = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "NCCL_PROTO": "LL", "RANK": "17", "HF_TOKEN": "secret"}


def test_each_rank_has_its_number_and_all_share_the_rest() -> None:
    plan = plan_environment(ParallelConfig(tp=3), "cpu", BASE)
    environments = [plan.for_rank(rank) for rank in range(3)]
    assert [environment.pop("RANK") for environment in environments] == ["0", "1", "2"]
    assert [environment.pop("LOCAL_RANK") for environment in environments] == ["0", "1", "2"]
    assert environments[0] == environments[1] == environments[2]
    assert environments[0]["WORLD_SIZE"] == environments[0]["LOCAL_WORLD_SIZE"] == "3"
    assert environments[0]["OMP_NUM_THREADS"] == "1"
    assert environments[0]["PATH"] == "/bin"
    assert BASE["RANK"] == "17"


def test_what_is_to_be_proven_includes_inherited_communication_variables() -> None:
    alike = plan_environment(ParallelConfig(tp=2), "cpu", BASE).alike()
    assert alike["NCCL_PROTO"] == "LL"
    assert "HF_TOKEN" not in alike
    assert "RANK" not in alike


def test_multicast_stays_off_on_gpus() -> None:
    plan = plan_environment(ParallelConfig(tp=2), "cuda", {"NCCL_NVLS_ENABLE": "1"})
    assert plan.for_rank(1)["NCCL_NVLS_ENABLE"] == "0"
    assert "NCCL_NVLS_ENABLE" not in plan_environment(ParallelConfig(tp=2), "cpu", {}).for_rank(0)


def test_a_plan_travels_and_does_not_print_what_it_inherited() -> None:
    plan = plan_environment(ParallelConfig(tp=2), "cpu", BASE)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "secret" not in repr(plan)


def test_other_devices_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'npu'"):
        plan_environment(ParallelConfig(tp=2), "npu", {})


def test_the_proof_reads_what_c_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_environment(ParallelConfig(tp=2), "cpu", {})
    for name, value in plan.for_rank(1).items():
        monkeypatch.setenv(name, value)
    proof = prove_environment(plan, 1)
    assert proof.found == plan.alike()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(RankFailure, match=r"rank 1 runs with OMP_NUM_THREADS '7', planned was '1'") as caught:
        prove_environment(plan, 1)
    assert caught.value.rank == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    with pytest.raises(RankFailure, match="OMP_NUM_THREADS unset"):
        prove_environment(plan, 1)


def test_proofs_that_differ_are_an_error_that_names_the_variable() -> None:
    first = EnvironmentProof(rank=0, found={"NCCL_PROTO": "LL"}, fingerprint="a")
    compare_proofs([first, EnvironmentProof(rank=1, found={"NCCL_PROTO": "LL"}, fingerprint="a")])
    odd = EnvironmentProof(rank=2, found={"NCCL_PROTO": "Simple"}, fingerprint="b")
    with pytest.raises(RankFailure, match=r"NCCL_PROTO is 'Simple' in rank 2 and 'LL' in rank 0") as caught:
        compare_proofs([first, odd])
    assert caught.value.rank == 2
