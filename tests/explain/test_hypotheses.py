"""Every hypothesis confirmed, refuted and undecided on evidence made for it, and what all of them keep to."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from pathlib import Path

import pytest
from evidence_builder import finding, found, verdict_of
from hypothesis import given
from hypothesis import strategies as st
from scenarios import SCENARIOS, Scenario

from alula.explain import hypotheses
from alula.explain.finding import Status
from alula.explain.hypotheses.registry import HYPOTHESES
from alula.explain.verdict import Verdict
from alula.profile.quantities import Quantity as Q

_IDS = [f"{scenario.id}-{scenario.status}-{number}" for number, scenario in enumerate(SCENARIOS)]
# What a log lacks is evidence only where it is known to be complete: these words say so.
_COMPLETENESS = {Q.GRAPH_LOG_COMPLETE, Q.NCCL_ENV_LOGGED, Q.NCCL_RANK_LOGGED}
# Says nothing about a cause, so less evidence may well leave less to contradict or to compare.
_ABOUT_EVIDENCE = {"contradictory_evidence", "not_like_for_like"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_IDS)
def test_says_what_the_evidence_carries(scenario: Scenario) -> None:
    judged = finding(verdict_of(scenario.spec, scenario.plain), scenario.id)
    assert judged.status is scenario.status, judged.text
    assert judged.text
    if scenario.status is Status.CONFIRMED:
        assert judged.suspect and judged.confidence >= 0.5
        assert judged.evidence or scenario.id == "contradictory_evidence"
        assert judged.fix or judged.next_step
    if scenario.status is Status.UNDECIDED:
        assert judged.confidence < 0.6


def test_every_hypothesis_is_shown_with_every_verdict() -> None:
    shown = defaultdict(set)
    for scenario in SCENARIOS:
        shown[scenario.id].add(scenario.status)
    causes = [one.id for one in HYPOTHESES if not one.id.startswith("known.")]
    assert set(shown) == set(causes)
    for name in causes:
        wanted = set(Status) - ({Status.REFUTED} if name == "contradictory_evidence" else set())
        assert shown[name] == wanted, name


def test_each_tells_its_prediction_and_its_refutation() -> None:
    assert len({one.id for one in HYPOTHESES}) == len(HYPOTHESES)
    for one in HYPOTHESES:
        assert one.title and one.predicts and one.refuted_by and one.needs


def test_no_hypothesis_names_a_case_a_repository_or_an_issue() -> None:
    for path in Path(hypotheses.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"#\d{3,}|\bissue \d|\bPR \d|github|/[a-z]+-[a-z]+/(?:issues|pull)", text), path


def _confidence(verdict: Verdict) -> dict[str, tuple[Status, float]]:
    return {one.id: (one.status, one.confidence) for one in verdict.findings}


@given(st.sampled_from(SCENARIOS), st.data())
def test_less_evidence_never_makes_surer(scenario: Scenario, data: st.DataObject) -> None:
    spec = [one for one in scenario.spec if one[0] not in _COMPLETENESS]
    plain = scenario.plain
    kept = data.draw(st.sets(st.integers(0, max(0, len(spec) - 1))))
    fewer = [one for number, one in enumerate(spec) if number in kept]
    before, after = _confidence(verdict_of(spec, plain)), _confidence(verdict_of(fewer, plain))
    if verdict_of(spec, plain).case.contradictions:
        return
    for name, (status, sure) in after.items():
        if name in _ABOUT_EVIDENCE or status is Status.UNDECIDED:
            continue
        old_status, old_sure = before.get(name, (Status.UNDECIDED, 0.0))
        if old_status is status:
            assert sure <= old_sure + 1e-9, name


@given(st.sampled_from(SCENARIOS))
def test_shuffled_evidence_gives_the_same_verdict(scenario: Scenario) -> None:
    forward = verdict_of(scenario.spec, scenario.plain)
    backward = verdict_of(scenario.spec[::-1], scenario.plain)
    assert finding(forward, scenario.id).status is finding(backward, scenario.id).status


@pytest.mark.parametrize("first,second", list(itertools.combinations(range(0, len(SCENARIOS), 9), 2)))
def test_any_mixture_is_judged_without_a_crash(first: int, second: int) -> None:
    mixed = verdict_of([*SCENARIOS[first].spec, *SCENARIOS[second].spec], SCENARIOS[first].plain)
    assert len(mixed.findings) >= len(HYPOTHESES) - 20


_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=40),
    st.sampled_from(["none", "LL", "full", "eagle3", "<b>x</b>", "random", "off", "1"]),
)
_SCOPES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["verify", "decode", "draft", "extend", "target"]),
        "position": st.integers(0, 9),
        "batch": st.integers(1, 64),
        "width": st.integers(1, 9),
        "steps": st.integers(1, 9),
        "num_bytes": st.integers(1, 10**7),
        "rank": st.integers(0, 8),
        "name": st.sampled_from(["NCCL_PROTO", "custom", "nccl", "NCCL_P2P_DISABLE", "0-1"]),
        "variant": st.sampled_from(["eager", "graph", "full", "piecewise", "window"]),
    },
)


@given(st.lists(st.tuples(st.sampled_from(list(Q)), _VALUES, _SCOPES), max_size=25))
def test_nonsense_is_bounded_and_never_crashes(evidence: list[tuple[Q, object, dict[str, object]]]) -> None:
    verdict = verdict_of([found(quantity, value, **scope) for quantity, value, scope in evidence])  # type: ignore[arg-type]
    for one in verdict.findings:
        assert 0.0 <= one.confidence <= 1.0
        assert len(one.evidence) <= 12


def test_healthy_runs_have_nothing_wrong() -> None:
    spec = [
        found(Q.ENGINE, "sglang"),
        found(Q.ENGINE_VERSION, "0.5.23"),
        found(Q.ALGORITHM, "EAGLE3"),
        found(Q.STEPS, 3),
        found(Q.NUM_DRAFT_TOKENS, 4),
        found(Q.TOPK, 1),
        found(Q.ATTENTION_BACKEND, "flashinfer"),
        found(Q.TP, 1),
        found(Q.MAX_RUNNING, 48),
        found(Q.GRAPH_MAX_REQUESTS, 48),
        found(Q.GRAPH_LOG_COMPLETE, True),
        *(found(Q.GRAPH_CAPTURED, True, phase=phase) for phase in ("verify", "draft", "extend")),
        found(Q.GRAPH_REPLAYED, True, phase="verify", times=30),
        found(Q.TOKENS_PER_CYCLE, 2.6),
        found(Q.TOKENS_PER_S, 180.0, batch=1),
        found(Q.NUM_RUNNING, 1, times=30),
        found(Q.NUM_QUEUED, 0, times=30),
    ]
    for plain in (None, [found(Q.TOKENS_PER_S, 100.0, batch=1), found(Q.ENGINE, "sglang"), found(Q.TP, 1)]):
        verdict = verdict_of(spec, plain)
        assert verdict.exit_code == 0
        assert [one.id for one in verdict.findings if one.suspect] == []
    assert "Nothing wrong was found" in verdict.answer
