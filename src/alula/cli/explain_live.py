"""The live form of `alula explain`: opens an engine, lets the lab measure it, returns the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli.bench import Limit, Prompts, PromptTokens, _choose, _target
from alula.cli.engine import open_engine
from alula.cli.options import Budget, EngineOptions, Raw, SamplingOptions, Shape
from alula.cli.output import Output
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.lab.live import Live


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """What to measure here, with which prompts, for how long."""

    shape: Shape = None
    prompts: Prompts = None
    prompt_tokens: PromptTokens = None
    limit: Limit = None
    max_tokens: Annotated[int, typer.Option(help="Live: longest answer.")] = 128
    raw: Raw = False
    budget: Budget = None


def live(
    output: Output, engine: EngineOptions, sampling: SamplingOptions, model: str | None, asked: LiveOptions
) -> Live:
    """The verdict and what became of each experiment. A fault after the first measurement is said and judged around.

    What is served drafts always: whether that pays is what is asked. Raises UserErrors as `alula bench` does.
    """
    if asked.budget is not None and not asked.budget > 0:
        raise InvalidOption(f"--budget is {asked.budget:g}; expected seconds above 0")
    if asked.max_tokens < 1:
        raise InvalidOption(f"--max-tokens is {asked.max_tokens}; expected 1 or more")
    if engine.speculate != "never":
        engine = replace(engine, speculate="always")
    target = _target(model, asked.shape)
    chosen = _choose(target, asked.prompts, asked.limit, asked.raw, asked.prompt_tokens, engine.seed)
    textless = asked.shape is not None or engine.tokens_per_cycle is not None
    from alula.lab.budget import CPU_SECONDS, GPU_SECONDS
    from alula.lab.budget import Budget as Seconds
    from alula.lab.laboratory import Workload
    from alula.lab.live import explain_live

    workload = Workload(
        prompts=tuple(
            list(one.token_ids) if one.token_ids else one.raw_text() if asked.raw else list(one.messages)
            for one in chosen
        ),
        sampling=sampling.params(seed=engine.seed, max_tokens=asked.max_tokens, ignore_eos=textless),
        textless=textless,
    )
    with open_engine(target, engine, output) as llm:
        usual = GPU_SECONDS if llm.describe().device == "cuda" else CPU_SECONDS
        found = explain_live(llm, workload, Seconds(asked.budget or usual), output.note)
    if found.outcome.fault is not None:
        if found.verdict.case.empty:
            raise found.outcome.fault
        output.note(f"alula: error: {found.outcome.fault}; the verdict rests on what was measured before")
    return found
