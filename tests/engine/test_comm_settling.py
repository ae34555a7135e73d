"""What ranks know of collectives before they start: measured, stored, read again, and never another machine's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tiny_models
from alula.comm.backends.flashinfer_pcie import FlashInferPcieBackend
from alula.comm.environment_plan import plan_environment
from alula.comm.process_groups import ProcessGroups
from alula.comm.segment import Segment, create_segment_file
from alula.comm.stored_profile import CommProfile
from alula.comm.table import MeasuredTable, Timing
from alula.comm.tuning_plan import Message
from alula.core.config import EngineConfig, GraphConfig, ParallelConfig, SpeculationConfig
from alula.core.errors import InvalidOption
from alula.core.sampling import SamplingParams
from alula.core.shape import parse_shape
from alula.engine.comm_settling import covers
from alula.engine.comm_trial import telling
from alula.engine.llm import LLM
from alula.engine.messages import collective_messages
from alula.models.checkpoint import open_checkpoint
from alula.models.source import resolve_source

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def config(**parallel: object) -> EngineConfig:
    return EngineConfig(
        dtype="float32",
        device="cpu",
        threads=1,
        max_batch=4,
        context_tokens=128,
        parallel=ParallelConfig(**{"tp": 2, "rank_deadline_s": 30.0, **parallel}),  # type: ignore[arg-type]
        speculation=SpeculationConfig(steps=2, speculate="always"),
    )


def open_llm(**parallel: object) -> LLM:
    model, head = tiny_models.checkpoint("eight_heads"), tiny_models.head("eight_heads", "bigram")
    return LLM(str(model), draft=str(head), config=config(**parallel))


def table_of(llm: LLM) -> MeasuredTable | None:
    table = llm.describe().facts["collectives"]["table"]
    return None if table is None else msgspec.convert(table, MeasuredTable)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, MeasuredTable]:
    """A profile as a first start writes it, and the table that this start measured."""
    path = tmp_path_factory.mktemp("profiles") / "profile.json"
    with open_llm(comm_profile=str(path)) as llm:
        measured = table_of(llm)
    assert measured is not None
    return path.read_bytes(), measured


def test_a_profile_is_written_once_and_spares_the_next_start_its_measurement(
    tmp_path: Path, written: tuple[bytes, MeasuredTable]
) -> None:
    path, measured = tmp_path / "profile.json", written[1]
    path.write_bytes(written[0])
    assert not measured.captured
    assert {timing.backend for timing in measured.timings} == {"shared_memory", "torch_distributed"}
    stored = msgspec.json.decode(path.read_bytes(), type=CommProfile)
    assert stored.table == measured
    with open_llm(comm_profile=str(path)) as llm:
        assert table_of(llm) == measured


def test_the_stored_table_decides(tmp_path: Path, written: tuple[bytes, MeasuredTable]) -> None:
    """A planted one: gloo is the faster for everything. The records say so, with its numbers."""
    path = tmp_path / "profile.json"
    stored = msgspec.json.decode(written[0], type=CommProfile)
    us = {"shared_memory": 50.0, "torch_distributed": 5.0}
    planted = tuple(msgspec.structs.replace(timing, us=us[timing.backend]) for timing in stored.table.timings)
    table = msgspec.structs.replace(stored.table, timings=planted)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(stored, table=table)))
    with open_llm(comm_profile=str(path)) as llm:
        llm.generate([tiny_models.random_ids(5, seed=1)], PARAMS)
        found = llm.collectives()
        assert found is not None
        sums = [record for record in found.dispatched if record.op == "all_reduce" and record.phase == "verify"]
        assert {record.backend for record in sums} == {"torch_distributed"}
        assert {record.measured_us for record in sums} == {5.0}
        assert all("50.0 us, torch_distributed 5.0 us" in record.refused[0].reason for record in sums)


def test_another_machines_profile_stops_the_start(tmp_path: Path, written: tuple[bytes, MeasuredTable]) -> None:
    path = tmp_path / "profile.json"
    stored = msgspec.json.decode(written[0], type=CommProfile)
    key = msgspec.structs.replace(stored.key, num_ranks=8, torch="1.0")
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(stored, key=key)))
    with pytest.raises(InvalidOption, match=r"torch was '1.0' and is .*; num_ranks was 8 and is 2"):
        open_llm(comm_profile=str(path))


def test_a_backend_that_is_left_out_is_refused_with_that_and_leaves_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with open_llm(comm_profile=str(path), without=("shared_memory",)) as llm:
        llm.generate([tiny_models.random_ids(5, seed=1)], PARAMS)
        found = llm.collectives()
        assert found is not None
        sums = [record for record in found.dispatched if record.op == "all_reduce"]
        assert {record.backend for record in sums} == {"torch_distributed"}
        assert {r.reason for record in sums for r in record.refused} == {"left out by --without"}
    assert not path.exists()
    with pytest.raises(InvalidOption, match="--without names 'ncll'; expected some of peer_push"):
        open_llm(without=("ncll",))


def test_messages_are_those_of_the_widths_and_batches_that_run() -> None:
    shape = parse_shape(open_checkpoint(resolve_source(str(tiny_models.checkpoint("eight_heads")))).config)
    own = msgspec.structs.replace(config(), graphs=GraphConfig(batches=(1, 2, 4), widths=(2,)))
    found = collective_messages(shape, own, "bfloat16", captured=True)
    rows = {message.num_rows for message in found if message.op == "all_reduce" and message.captured}
    assert rows == {batch * width for batch in (1, 4) for width in (1, 2, 3)}
    assert {message.op for message in found} == {"all_reduce", "all_gather", "sum_onto"}
    (chunk,) = [message for message in found if not message.captured]
    assert chunk.num_bytes == own.chunk_tokens * shape.hidden_size * 2
    never = msgspec.structs.replace(own, speculation=SpeculationConfig(speculate="never"))
    plain = collective_messages(shape, never, "bfloat16", captured=False)
    assert {message.num_rows for message in plain} == {1, 4, own.chunk_tokens}
    assert "sum_onto" not in {message.op for message in plain}


def test_a_table_covers_what_lies_between_its_sizes() -> None:
    timings = tuple(Timing(op="all_reduce", num_bytes=size, backend="nccl", us=1.0) for size in (1024, 65536))
    table = MeasuredTable(timings=timings)
    inside = Message(op="all_reduce", num_bytes=8192, dtype="bfloat16")
    names = ("nccl", "peer_push")
    assert covers(table, [inside], names)
    assert not covers(table, [inside], ("peer_push",))
    for outside in (512, 65537):
        assert not covers(table, [inside, msgspec.structs.replace(inside, num_bytes=outside)], names)
    assert not covers(table, [msgspec.structs.replace(inside, op="all_gather")], names)


def test_flashinfer_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"flashinfer": None}
    monkeypatch.setattr("importlib.util.find_spec", found.get)
    groups = ProcessGroups(Segment(create_segment_file(2)), 0, 1.0)
    call = Message(op="all_reduce", num_bytes=8192, dtype="bfloat16", captured=True).call(2, "cuda")
    assert "FlashInfer is not installed" in str(FlashInferPcieBackend(groups).admits(call).reason)
    found["flashinfer"] = object()
    assert "it came with 0.7" in str(FlashInferPcieBackend(groups).admits(call).reason)
    found["flashinfer.comm.pcie_ipc_ar"] = object()
    backend = FlashInferPcieBackend(groups)
    assert backend.admits(call).admitted
    refused = {
        "3 ranks": Message(op="all_reduce", num_bytes=8192, dtype="bfloat16").call(3, "cuda"),
        "dtype float32": Message(op="all_reduce", num_bytes=8192, dtype="float32").call(2, "cuda"),
        "takes 32 to": Message(op="all_reduce", num_bytes=2 << 20, dtype="bfloat16").call(2, "cuda"),
        "multiple of 16": Message(op="all_reduce", num_bytes=8194, dtype="bfloat16").call(2, "cuda"),
    }
    for reason, other in refused.items():
        assert reason in str(backend.admits(other).reason)


def test_a_trials_ranks_have_nccl_tell_how_it_runs_messages() -> None:
    parallel = ParallelConfig(tp=2)
    silent = plan_environment(parallel, "cuda", {})
    assert telling(silent) == silent  # no log was asked for
    logged = plan_environment(parallel, "cuda", {}, log_folder="/nowhere")
    told = telling(logged)
    assert told.shared["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,TUNING"
    assert {**told.shared, "NCCL_DEBUG_SUBSYS": logged.shared["NCCL_DEBUG_SUBSYS"]} == logged.shared
