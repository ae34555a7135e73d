"""The environment plan as arithmetic: whose value counts, what is refused, and defaults by topology."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.comm.environment_plan import Origin, plan_environment
from alula.comm.host_plan import plan_for_host, wants_log
from alula.comm.nccl_variables import KNOWN_VARIABLES, expected_value, is_known, nearest_known
from alula.comm.topology import NVLINK_ALL, NVLINK_NONE, Topology
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption

BASE = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "NCCL_PROTO": "LL", "RANK": "17", "HF_TOKEN": "secret"}
PCIE = Topology(num_gpus=4, peer_access=True, nvlink=NVLINK_NONE, cpu_vendor="amd")


def parallel(**options: Any) -> ParallelConfig:
    return ParallelConfig(**{"tp": 2, **options})


def test_each_rank_has_its_number_and_all_share_the_rest() -> None:
    plan = plan_environment(parallel(tp=3), "cpu", BASE)
    environments = [plan.for_rank(rank) for rank in range(3)]
    assert [environment.pop("RANK") for environment in environments] == ["0", "1", "2"]
    assert [environment.pop("LOCAL_RANK") for environment in environments] == ["0", "1", "2"]
    assert environments[0] == environments[1] == environments[2]
    assert environments[0]["WORLD_SIZE"] == environments[0]["LOCAL_WORLD_SIZE"] == "3"
    assert environments[0]["OMP_NUM_THREADS"] == "1"
    assert environments[0]["PATH"] == "/bin"
    assert BASE["RANK"] == "17"


def test_what_is_to_be_proven_includes_inherited_communication_variables() -> None:
    alike = plan_environment(parallel(), "cpu", BASE).alike()
    assert alike["NCCL_PROTO"] == "LL"
    assert "HF_TOKEN" not in alike
    assert "RANK" not in alike


def test_the_strongest_source_counts_and_the_others_are_kept() -> None:
    asked = parallel(nccl={"NCCL_PROTO": "Simple", "NCCL_IB_DISABLE": "0"})
    plan = plan_environment(asked, "cuda", BASE)
    assert plan.for_rank(1)["NCCL_PROTO"] == "Simple"
    assert plan.origins["NCCL_PROTO"] == (Origin("Simple", "--nccl"), Origin("LL", "inherited"))
    assert [origin.source.partition(":")[0] for origin in plan.origins["NCCL_IB_DISABLE"]] == ["--nccl", "default"]
    assert [origin.value for origin in plan.origins["OMP_NUM_THREADS"]] == ["1", "64"]  # held against the inherited
    assert plan.origins["RANK"][0].source == "default: each rank has its own"


def test_advice_gives_way_to_what_is_inherited() -> None:
    advised = plan_environment(parallel(), "cuda", {}, topology=PCIE)
    assert advised.for_rank(0)["NCCL_P2P_LEVEL"] == "SYS"
    kept = plan_environment(parallel(), "cuda", {"NCCL_P2P_LEVEL": "PHB"}, topology=PCIE)
    assert kept.for_rank(0)["NCCL_P2P_LEVEL"] == kept.alike()["NCCL_P2P_LEVEL"] == "PHB"
    assert "4 GPUs on PCIe" in kept.origins["NCCL_P2P_LEVEL"][1].source


@pytest.mark.parametrize(
    "topology",
    [
        None,
        Topology(num_gpus=2, peer_access=True, nvlink=NVLINK_NONE, cpu_vendor="amd"),  # NCCL's own default
        Topology(num_gpus=4, peer_access=True, nvlink=NVLINK_ALL, cpu_vendor="amd"),
        Topology(num_gpus=4, peer_access=True, nvlink=NVLINK_NONE, cpu_vendor="intel"),
        Topology(num_gpus=4, peer_access=False, nvlink=NVLINK_NONE, cpu_vendor="amd"),
        Topology(num_gpus=4, peer_access=None, nvlink=NVLINK_NONE, cpu_vendor="amd"),
        Topology(num_gpus=4, peer_access=True, nvlink=None, cpu_vendor="amd"),
    ],
)
def test_distance_is_left_to_nccl_where_nothing_speaks_against_it(topology: Topology | None) -> None:
    assert "NCCL_P2P_LEVEL" not in plan_environment(parallel(), "cuda", {}, topology=topology).for_rank(0)


def test_multicast_stays_off_unless_the_user_asks() -> None:
    plan = plan_environment(parallel(), "cuda", {"NCCL_NVLS_ENABLE": "1"})
    assert plan.for_rank(1)["NCCL_NVLS_ENABLE"] == "0"
    assert plan.for_rank(1)["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert "NCCL_NVLS_ENABLE" not in plan_environment(parallel(), "cpu", {}).for_rank(0)
    asked = plan_environment(parallel(nccl={"NCCL_NVLS_ENABLE": "2"}), "cuda", {})
    assert asked.for_rank(0)["NCCL_NVLS_ENABLE"] == "2"
    assert "TORCH_SYMM_MEM_DISABLE_MULTICAST" not in asked.for_rank(0)


def test_ranks_that_share_a_gpu_are_hosts_of_their_own_to_nccl() -> None:
    plan = plan_environment(parallel(share_gpus=True), "cuda", {"NCCL_HOSTID": "mine"})
    assert [plan.for_rank(rank)["NCCL_HOSTID"] for rank in range(2)] == ["alula-rank-0", "alula-rank-1"]
    assert plan.shared["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] == "1"
    assert "NCCL_HOSTID" not in plan.alike()
    assert "NCCL_HOSTID" not in plan_environment(parallel(share_gpus=True), "cpu", {}).for_rank(0)
    with pytest.raises(InvalidOption, match="--nccl gives NCCL_HOSTID"):
        plan_environment(parallel(share_gpus=True, nccl={"NCCL_HOSTID": "a"}), "cuda", {})


def test_a_plan_travels_and_does_not_print_what_it_inherited() -> None:
    plan = plan_environment(parallel(), "cpu", BASE)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "secret" not in repr(plan)
    assert "HF_TOKEN" not in plan.origins


def test_other_devices_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'npu'"):
        plan_environment(parallel(), "npu", {})


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        ({"NCCL_PROTOS": "LL"}, r"no variable NCCL_PROTOS; did you mean NCCL_PROTO\?"),
        ({"NCCL_P2P_LEVLE": "SYS"}, r"did you mean NCCL_P2P_LEVEL\?"),
        ({"NCCL_XYZZY": "1"}, "no variable NCCL_XYZZY; correct it"),
        ({"NCCL_P2P_LEVEL": "sys"}, "NCCL_P2P_LEVEL is 'sys' .* expected one of LOC, NVL.*in capitals"),
        ({"NCCL_PROTO": "LL64"}, "NCCL_PROTO is 'LL64' .* expected a list of LL, LL128, Simple"),
        ({"NCCL_ALGO": "allreduce:Ring;Tree"}, "NCCL_ALGO is"),
        ({"NCCL_ALGO": "allsum:Ring"}, "NCCL_ALGO is"),
    ],
)
def test_misspellings_are_refused_or_warned_of(nccl: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        plan_environment(parallel(nccl=nccl), "cpu", {})
    warned = plan_environment(parallel(nccl=nccl, comm_proof="warn"), "cpu", {})
    (warning,) = warned.warnings
    assert warning.verdict == "warning"
    assert {warning.variable: warning.found} == nccl
    off = plan_environment(parallel(nccl=nccl, comm_proof="off"), "cpu", {})
    assert off.warnings == ()
    assert off.shared.items() >= nccl.items()


@pytest.mark.parametrize(
    "nccl",
    [
        {"NCCL_PROTO": "ll,Simple;allreduce:^LL128"},
        {"NCCL_ALGO": "^NVLSTree"},
        {"NCCL_P2P_LEVEL": "3"},
        {"NCCL_MAX_CTAS": "8"},
    ],
)
def test_what_nccl_understands_is_let_through(nccl: dict[str, str]) -> None:
    plan = plan_environment(parallel(nccl=nccl), "cuda", {})
    assert plan.warnings == ()
    assert plan.shared.items() >= nccl.items()


TOKENS = st.lists(st.sampled_from(["LL", "ll128", "SIMPLE"]), min_size=1, max_size=3).map(",".join)
LISTS = st.tuples(st.sampled_from(["", "^"]), TOKENS).map("".join)
NAMED = st.tuples(st.sampled_from(["allreduce:", "AllGather:", "reduce:"]), LISTS).map("".join)


@given(LISTS | NAMED, st.lists(NAMED, max_size=3), st.text(max_size=12))
def test_the_grammar_of_protocols(first: str, others: list[str], noise: str) -> None:
    value = ";".join([first, *others])
    assert expected_value("NCCL_PROTO", value) is None
    assert expected_value("NCCL_PROTO", f"{value};LL") is not None  # only the first may be without its function
    assert expected_value("NCCL_PROTO", f"{value},X{noise}") is not None


@given(st.sampled_from(sorted(KNOWN_VARIABLES)), st.integers(min_value=0), st.booleans())
def test_a_slip_in_a_long_name_finds_a_name(name: str, place: int, doubled: bool) -> None:
    letters = name.removeprefix("NCCL_")
    at = place % len(letters)
    slip = "NCCL_" + letters[:at] + letters[at] * (2 if doubled else 0) + letters[at + 1 :]
    if len(letters) >= 5 and not is_known(slip):
        assert nearest_known(slip) is not None
    assert is_known(name)


def test_inherited_names_warn_only_where_they_look_like_one() -> None:
    plan = plan_environment(parallel(), "cuda", {"NCCL_PROTOS": "LL", "NCCL_XYZZY": "1", "NCCL_VERSION": "2.30"})
    assert [warning.variable for warning in plan.warnings] == ["NCCL_PROTOS"]
    assert "did you mean NCCL_PROTO?" in plan.warnings[0].text()


def test_an_inherited_value_is_refused_where_nccl_would_read_it() -> None:
    base = {"NCCL_PROTO": "bogus"}
    with pytest.raises(InvalidOption, match=r"NCCL_PROTO is 'bogus' \(inherited\)"):
        plan_environment(parallel(), "cuda", base)
    assert [warning.variable for warning in plan_environment(parallel(), "cpu", base).warnings] == ["NCCL_PROTO"]


def test_nccl_writes_its_log_unless_the_user_decided() -> None:
    assert wants_log(parallel(), "cuda", {})
    assert not wants_log(parallel(), "cpu", {})
    assert not wants_log(parallel(comm_proof="off"), "cuda", {})
    assert not wants_log(parallel(), "cuda", {"NCCL_DEBUG": "WARN"})
    assert not wants_log(parallel(nccl={"NCCL_DEBUG_SUBSYS": "ALL"}), "cuda", {})
    plan = plan_environment(parallel(), "cuda", {}, log_folder="/tmp/folder")
    assert plan.shared["NCCL_DEBUG_FILE"] == "/tmp/folder/nccl.%h.%p.log"
    assert plan.shared["NCCL_DEBUG_SUBSYS"] == "INIT,ENV"


def test_the_plan_of_this_host_leaves_nothing_behind_where_it_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InvalidOption, match="NCCL_PROTO"):
        plan_for_host(parallel(nccl={"NCCL_PROTO": "bogus"}), "cuda", {})
    assert list(tmp_path.iterdir()) == []
    plan = plan_for_host(parallel(), "cuda", {})
    assert [str(path) for path in tmp_path.iterdir()] == [plan.log_folder]
