"""The verdict as a whole: the founding story, ranking, sums, JSON, two runs kept apart."""

from __future__ import annotations

import json

import msgspec
import pytest
from evidence_builder import Found, finding, found, series, sink_of, verdict_of
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SCENARIOS, Scenario

from alula.explain.finding import Status, Tier
from alula.explain.judge import explain
from alula.explain.sink import Sink
from alula.explain.typed import Typed
from alula.explain.verdict import as_document, rank
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

FOUNDING = Typed(
    plain_tps=82.2,
    spec_tps=60.5,
    steps=2,
    plain_ms=12.2,
    verify_ms=29,
    model="kimi-k2.5",
    gpu="rtx-pro-6000",
    tp=8,
)
_FIGURES = [f"{name}_tokens_per_cycle" for name in ("break_even", "ceiling")]
_KEYS = ["schema", "answer", "pays", "speedup", "plain_step_ms", "cycle_ms", "tokens_per_cycle", *_FIGURES]
_KEYS += ["waterfall", "findings", "facts", "recognised"]
_FINDING_KEYS = ["id", "status", "title", "text", "ms", "confidence", "evidence", "fix", "next_step"]
_FINDING_KEYS += ["predicted_speedup"]


def test_the_founding_story() -> None:
    verdict = explain([], FOUNDING)
    assert verdict.exit_code == 3
    assert "verify alone costs 2.38 plain steps" in verdict.answer
    assert "at least 1.75 tokens per cycle" in verdict.answer and "below break-even" in verdict.answer
    experts = finding(verdict, "expert_union")
    assert experts.status is Status.REFUTED and experts.ms is not None and experts.ms < 2
    assert "less than 2 ms of the 16.8 ms" in experts.text
    open_ones = [one for one in verdict.findings if one.status is Status.UNDECIDED and one.suspect]
    assert {one.id for one in open_ones} == {"verify_without_graph", "allreduce_paths_differ"}
    assert "cuda graph:" in (open_ones[0].next_step or "")
    assert "NCCL_DEBUG" in (open_ones[1].next_step or "")
    confirmed = [one.id for one in verdict.findings if one.status is Status.CONFIRMED]
    assert confirmed == ["acceptance_below_break_even"]


@given(st.floats(0.1, 10), st.floats(1, 50), st.floats(0, 9), st.floats(0, 5), st.floats(0, 5), st.floats(0, 30))
def test_the_waterfall_adds_up(
    plain: float, verify: float, draft: float, extend: float, host: float, eager: float
) -> None:
    cycle = verify + draft + extend + host + 0.3
    times = {Q.VERIFY_MS: verify, Q.DRAFT_MS: draft, Q.EXTEND_MS: extend, Q.HOST_MS: host, Q.CYCLE_MS: cycle}
    spec = [found(quantity, ms) for quantity, ms in times.items()]
    spec += [found(Q.GRAPH_REPLAYED, False, phase="verify"), found(Q.STEPS, 3), found(Q.TOKENS_PER_CYCLE, 2.0)]
    spec += [found(Q.FORWARD_MS, eager + 1, phase="verify", variant="eager")]
    spec += [found(Q.FORWARD_MS, 1.0, phase="verify", variant="graph")]
    verdict = verdict_of(spec, [found(Q.PLAIN_STEP_MS, plain)])
    assert sum(part.ms for part in verdict.waterfall) == pytest.approx(cycle)
    assert verdict.waterfall[0].ms == pytest.approx(plain)
    assert verdict.remainder_ms is not None


def test_the_waterfall_compares_like_with_like_where_the_plain_phases_are_known() -> None:
    plain = [found(Q.PLAIN_STEP_MS, 10.0, batch=1), found(Q.PHASE_MS, 8.0, phase="decode", batch=1)]
    plain += [found(Q.HOST_MS, 1.5, batch=1)]
    spec = [found(Q.CYCLE_MS, 16.0, batch=1), found(Q.VERIFY_MS, 9.0, batch=1), found(Q.HOST_MS, 3.5, batch=1)]
    parts = {part.part: part.ms for part in verdict_of([*spec, found(Q.DRAFT_MS, 3.0, batch=1)], plain).waterfall}
    assert parts["verify beyond a plain step"] == pytest.approx(1.0)
    assert sum(ms for name, ms in parts.items() if name.startswith("host")) == pytest.approx(2.0)
    assert sum(parts.values()) == pytest.approx(16.0)


def test_what_a_fix_gives_is_predicted_from_its_milliseconds() -> None:
    spec = [found(Q.CYCLE_MS, 20.0), found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.STEPS, 3)]
    spec += [found(Q.GRAPH_REPLAYED, False, phase="verify")]
    spec += [
        found(Q.FORWARD_MS, ms, phase="verify", variant=name) for name, ms in (("eager", 14.0), ("graph", 8.0))
    ]
    judged = finding(verdict_of(spec, [found(Q.PLAIN_STEP_MS, 8.0)]), "verify_without_graph")
    assert judged.ms == pytest.approx(6.0)
    assert judged.predicted_speedup == pytest.approx(2.0 * 8.0 / 14.0)


def test_faults_outrank_costs_and_costs_outrank_tuning() -> None:
    spec = [
        found(Q.TOKENS_PER_CYCLE, 1.0, times=20),
        found(Q.STEPS, 3),
        found(Q.TOKENS_PER_S, 40.0),
        found(Q.GRAPH_REPLAYED, False, phase="verify"),
        found(Q.DATASET, "random"),
    ]
    verdict = verdict_of(spec, [found(Q.TOKENS_PER_S, 100.0)])
    confirmed = [one for one in verdict.findings if one.status is Status.CONFIRMED]
    assert [one.id for one in confirmed[:2]] == ["head_broken", "verify_without_graph"]
    assert [one.tier for one in confirmed] == sorted(one.tier for one in confirmed)
    assert confirmed[-1].tier >= Tier.TUNING


def test_two_causes_are_ranked_by_their_milliseconds() -> None:
    spec = [found(Q.CYCLE_MS, 30.0), found(Q.VERIFY_MS, 15.0), found(Q.HOST_MS, 8.0), found(Q.STEPS, 3)]
    spec += [found(Q.GRAPH_REPLAYED, False, phase="verify"), found(Q.TOKENS_PER_CYCLE, 2.0)]
    spec += [
        found(Q.FORWARD_MS, ms, phase="verify", variant=name) for name, ms in (("eager", 15.0), ("graph", 11.0))
    ]
    verdict = verdict_of(spec, [found(Q.PLAIN_STEP_MS, 10.0)])
    named = [one.id for one in verdict.findings if one.status is Status.CONFIRMED and one.ms]
    assert named[:2] == ["host_or_launch_bound", "verify_without_graph"]


@pytest.mark.parametrize("scenario", SCENARIOS[::4])
def test_the_document_has_the_keys_of_schema_1(scenario: Scenario) -> None:
    verdict = verdict_of(scenario.spec, scenario.plain)
    document = json.loads(msgspec.json.encode(as_document(verdict)))
    assert list(document) == _KEYS
    assert document["schema"] == 1 and document["pays"] in (True, False, None)
    for one in document["findings"]:
        assert list(one) == _FINDING_KEYS
        assert one["status"] in ("confirmed", "refuted", "undecided")
        for line in one["evidence"]:
            assert list(line) == ["source", "line", "text"]
    ranks = [rank(one) for one in verdict.findings]
    assert ranks == sorted(ranks)


def test_nothing_recognised_is_said_and_is_no_failure() -> None:
    verdict = explain([Sink("noise.bin")])
    assert verdict.exit_code == 0 and "Nothing was recognised" in verdict.answer
    assert as_document(verdict)["pays"] is None
    assert not any(one.suspect for one in verdict.findings)


def test_without_a_plain_rate_nothing_is_claimed() -> None:
    verdict = verdict_of([found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.STEPS, 3), found(Q.TOKENS_PER_S, 80.0)])
    assert verdict.case.sums.pays is None and verdict.exit_code == 0
    assert "cannot be said" in verdict.answer and "--baseline" in verdict.answer


def test_contradictions_are_shown_and_lower_the_confidence() -> None:
    clear = [found(Q.STEPS, 3), found(Q.TOKENS_PER_S, 80.0), found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.TP, 2)]
    plain = [found(Q.TOKENS_PER_S, 100.0)]
    sure = finding(verdict_of(clear, plain), "acceptance_below_break_even").confidence
    muddled = verdict_of([*clear, found(Q.TP, 4)], plain)
    assert finding(muddled, "acceptance_below_break_even").confidence < sure
    told = finding(muddled, "contradictory_evidence")
    assert "tp 2" in told.text and "tp 4" in told.text


@pytest.mark.parametrize("first,second", [("/models/Kimi-K2.5", "kimi-k2.5"), ("NVIDIA H100 80GB HBM3", "h100")])
def test_spellings_of_one_name_are_no_contradiction(first: str, second: str) -> None:
    quantity = Q.GPU if "H100" in first else Q.MODEL
    verdict = verdict_of([found(quantity, first), found(quantity, second)])
    assert not verdict.case.contradictions


def test_two_engines_are_kept_apart() -> None:
    sink = Sink("both.log")
    for name, tokens in (("vllm", 2.5), ("sglang", 1.5)):
        evidence: list[Found] = [
            found(Q.ENGINE, name, engine=name),
            found(Q.STEPS, 3, engine=name),
            found(Q.TOKENS_PER_CYCLE, tokens, engine=name),
        ]
        for quantity, value, fields in evidence:
            sink.add(quantity, value, engine=fields["engine"], reader=name)
    verdict = explain([sink])
    assert len(verdict.case.others) == 1
    assert not verdict.case.contradictions
    engines = {verdict.case.engine, (verdict.case.others[0].text(Q.ENGINE) or "")}
    assert engines == {"vllm", "sglang"}


def test_two_settings_with_rates_of_their_own_are_two_runs() -> None:
    slow = sink_of(found(Q.STEPS, 3), found(Q.ATTENTION_BACKEND, "A"), found(Q.TOKENS_PER_S, 40.0), source="a")
    fast = sink_of(found(Q.STEPS, 3), found(Q.ATTENTION_BACKEND, "B"), found(Q.TOKENS_PER_S, 60.0), source="b")
    assert len(explain([slow, fast]).case.others) == 1
    table = sink_of(found(Q.TOKENS_PER_S, 41.0), found(Q.TOKENS_PER_CYCLE, 2.0), source="bench")
    assert len(explain([slow, table]).case.others) == 0


def test_a_falling_acceptance_is_seen_in_a_series() -> None:
    sink = Sink("log", Label.SPECULATIVE)
    series(sink, Q.TOKENS_PER_CYCLE, [3.0] * 20 + [2.5] * 20 + [1.6] * 20)
    assert finding(explain([sink]), "acceptance_decays").status is Status.CONFIRMED


def test_the_advice_is_right_for_the_engine_and_version() -> None:
    def advice(engine: str, version: str | None) -> str:
        spec = [
            found(Q.ENGINE, engine),
            found(Q.CONCURRENCY, 20),
            found(Q.GRAPH_MAX_REQUESTS, 2),
            found(Q.STEPS, 2),
        ]
        spec += [found(Q.ENGINE_VERSION, version)] if version else []
        return finding(verdict_of(spec), "batch_over_captured_graph").fix or ""

    assert advice("sglang", "0.4.5") == "--cuda-graph-max-bs 20"
    assert advice("sglang", "0.5.23") == "--cuda-graph-max-bs-decode 20"
    assert advice("vllm", "0.11.0") == "--cuda-graph-sizes 60"
    assert advice("vllm", "0.28.1rc1") == "--max-cudagraph-capture-size 60"
    assert "before" in advice("vllm", None) and "60" in advice("vllm", None)
    assert "20 requests" in advice("my-engine", None)
