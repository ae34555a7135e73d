"""The sink stays small whatever is poured into it, and keeps runs, files and lines."""

from __future__ import annotations

from alula.explain.sink import MAX_DISTINCT, MAX_RUNS, MAX_SERIES, Sink
from alula.profile.evidence import MAX_TEXT, Label, Scope
from alula.profile.quantities import Quantity as Q


def test_repeats_are_counted_and_the_first_line_is_kept() -> None:
    sink = Sink("a.log")
    for line in range(1, 100):
        sink.add(Q.GRAPH_REPLAYED, True, line=line, text="x" * 1000, reader="r", scope=Scope(phase="verify"))
    (run,) = sink.runs()
    (one,) = run.all(Q.GRAPH_REPLAYED)
    assert one.num_samples == 99 and one.line == 1 and len(one.text) == MAX_TEXT
    assert sink.recognised == {"r": 99}


def test_samples_become_a_median_with_an_interval_and_a_trend() -> None:
    sink = Sink("a.log")
    for value in range(1, 10_001):
        sink.sample(Q.CYCLE_MS, float(value), line=value)
    (one,) = sink.runs()[0].all(Q.CYCLE_MS)
    assert one.num_samples == 10_000 and one.number is not None and 4900 < one.number < 5100
    assert one.low is not None and one.high is not None and one.low < one.number < one.high
    assert one.early is not None and one.late is not None and one.early < 2000 < 8000 < one.late


def test_memory_is_bounded() -> None:
    sink = Sink("a.log")
    for number in range(3 * MAX_DISTINCT):
        sink.add(Q.FLAG, number)
        sink.sample(Q.CYCLE_MS, 1.0, scope=Scope(batch=number))
        sink.begin_run("vllm") if number < 2 * MAX_RUNS and number % 2 else None
    runs = sink.runs()
    assert len(runs) <= MAX_RUNS
    assert all(len(run.all(Q.FLAG)) <= MAX_DISTINCT and len(run.all(Q.CYCLE_MS)) <= MAX_SERIES for run in runs)
    assert sink.notes


def test_hostile_numbers_are_dropped() -> None:
    sink = Sink("a.log")
    for value in (float("nan"), float("inf"), 1e300, 10**40):
        sink.add(Q.CYCLE_MS, value)
        sink.sample(Q.CYCLE_MS, float(value))
    assert sink.runs() == ()


def test_interleaved_engines_stay_two_runs() -> None:
    sink = Sink("a.log")
    for _ in range(3):
        sink.add(Q.STEPS, 3, engine="vllm")
        sink.add(Q.STEPS, 5, engine="sglang")
    sink.add(Q.NCCL_VERSION, "2.28")  # nobody's: of the run that began last
    first, second = sink.runs()
    assert (first.text(Q.ENGINE), first.number(Q.STEPS)) == ("vllm", 3)
    assert (second.text(Q.ENGINE), second.number(Q.STEPS), second.text(Q.NCCL_VERSION)) == ("sglang", 5, "2.28")


def test_an_engine_takes_over_what_came_before_it_was_named() -> None:
    sink = Sink("a.log")
    sink.add(Q.GPU, "H100")
    sink.add(Q.STEPS, 3, engine="vllm")
    (run,) = sink.runs()
    assert run.text(Q.GPU) == "H100" and run.text(Q.ENGINE) == "vllm"


def test_the_users_word_on_a_side_wins() -> None:
    sink = Sink("a.log", Label.BASELINE)
    sink.begin_run("vllm", label=Label.SPECULATIVE)
    sink.add(Q.STEPS, 3)
    assert sink.runs()[0].label is Label.BASELINE
