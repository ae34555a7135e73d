"""Faults planted in the environment of real ranks: strict finds and names them, warn records them, off lets them pass.

Ranks take seconds to start, so under warn and off one pool has all the faults at once.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from alula.comm.environment_plan import FAMILIES, plan_environment
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption, RankFailure
from alula.core.records import EnvironmentRecord
from alula.engine.ranks import RankPool

ODD_RANK = "import os\nif os.environ.get('RANK') == '1': os.environ['GLOO_SOCKET_IFNAME'] = 'eth7'\n"
EARLY_GROUP = """
import os
if os.environ.get("RANK") == "1":
    import torch.distributed as distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
"""


def make_pool(entry: str = "rank_workers:build", base: dict[str, str] | None = None, **options: Any) -> RankPool:
    parallel = ParallelConfig(tp=2, **options)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FAMILIES)}
    return RankPool(entry, 2, None, plan_environment(parallel, "cpu", {**clean, **(base or {})}), 30.0)


def with_startup_file(folder: Path, text: str) -> dict[str, str]:
    """A base in which Python runs `text` whenever it starts."""
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def with_configuration(folder: Path) -> dict[str, str]:
    path = folder / "nccl.conf"
    path.write_text("NCCL_PROTO=LL\n")
    return {"NCCL_CONF_FILE": str(path)}


def verdicts(record: EnvironmentRecord) -> dict[tuple[str, str], str]:
    return {(step.name, step.moment): step.verdict for step in record.steps}


def test_what_is_planned_is_found_in_every_rank() -> None:
    with make_pool(nccl={"NCCL_PROTO": "LL"}) as pool:
        assert pool.call_all(("environment", ["NCCL_PROTO", "RANK"])) == [["LL", "0"], ["LL", "1"]]
        records = pool.environment_records
    assert [record.rank for record in records] == [0, 1]
    assert records[0].fingerprint == records[1].fingerprint != ""
    for record in records:
        assert record.findings == ()
        assert set(verdicts(record).values()) == {"ok"}
        assert len(record.steps) == 5
        (variable,) = [variable for variable in record.variables if variable.name == "NCCL_PROTO"]
        assert (variable.planned, variable.found, variable.at_exec) == ("LL", "LL", "LL")
        assert variable.source == "--nccl"


def test_a_variable_set_after_spawn_is_found() -> None:
    message = r"rank \d runs with NCCL_ALGO 'Ring', planned was unset; something changed it after the process began"
    with pytest.raises(RankFailure, match=message) as caught:
        make_pool("late_variable:build")
    assert "the worker's module" in str(caught.value)
    assert caught.value.rank in (0, 1)


def test_another_value_in_one_rank_is_found(tmp_path: Path) -> None:
    with pytest.raises(
        RankFailure, match=r"rank 1 runs with GLOO_SOCKET_IFNAME 'eth7', planned was '\w+'"
    ) as caught:
        make_pool(base=with_startup_file(tmp_path, ODD_RANK))
    assert "sitecustomize" in str(caught.value)
    assert caught.value.rank == 1


def test_a_value_that_only_a_configuration_file_has_is_found(tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match=r"runs with NCCL_PROTO 'LL', planned was unset; .*nccl\.conf sets it"):
        make_pool(base=with_configuration(tmp_path))


def test_a_configuration_file_loses_to_the_plan(tmp_path: Path) -> None:
    with make_pool(base=with_configuration(tmp_path), nccl={"NCCL_PROTO": "Simple"}) as pool:
        assert [record.findings for record in pool.environment_records] == [(), ()]


def test_a_misspelt_variable_is_refused_before_a_rank_starts() -> None:
    with pytest.raises(InvalidOption, match=r"NCCL_P2P_LEVLE; did you mean NCCL_P2P_LEVEL\?"):
        make_pool(nccl={"NCCL_P2P_LEVLE": "SYS"})


def test_a_group_that_exists_before_the_proof_is_found(tmp_path: Path) -> None:
    with pytest.raises(
        RankFailure, match="rank 1 has an initialised torch.distributed, planned was none"
    ) as caught:
        make_pool(base=with_startup_file(tmp_path, EARLY_GROUP))
    assert caught.value.rank == 1


def test_warn_starts_and_records_every_mismatch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = {**with_startup_file(tmp_path, ODD_RANK), **with_configuration(tmp_path), "NCCL_PROTOS": "LL"}
    with (
        caplog.at_level(logging.WARNING),
        make_pool("late_variable:build", base, comm_proof="warn", nccl={"NCCL_P2P_LEVLE": "SYS"}) as pool,
    ):
        first, second = pool.environment_records
    assert {finding.variable for finding in first.mismatches} == {"NCCL_PROTO", "NCCL_ALGO"}
    assert {finding.variable for finding in second.mismatches} == {"NCCL_PROTO", "NCCL_ALGO", "GLOO_SOCKET_IFNAME"}
    for record in (first, second):
        warned = {finding.variable for finding in record.findings if finding.verdict == "warning"}
        assert warned == {"NCCL_PROTOS", "NCCL_P2P_LEVLE"}
    assert verdicts(second)["C getenv", "at start"] == "mismatch"
    assert verdicts(second)["ranks agree", "compared by the engine"] == "mismatch"
    assert verdicts(first)["C getenv", "at start"] == "ok"
    assert "rank 0, 1 runs with NCCL_ALGO 'Ring', planned was unset" in caplog.text
    assert "rank 1 runs with GLOO_SOCKET_IFNAME 'eth7'" in caplog.text


def test_off_lets_every_fault_through_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = {**with_startup_file(tmp_path, ODD_RANK + EARLY_GROUP), **with_configuration(tmp_path)}
    names = ["NCCL_ALGO", "GLOO_SOCKET_IFNAME", "NCCL_CONF_FILE", "NCCL_P2P_LEVLE"]
    with (
        caplog.at_level(logging.WARNING),
        make_pool("late_variable:build", base, comm_proof="off", nccl={"NCCL_P2P_LEVLE": "SYS"}) as pool,
    ):
        conf = base["NCCL_CONF_FILE"]
        found = pool.call_all(("environment", names))
        assert found[1] == ["Ring", "eth7", conf, "SYS"]
        assert found[0][0] == "Ring" and found[0][1] != "eth7"
        records = pool.environment_records
    assert [(record.mode, record.variables, record.findings) for record in records] == [("off", (), ())] * 2
    assert "nothing was looked at" in records[0].steps[0].found
    assert caplog.text == ""


def test_the_folder_of_nccl_s_log_goes_with_the_pool(tmp_path: Path) -> None:
    folders = [tmp_path / "closed", tmp_path / "refused"]
    for folder in folders:
        folder.mkdir()
        (folder / "nccl.box.1.log").write_text("NCCL version 2.30.7\n")
    parallel = ParallelConfig(tp=1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FAMILIES)}
    plans = [plan_environment(parallel, "cpu", clean, log_folder=str(folder)) for folder in folders]
    with RankPool("rank_workers:build", 1, None, plans[0], 30.0):
        assert folders[0].exists()
    with pytest.raises(RankFailure, match="no_such_module"):
        RankPool("no_such_module:build", 1, None, plans[1], 30.0)
    assert not any(folder.exists() for folder in folders)
