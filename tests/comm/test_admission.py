"""Backends are admitted on evidence: plug-ins that are right run, wrong ones are refused by their probe, and a probe
that hangs costs its backend and nothing else. Real rank processes on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

import toy_communicators
from alula.comm.environment_plan import plan_environment
from alula.comm.tuning_plan import Message, TuningPlan
from alula.core.config import ParallelConfig
from alula.core.errors import InvalidOption
from alula.core.records import DispatchRecord
from alula.engine.comm_trial import try_backends
from alula.engine.ranks import RankPool

MESSAGES = tuple(Message(op=op, num_bytes=512, dtype="float32") for op in ("all_reduce", "all_gather", "broadcast"))
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def announce(*names: str) -> None:
        monkeypatch.syspath_prepend(str(toy_communicators.install(tmp_path / "toys", names)))

    return announce


def make_pool(size: int = 2, tuning: TuningPlan | None = None, **parallel: object) -> RankPool:
    config = ParallelConfig(**{"tp": size, "rank_deadline_s": 20.0, **parallel})  # type: ignore[arg-type]
    plan = plan_environment(config, "cpu", os.environ)
    plans = tuning or TuningPlan(messages=MESSAGES, measure=True)
    return RankPool("collective_workers:build", size, None, plan, 20.0, plans)


def summed(pool: RankPool) -> DispatchRecord:
    """What was recorded of a sum, which must be right."""
    step = ("all_reduce", "float32", (128,), 4)
    expected = pool.call(("expected", step))
    for (result,) in pool.call_all(("steps", [step])):
        torch.testing.assert_close(result, expected)
    (record,) = pool.call(("records",))
    return record


def test_a_plug_in_runs_where_it_is_asked_for(install: Install) -> None:
    install("toy_right")
    with make_pool(collectives="toy_right") as pool:
        assert summed(pool).backend == "toy_right"


def test_a_plug_in_is_timed_and_refused_for_what_it_costs(install: Install) -> None:
    install("toy_right")
    with make_pool() as pool:
        rules = pool.call(("rules",))
        assert {timing.backend for timing in rules.table.timings} == {
            "toy_right",
            "shared_memory",
            "torch_distributed",
        }
        assert summed(pool).measured_us is not None
    us = {"shared_memory": 5.0, "torch_distributed": 300.0, "toy_right": 40.0}
    planted = tuple(msgspec.structs.replace(timing, us=us[timing.backend]) for timing in rules.table.timings)
    known = TuningPlan(messages=MESSAGES, table=msgspec.structs.replace(rules.table, timings=planted))
    with make_pool(tuning=known) as pool:
        record = summed(pool)
        assert (record.backend, record.measured_us) == ("shared_memory", 5.0)
        (refusal,) = [refusal for refusal in record.refused if refusal.backend == "toy_right"]
        assert refusal.reason == "40.0 us, shared_memory 5.0 us"


WRONG = {
    "toy_wrong": "all_reduce of 512 bytes of float32, eager: gave wrong sums",
    "toy_uneven": "the ranks hold different bits after the same call",
    "toy_raising": "does not load: OSError: no such device",
    "toy_misnamed": "calls itself 'another'; its entry point is named 'toy_misnamed'",
}


def test_what_is_wrong_is_refused_by_name(install: Install) -> None:
    install("toy_right", *WRONG)
    with make_pool() as pool:
        refused = {refusal.backend: refusal.reason for refusal in summed(pool).refused}
    for name, reason in WRONG.items():
        assert reason in refused[name]


def test_a_wrong_backend_alone_stops_the_start(install: Install) -> None:
    install("toy_wrong")
    with pytest.raises(InvalidOption, match="no collective backend takes all_reduce.*toy_wrong: .*gave wrong sums"):
        make_pool(collectives="toy_wrong")


def test_without_the_proof_wrong_sums_get_through(install: Install) -> None:
    install("toy_wrong")
    step = ("all_reduce", "float32", (128,), 4)
    with make_pool(collectives="toy_wrong", comm_proof="off") as pool:
        (result,) = pool.call(("steps", [step]))
        assert not torch.allclose(result, pool.call(("expected", step)))
        (record,) = pool.call(("records",))
        assert record.backend == "toy_wrong"


def test_a_backend_that_hangs_is_refused_and_the_trial_goes_on(install: Install) -> None:
    install("toy_hanging", "toy_right")
    plan = plan_environment(ParallelConfig(tp=2), "cpu", os.environ)
    said: list[str] = []
    trial = try_backends(plan, MESSAGES, said.append, deadline_s=5.0, quiet_s=12.0)
    (refusal,) = trial.refused
    assert refusal.backend == "toy_hanging"
    assert "did not come through its probe: " in refusal.reason
    assert trial.table is not None
    assert {timing.backend for timing in trial.table.timings} == {"toy_right", "shared_memory", "torch_distributed"}
    said_of = {(v.backend, v.message.op): v.reason for v in trial.verdicts}
    assert said_of["toy_right", "broadcast"] is None and said_of["toy_hanging", "broadcast"] == refusal.reason
    assert any("toy_hanging" in line for line in said)
    # What a trial refused is never even started in a run.
    known = TuningPlan(messages=MESSAGES, table=trial.table, refused=trial.refused)
    with make_pool(tuning=known) as pool:
        record = summed(pool)
        assert [r.reason for r in record.refused if r.backend == "toy_hanging"] == [refusal.reason]


def test_three_ranks_keep_one_backend_for_every_width(install: Install) -> None:
    install("toy_right")
    sizes = (128, 1024, 65536)
    messages = tuple(Message(op="all_reduce", num_bytes=size, dtype="bfloat16") for size in sizes)
    with make_pool(3, TuningPlan(messages=messages, measure=True)) as pool:
        rules = pool.call(("rules",))
        pool.call(("steps", [("all_reduce", "bfloat16", (size // 2,), 1) for size in sizes]))
        records = pool.call(("records",))
        assert {record.backend for record in records} == {rules.families["all_reduce"]}
        assert {record.rule for record in records} == {"one backend of fixed rank order for every width"}
    with make_pool(3, TuningPlan(messages=messages, measure=True), collectives="fastest") as pool:
        pool.call(("steps", [("all_reduce", "bfloat16", (64,), 1)]))
        (record,) = pool.call(("records",))
        assert "--collectives fastest" in record.rule
