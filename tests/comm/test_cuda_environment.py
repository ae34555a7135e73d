"""The proof against NCCL itself, with two ranks on one GPU: its words, its refusals, a too early communicator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from alula.comm.environment_plan import FAMILIES, EnvironmentPlan
from alula.comm.host_plan import plan_for_host
from alula.core.config import ParallelConfig
from alula.core.errors import RankFailure
from alula.engine.ranks import RankPool

pytestmark = pytest.mark.gpu

EARLY_COMMUNICATOR = """
import os
if os.environ.get("RANK") == "1":
    import torch
    import torch.distributed as distributed
    torch.cuda.set_device(0)
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.all_reduce(torch.ones(1, device="cuda"))
"""


def make_plan(base: dict[str, str] | None = None, **options: Any) -> EnvironmentPlan:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FAMILIES)}
    return plan_for_host(ParallelConfig(tp=2, share_gpus=True, **options), "cuda", {**clean, **(base or {})})


def start(plan: EnvironmentPlan, store: Path) -> RankPool:
    return RankPool("nccl_workers:build", 2, str(store), plan, 60.0)


def test_nccl_itself_says_what_it_took(tmp_path: Path) -> None:
    plan = make_plan(nccl={"NCCL_PROTO": "LL"})
    with start(plan, tmp_path / "store") as pool:
        assert pool.call_all("sum") == [14.0, 14.0]
        records = pool.environment_records
    for record in records:
        assert record.mismatches == ()
        assert record.nccl_version is not None
        assert record.nccl["completed"] >= 1
        assert record.nccl["transports"]
        (words,) = [step for step in record.steps if step.name == "NCCL's own words"]
        assert words.verdict in ("ok", "unknown")  # unknown: a planned variable that this release does not name
        assert "NCCL_PROTO" not in words.found  # named, hence not among those that are not
    assert plan.log_folder is not None and not Path(plan.log_folder).exists()


def test_a_bogus_protocol_fails_in_nccl_s_own_words(tmp_path: Path) -> None:
    """The control: it shows that the variable reaches NCCL, which a value that agrees does not show.

    The plan itself refuses such a value, so it is put into a plan that has been made.
    """
    if torch.cuda.nccl.version() < (2, 24, 0):
        pytest.skip("not run: NCCL before 2.24 ignores an unknown protocol")
    plan = make_plan()
    planted = msgspec.structs.replace(plan, shared={**plan.shared, "NCCL_PROTO": "NOSUCH"})
    with pytest.raises(RankFailure, match="Unrecognized element token") as caught:
        start(planted, tmp_path / "store")
    assert "NOSUCH" in str(caught.value)
    assert caught.value.rank in (0, 1)


def test_a_communicator_that_is_made_before_the_proof_is_found(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY_COMMUNICATOR)
    base = {"PYTHONPATH": str(tmp_path)}
    with pytest.raises(RankFailure, match=r"rank 1 has an initialised torch\.distributed") as caught:
        start(make_plan(base), tmp_path / "store")
    assert "has a log of NCCL, planned was none before the proof" in str(caught.value)
    assert caught.value.rank == 1


def test_a_variable_in_a_configuration_file_is_found_before_nccl_takes_it(tmp_path: Path) -> None:
    configuration = tmp_path / "nccl.conf"
    configuration.write_text("NCCL_PROTO=Simple\n")
    base = {"NCCL_CONF_FILE": str(configuration)}
    with pytest.raises(RankFailure, match="runs with NCCL_PROTO 'Simple', planned was unset"):
        start(make_plan(base), tmp_path / "store")
    with start(make_plan(base, comm_proof="warn"), tmp_path / "second") as pool:
        record = pool.environment_records[0]
        assert {finding.variable for finding in record.mismatches} == {"NCCL_PROTO"}
        assert any(step.name == "NCCL's own words" and step.verdict == "mismatch" for step in record.steps)
