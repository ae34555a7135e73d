"""From names to sinks: progress, several files, URLs beside files, and what readers hand over in bulk."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_texts import CASES

from alula.explain.readers import inputs
from alula.explain.readers.inputs import read_inputs
from alula.explain.sink import Sink
from alula.profile.evidence import Label, Scope
from alula.profile.quantities import Quantity as Q
from alula.profile.samples import Samples


def test_one_sink_a_file_also_for_those_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(CASES["11"])
    (tmp_path / "b.txt").write_text("nothing\n")
    sinks = read_inputs([str(tmp_path)], Label.UNKNOWN, lambda text: None)
    assert [bool(sink.recognised) for sink in sinks] == [True, False]


def test_complaints_about_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")
    said: list[str] = []
    read_inputs([str(tmp_path / "cut.gz")], Label.UNKNOWN, said.append)
    assert any("cut.gz" in one and "damaged" in one for one in said)


def test_progress_of_a_long_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_MANY_MEBIBYTES", 1)
    monkeypatch.setattr(inputs, "_QUIET_SECONDS", 0.0)
    path = tmp_path / "long.log"
    path.write_bytes(b"x\n" * (3 << 19))
    said: list[str] = []
    read_inputs([str(path)], Label.UNKNOWN, said.append)
    assert said[-1] == f"{path}: 3 of 3 MiB read"


def test_a_series_is_handed_over_whole_and_goes_on() -> None:
    sink, first, second = Sink("x"), Samples(), Samples()
    for value in (1.0, 2.0, 3.0):
        first.add(value)
        second.add(value + 10.0)
    for samples in (first, second, Samples()):
        sink.collected(Q.CYCLE_MS, samples, engine="sglang", reader="r", scope=Scope(batch=1), line=7, text="t")
    found = sink.runs()[0].first(Q.CYCLE_MS, batch=1)
    assert found is not None
    assert (found.num_samples, found.value, found.line) == (6, 7.0, 7)
    assert sink.recognised == {"r": 2}


def test_a_value_that_was_counted_elsewhere() -> None:
    sink = Sink("x")
    sink.add(Q.GRAPH_REPLAYED, True, count=5)
    sink.add(Q.GRAPH_REPLAYED, True, count=7)
    assert sink.runs()[0].all(Q.GRAPH_REPLAYED)[0].num_samples == 12


def test_kernels_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from reading import read
    from trace_samples import sglang_cycles

    from alula.explain.readers import trace_data

    monkeypatch.setattr(trace_data, "MAX_KERNELS", 500)
    sink = read(sglang_cycles().text())
    assert any("kernels of GPU 0 left out" in note for note in sink.notes)
    assert sink.runs()[0].number(Q.NUM_KERNELS, phase="verify") == 200
