"""Experiments on real engines of tiny random models: they run, leave evidence, and leave the engine as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest

import tiny_models
from alula import LLM, SamplingParams
from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
from alula.core.errors import InvalidOption
from alula.engine.engine import Engine
from alula.explain.facts import RunFacts
from alula.lab.budget import Budget
from alula.lab.experiment import DONE, NOT_APPLICABLE
from alula.lab.experiments.attention_shapes import AttentionShapes
from alula.lab.experiments.collectives import Collectives, costs_by_cycle
from alula.lab.experiments.graphs import EagerAgainstGraph
from alula.lab.isolated import Forwards, sizes_of, time_forwards
from alula.lab.laboratory import Laboratory, Workload
from alula.lab.listening import Heard, Listener, Silence
from alula.lab.live import Live, explain_live
from alula.lab.second_engine import Served, Variation, serve
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels
from alula.profile.quantities import Quantity as Q

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
WORKLOAD = Workload(prompts=tuple(tiny_models.random_ids(12, seed) for seed in range(3)), sampling=GREEDY)


def make(family: str = "plain", tp: int = 1, **speculation: object) -> LLM:
    config = EngineConfig(
        device="cpu",
        kv_memory_bytes=8 << 20,
        max_batch=2,
        threads=None if tp > 1 else 1,
        parallel=ParallelConfig(tp=tp, rank_deadline_s=60.0),
        speculation=SpeculationConfig(steps=3, speculate="always", **speculation),  # type: ignore[arg-type]
    )
    head = tiny_models.head(family)
    return LLM(str(tiny_models.checkpoint(family)), draft=str(head), config=config)


@contextmanager
def on_device() -> Iterator[None]:
    """Engines whose cycles stay on the device, over torch's reference kernels."""
    patch = "alula.engine.setup."
    with (
        mock.patch(f"{patch}choose_kernels", lambda device, dtype: reference_kernels()),
        mock.patch(f"{patch}choose_block_kernels", lambda device, ranks: (reference_block_kernels(), None)),
    ):
        yield


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [one.token_ids for one in llm.generate(list(WORKLOAD.prompts), GREEDY)]


def statuses(live: Live) -> dict[str, str]:
    return {one.name: one.status for one in live.outcome.ran}


def found(laboratory: Laboratory) -> RunFacts:
    return RunFacts(one for sink in laboratory.sinks for run in sink.runs() for one in run)


def prepared(llm: LLM) -> Laboratory:
    """A laboratory that has served already."""
    laboratory = Laboratory(llm, WORKLOAD)
    laboratory.sizes = llm.experiment(sizes_of)[0]
    laboratory.texts = {tuple(prompt): () for prompt in WORKLOAD.prompts}
    return laboratory


@pytest.mark.parametrize("device_resident", [False, True])
def test_an_engine_is_examined_and_left_as_it_was(device_resident: bool) -> None:
    with on_device() if device_resident else mock.patch.dict({}), make() as llm:
        before = answers(llm)
        live = explain_live(llm, WORKLOAD, Budget(600.0))  # all of it is used on no machine
        assert answers(llm) == before
    assert live.outcome.fault is None and not live.outcome.interrupted
    told = statuses(live)
    for name in ("served_cycles", "width_sweep", "draft_alone", "memory_bandwidth", "other_layers"):
        assert told[name] == DONE, told
    assert told["forced_acceptance"] == DONE
    assert told["collectives"] == told["environment_proof"] == told["clocks"] == NOT_APPLICABLE
    assert told["attention_shapes"] == (DONE if device_resident else NOT_APPLICABLE)
    sums, spec = live.verdict.case.sums, live.verdict.case.spec
    assert sums.cycle_ms is not None and sums.speedup is not None
    assert sum(part.ms for part in live.verdict.waterfall) == pytest.approx(sums.cycle_ms.value)
    assert {one.scope.width for one in spec.all(Q.FORWARD_MS) if one.scope.width} == {1, 2, 3, 4}
    assert {one.scope.variant for one in spec.all(Q.CYCLE_MS)} >= {"accepted none", "accepted all"}
    assert {one.scope.phase for one in spec.all(Q.FLOOR_MS)} == {"decode", "draft", "verify", "extend"}


def test_phases_of_a_device_resident_cycle_run_eagerly_and_as_they_do() -> None:
    with on_device(), make() as llm:
        laboratory = prepared(llm)
        assert EagerAgainstGraph().refusal(laboratory) == "a CPU has no graphs"
        EagerAgainstGraph().run(laboratory, Budget(5.0).share(1.0))
        assert AttentionShapes().refusal(laboratory) is None
        AttentionShapes().run(laboratory, Budget(5.0).share(1.0))
        facts = found(laboratory)
    for variant in ("graph", "eager"):
        phases = {one.scope.phase for one in facts.all(Q.FORWARD_MS, variant=variant)}
        assert phases == {"decode", "verify", "draft", "extend"}
    assert facts.number(Q.FORWARD_MS, variant="prefill_attention") is not None


def test_what_is_served_differently_is_different() -> None:
    with make() as llm:
        laboratory = prepared(llm)
        specs = laboratory.specs("x", 2, 20, 3)
        forced: Served = llm.experiment(partial(serve, specs=specs, variation=Variation(forced=4.0)))[0]
        as_it_is: Served = llm.experiment(partial(serve, specs=specs))[0]
        other: Served = llm.experiment(partial(serve, specs=specs, variation=Variation(boundaries=(0, 2, 4))))[0]
        assert llm.experiment(sizes_of)[0].boundaries == (1, 2, 3)
    accepted = [one.accepted for cycle in forced.cycles for one in cycle.requests if one.drafted == 3]
    assert accepted and set(accepted) == {3}
    totals = [sum(one.emitted for cycle in side.cycles for one in cycle.requests) for side in (as_it_is, other)]
    assert totals == [40, 40]  # the text does not depend on the head
    assert as_it_is.heard == ()


def test_ranks_listen_to_their_collectives() -> None:
    with make("eight_heads", tp=2) as llm:
        before = answers(llm)
        live = explain_live(llm, WORKLOAD, Budget(600.0))  # all of it is used on no machine
        assert answers(llm) == before
        laboratory = prepared(llm)
        ranks = llm.experiment(partial(serve, specs=laboratory.specs("y", 1, 12, 0), listen=True))
        silent = llm.experiment(partial(time_forwards, wanted=Forwards(widths=(1, 4), rounds=3, silent=True)))
    told = statuses(live)
    assert live.outcome.fault is None
    for name in ("collectives", "collective_paths", "environment_proof", "width_sweep", "backends_left_out"):
        assert told[name] == DONE, told
    spec, plain = live.verdict.case.spec, live.verdict.case.plain
    assert {one.scope.phase for one in spec.all(Q.COLLECTIVE_MS, variant=None)} >= {"verify", "extend"}
    assert plain.number(Q.COLLECTIVE_MS, phase="decode", variant=None) is not None
    assert plain.number(Q.COLLECTIVE_MS, phase="decode", variant="alone") is not None
    for quantity in (Q.COLLECTIVE_WAIT_MS, Q.RANK_PHASE_MS):
        assert {one.scope.rank for one in spec.all(quantity)} >= {0, 1}
    assert [rank.rank for rank in ranks] == [0, 1]
    costs = list(costs_by_cycle(ranks))
    assert costs and all(min(cost.waited_ms) >= 0.0 for cost in costs)
    # Two sums a layer, the embedding's, and the gathering of logits.
    assert {len(cost.calls["verify"]) for cost in costs} == {2 * 4 + 2}
    assert [sorted(times) for times in silent] == [["target 1", "target 4"]] * 2
    finding = next(one for one in live.verdict.findings if one.id == "variables_not_in_force")
    assert finding.status.value != "confirmed"


def test_ranks_out_of_step_are_not_compared() -> None:
    call = Heard(0, "all_reduce", "verify", 64, 1.0)
    with pytest.raises(ValueError, match="zip"):
        list(costs_by_cycle([Served(rank=0, cycles=(), heard=(call,)), Served(rank=1, cycles=())]))


def test_collectives_of_graphs_are_not_listened_to() -> None:
    with make() as llm:
        laboratory = prepared(llm)
    assert Collectives().refusal(laboratory) == "there is one rank"


def test_an_experiment_needs_an_idle_engine() -> None:
    with make() as llm:
        stream = llm.stream(WORKLOAD.prompts[0], GREEDY)
        next(stream)
        with pytest.raises(InvalidOption, match="1 requests are running"):
            llm.experiment(sizes_of)
        stream.close()
        llm.step()
        assert llm.experiment(sizes_of)[0].target.num_layers == 4
    with pytest.raises(InvalidOption, match="closed"):
        llm.experiment(sizes_of)


def test_ears_and_silence_leave_a_group_as_it_was() -> None:
    def look(engine: Engine) -> tuple[bool, bool]:
        group = engine.parts.group
        with Listener(group, []), Silence(group):
            patched = "all_reduce" in vars(group)
        return patched, any(name in vars(group) for name in ("all_reduce", "all_gather"))

    with make() as llm:
        assert llm.experiment(look) == [(True, False)]
