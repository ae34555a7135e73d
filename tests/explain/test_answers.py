"""The first sentence: what leads, what is said to be missing, and that a loss never comes without a next step."""

from __future__ import annotations

import json

import pytest
from evidence_builder import Found, finding, found, verdict_of
from hypothesis import given
from hypothesis import strategies as st
from reading import read
from scenarios import SCENARIOS, Scenario

from alula.explain.finding import Status, Tier
from alula.explain.hypotheses.graph_batch import BatchOverGraph
from alula.explain.judge import explain
from alula.explain.typed import Typed
from alula.explain.verdict import as_document
from alula.profile.quantities import Quantity as Q


def test_what_voids_the_numbers_comes_before_them() -> None:
    spec = [
        found(Q.THROTTLE, True, name="HW Thermal Slowdown", rank=0),
        found(Q.TOKENS_PER_S, 80.0),
        found(Q.STEPS, 2),
    ]
    for plain_rate in (40.0, 160.0):
        verdict = verdict_of(spec, [found(Q.TOKENS_PER_S, plain_rate)])
        assert verdict.findings[0].tier is Tier.VOID
        assert verdict.answer.startswith(verdict.findings[0].title)


@given(st.floats(1, 500), st.floats(1, 500))
def test_a_loss_never_comes_without_a_next_step(plain_tps: float, loss: float) -> None:
    verdict = explain([], Typed(plain_tps=plain_tps + loss, spec_tps=plain_tps, steps=3))
    assert verdict.exit_code == 3 and "Next: " in verdict.answer


@pytest.mark.parametrize(
    "typed,missing",
    [
        (Typed(plain_ms=10, cycle_ms=21, steps=3), "tokens per cycle are not known"),
        (Typed(plain_ms=10, verify_ms=12, draft_ms=3, steps=3), "tokens per cycle are not known"),
        (Typed(plain_ms=10, verify_ms=12, tokens_per_cycle=2.0, steps=3), "bounds that do not decide"),
        (Typed(plain_ms=10, steps=3), "rate with speculation or the cycle's time"),
        (Typed(cycle_ms=10, tokens_per_cycle=2.0, steps=3), "no plain rate or step"),
    ],
)
def test_what_is_said_to_be_missing_is_missing(typed: Typed, missing: str) -> None:
    verdict = explain([], typed)
    assert verdict.case.sums.pays is None and missing in verdict.answer


@pytest.mark.parametrize("size", [found(Q.GRAPH_MAX_TOKENS, 0), found(Q.GRAPH_MAX_REQUESTS, 8), found(Q.GRAPH_MAX_TOKENS, 8)])  # fmt: skip
def test_graphs_that_are_switched_off_are_not_a_matter_of_size(size: Found) -> None:
    plain = [
        found(Q.TOKENS_PER_S, 100.0, batch=16),
        found(Q.GRAPH_MAX_TOKENS, 512),
        found(Q.GRAPHS_DISABLED, False),
    ]
    spec = [
        found(Q.GRAPHS_DISABLED, True),
        size,
        found(Q.NUM_RUNNING, 16),
        found(Q.STEPS, 3),
        found(Q.TOKENS_PER_S, 70.0, batch=16),
    ]
    verdict = verdict_of([*spec, found(Q.TOKENS_PER_CYCLE, 2.2)], plain)
    assert finding(verdict, BatchOverGraph.id).status is Status.REFUTED
    assert verdict.findings[0].id == "verify_without_graph"
    assert "--enforce-eager" in verdict.answer
    assert "graph max" not in finding(verdict, "not_like_for_like").text


def test_no_size_of_a_vllm_dump_without_graphs() -> None:
    text = (
        "INFO 11-02 09:00:20 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', "
        "speculative_config=SpeculativeConfig(method='eagle3', model='org/h', num_spec_tokens=3), tensor_parallel_size=1, "
        'enforce_eager=True, compilation_config={"level":0,"cudagraph_mode":0,"cudagraph_capture_sizes":[],"max_capture_size":0}\n'
    )
    (run,) = read(text).runs()
    assert run.yes(Q.GRAPHS_DISABLED) is True
    assert not run.all(Q.GRAPH_MAX_TOKENS)


@pytest.mark.parametrize("option", ["cuda_graph_max_bs", "cuda_graph_max_bs_decode"])
def test_the_option_is_called_as_the_engines_own_dump_calls_it(option: str) -> None:
    text = (
        f"[2026-02-01 10:00:00] server_args=ServerArgs(model_path='org/m', speculative_algorithm='EAGLE3', "
        f"speculative_num_steps=3, {option}=4, max_running_requests=64)\n"
    )
    told = finding(explain([read(text)]), "batch_over_captured_graph")
    assert told.status is Status.CONFIRMED and told.fix == f"--{option.replace('_', '-')} 64"


@given(st.floats(0.0, 0.14), st.integers(2, 6))
def test_a_head_that_does_not_work_is_not_tuned(first: float, steps: int) -> None:
    spec = [found(Q.ACCEPTANCE, first * 0.5**position, position=position) for position in range(steps)]
    spec += [found(Q.STEPS, steps), found(Q.TOKENS_PER_S, 60.0), found(Q.CYCLE_MS, 20.0), found(Q.DRAFT_MS, 5.0)]
    verdict = verdict_of(spec, [found(Q.TOKENS_PER_S, 100.0)])
    told = finding(verdict, "draft_length")
    assert told.status is Status.UNDECIDED and not told.suspect and told.fix is None


@given(st.integers(1, 128), st.integers(1, 7))
def test_experts_of_a_verify_are_compared_with_those_of_a_plain_step_of_the_same_load(
    batch: int, steps: int
) -> None:
    spec = [found(Q.NUM_EXPERTS, 128), found(Q.EXPERTS_PER_TOKEN, 8), found(Q.STEPS, steps), found(Q.BATCH, batch)]
    spec += [found(Q.TOKENS_PER_S, 60.0), found(Q.TOKENS_PER_CYCLE, 1.5)]
    told = finding(verdict_of(spec, [found(Q.TOKENS_PER_S, 100.0)]), "expert_union")
    if batch >= 64:
        assert told.status is Status.REFUTED
    if batch <= 4:
        assert told.status is Status.UNDECIDED and told.suspect
        assert all(option in told.text for option in ("--gpu", "--model", "--tp"))


def test_rows_that_are_known_outrank_paths_that_are_not() -> None:
    spec = [found(Q.TP, 4), found(Q.MODEL, "meta-llama/Llama-3.1-70B"), found(Q.STEPS, 4), found(Q.NUM_RUNNING, 64)]
    spec += [found(Q.TOKENS_PER_S, 1750.0, batch=64), found(Q.TOKENS_PER_CYCLE, 2.6)]
    spec += [found(Q.GRAPH_REPLAYED, True, phase="verify", times=9)]
    verdict = verdict_of(spec, [found(Q.TOKENS_PER_S, 2100.0, batch=64)])
    open_ones = [one.id for one in verdict.findings if one.status is Status.UNDECIDED and one.suspect]
    assert open_ones[:2] == ["batch_too_large", "allreduce_paths_differ"]


@pytest.mark.parametrize("algorithm", ["STANDALONE", "draft_model"])
@pytest.mark.parametrize("more,suspect", [([], True), ([found(Q.DRAFT_TP, 1)], False)])
def test_a_whole_draft_model_over_many_ranks_is_a_suspect(algorithm: str, more: list[Found], suspect: bool) -> None:
    spec = [found(Q.ALGORITHM, algorithm), found(Q.TP, 8), found(Q.STEPS, 5), found(Q.TOKENS_PER_CYCLE, 3.4), *more]
    verdict = verdict_of([*spec, found(Q.TOKENS_PER_S, 55.0)], [found(Q.TOKENS_PER_S, 62.0)])
    assert finding(verdict, "draft_tensor_parallel").suspect is suspect


@pytest.mark.parametrize("scenario", SCENARIOS[::7])
def test_a_verdict_is_no_evidence(scenario: Scenario) -> None:
    document = json.dumps(as_document(verdict_of(scenario.spec, scenario.plain)), indent=1)
    sink = read(document, "verdict.json")
    assert sink.runs() == () and not sink.recognised
    assert any("not evidence" in note for note in sink.notes)


@pytest.mark.parametrize("label", ["break_even_tokens_per_cycle", "Tokens/cycle needed", "ceiling (tokens/step)", "Δ tok/s", "tok/s gain", "predicted tok/s"])  # fmt: skip
def test_columns_of_what_was_not_measured_are_left_out(label: str) -> None:
    table = f"| run | tok/s | {label} |\n|---|---|---|\n| plain | 100 | 7.5 |\n| eagle3 | 140 | 7.5 |\n"
    values = {one.value for run in read(table).runs() for one in run}
    assert {100.0, 140.0} <= values and 7.5 not in values


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: f"{one.id}-{one.status}")
def test_texts_have_no_stray_blanks(scenario: Scenario) -> None:
    verdict = verdict_of(scenario.spec, scenario.plain)
    for one in verdict.findings:
        assert "  " not in one.text and one.text == one.text.strip(), one.text
