"""An engine of a shape without weights, and one whose acceptance is forced: what is computed, counted and said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tiny_models
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.errors import InvalidOption, ModelNotFound, UserError
from alula.core.sampling import SamplingParams
from alula.engine.llm import LLM
from alula.engine.model_choice import choose_model
from alula.models.source import resolve_shape, resolve_source
from alula.spec.forced import forced_acceptance, forced_count

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=3)
SMALL = {"dtype": "float32", "device": "cpu", "context_tokens": 96, "page_tokens": 4, "max_batch": 4, "threads": 1}
PROMPTS = [tiny_models.random_ids(n, seed) for seed, n in enumerate((9, 14, 5))]
FORCED = 2.4


def config(**speculation: Any) -> EngineConfig:
    return EngineConfig(speculation=SpeculationConfig(speculate="always", **speculation), **SMALL)


@pytest.fixture(scope="module")
def forced() -> Iterator[LLM]:
    head = str(tiny_models.head("plain", "bigram"))
    loaded = LLM(
        str(tiny_models.checkpoint("plain")), draft=head, config=config(steps=3, forced_tokens_per_cycle=FORCED)
    )
    with loaded:
        yield loaded


@pytest.fixture(scope="module")
def free() -> Iterator[LLM]:
    head = str(tiny_models.head("plain", "bigram"))
    with LLM(str(tiny_models.checkpoint("plain")), draft=head, config=config(steps=3)) as loaded:
        yield loaded


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_accepted_counts_come_from_the_table(forced: LLM, sampling: SamplingParams) -> None:
    forced.take_cycles()
    before = forced._num_requests
    completions = forced.generate(PROMPTS, sampling)
    table = forced_acceptance(FORCED, 3, seed=0)
    decoded = [cycle for cycle in forced.take_cycles() if not any(r.num_prefill for r in cycle.requests)]
    assert decoded and {cycle.exactness for cycle in decoded} == {"acceptance_forced"}
    for index, completion in enumerate(completions):
        name = completion.request.request_id
        mine = [r for cycle in decoded for r in cycle.requests if r.request_id == name and r.drafted]
        arrival = before + index + 1
        assert [r.accepted for r in mine] == [
            forced_count(table, arrival, place, r.drafted) for place, r in enumerate(mine)
        ]
        assert len(completion.token_ids) == 40


def test_plain_requests_are_left_alone(forced: LLM, free: LLM) -> None:
    assert [c.token_ids for c in forced.generate(PROMPTS, GREEDY, steps=0)] == [
        c.token_ids for c in free.generate(PROMPTS, GREEDY, steps=0)
    ]


def test_rows_are_computed_as_always(forced: LLM, free: LLM) -> None:
    """The prompt's token and the first of the first cycle are still the model's own; widths stay k + 1."""
    short = msgspec.structs.replace(GREEDY, max_tokens=9)
    forced.take_cycles()
    (one,), (other,) = (llm.generate([PROMPTS[0]], short) for llm in (forced, free))
    assert one.token_ids[:2] == other.token_ids[:2]
    widths = [r.width for cycle in forced.take_cycles() for r in cycle.requests if not r.num_prefill]
    assert widths[0] == 4 and all(width <= 4 for width in widths)


def test_fewer_steps_cap_the_count(forced: LLM) -> None:
    forced.take_cycles()
    forced.generate([PROMPTS[0]], GREEDY, steps=1)
    rows = [r for cycle in forced.take_cycles() for r in cycle.requests if r.drafted]
    assert {row.drafted for row in rows} == {1} and {row.accepted for row in rows} == {1}  # of 1 or 2


def test_forced_is_told(forced: LLM, free: LLM) -> None:
    assert forced.describe().facts["forced_tokens_per_cycle"] == FORCED and not forced.describe().exact
    assert free.describe().facts["forced_tokens_per_cycle"] is None and free.describe().exact


def test_a_shape_decodes_ids_only() -> None:
    source = resolve_shape(str(tiny_models.checkpoint("group4_llama3")))
    with LLM(source, config=config(steps=2)) as llm:
        assert llm.describe().draft == "random" and llm.config.speculation.head == "random"
        plain, drafted = (llm.generate(PROMPTS, SAMPLED, steps=steps) for steps in (0, None))
        assert [c.token_ids for c in plain] == [c.token_ids for c in drafted]
        assert {c.text for c in plain} == {""} and {c.finish_reason for c in plain} == {"length"}
        assert len({token for c in plain for token in c.token_ids}) > 20  # not a constant
        for prompt in ("text", [{"role": "user", "content": "x"}]):
            with pytest.raises(UserError, match="has no tokenizer"):
                llm.generate([prompt], GREEDY)


def test_choices() -> None:
    shape, model = resolve_shape("smollm2-135m"), resolve_source(str(tiny_models.checkpoint("plain")))
    plain = choose_model(shape, None, EngineConfig())
    assert plain.draft_name is None and plain.config.speculation.head == "trained"
    auto = choose_model(shape, "auto", EngineConfig())
    assert (auto.head, auto.draft_name, auto.config.speculation.head) == (None, "random", "random")
    assert auto.model_name == "smollm2-135m (a shape with random weights)"
    against = choose_model(shape, "auto", EngineConfig(speculation=SpeculationConfig(head="adversarial")))
    assert against.draft_name == "adversarial"
    folder = tiny_models.head("plain", "bigram")
    given = choose_model(model, str(folder), EngineConfig())
    assert (given.head, given.draft_name, given.model_name) == (folder, str(folder), model.name)
    assert choose_model(model, "auto", EngineConfig()).draft_name is None


@pytest.mark.parametrize("draft", [None, "auto"])
def test_forcing_without_a_head_is_refused(draft: str | None) -> None:
    with pytest.raises(InvalidOption, match=r"--tokens-per-cycle 2\.0 .* nothing drafts here"):
        LLM(str(tiny_models.checkpoint("plain")), draft=draft, config=config(forced_tokens_per_cycle=2.0))


def test_a_head_that_is_not_there() -> None:
    with pytest.raises(ModelNotFound):
        choose_model(resolve_shape("smollm2-135m"), "/nowhere/head", EngineConfig())
