"""`alula bench`: plain and EAGLE-3 on the same prompts, a table, JSON and a page. Measures nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli.engine import open_engine
from alula.cli.options import Budget, EngineOptions, Json, OptionalModel, Raw, SamplingOptions, Shape
from alula.cli.output import Output, check_writable, write_file
from alula.cli.run import deadline_of
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.bench.compare import Measurement, Workload
    from alula.bench.prompts import Prompt
    from alula.core.dispatch_paths import Collectives
    from alula.core.records import RunRecord
    from alula.engine.llm import LLM
    from alula.models.source import ModelSource

# Of a shape, where --limit and --prompt-tokens are not given.
_RANDOM_PROMPTS, _PROMPT_TOKENS = 4, 512

Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE...",
        help="JSONL (prompt, messages or turns) or text, one prompt a line; default: 24 MT-bench first turns.",
    ),
]
PromptTokens = Annotated[
    int | None, typer.Option(help=f"With --shape: random ids a prompt; default {_PROMPT_TOKENS}.", metavar="N")
]
Limit = Annotated[
    int | None, typer.Option(help=f"Only N prompts; with --shape, default {_RANDOM_PROMPTS}.", metavar="N")
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page.")]


def bench(
    engine: EngineOptions,
    sampling: SamplingOptions,
    model: OptionalModel = None,
    shape: Shape = None,
    prompts: Prompts = None,
    prompt_tokens: PromptTokens = None,
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    raw: Raw = False,
    json_file: Json = None,
    html: Html = None,
    budget: Budget = None,
) -> None:
    """Decode the same prompts plainly and with EAGLE-3, and say where every millisecond went."""
    from msgspec.structs import replace

    from alula.bench.compare import Workload, measure

    deadline = deadline_of(budget)
    with Output("bench", json_file) as output:
        if html is not None:
            check_writable("--html", html)
        target = _target(model, shape)
        chosen = _choose(target, prompts, limit, raw, prompt_tokens, engine.seed)
        textless = shape is not None or engine.tokens_per_cycle is not None
        workload = Workload(
            prompts=chosen,
            sampling=sampling.params(seed=engine.seed, max_tokens=max_tokens, ignore_eos=textless),
            raw=raw,
            textless=textless,
            forced_tokens_per_cycle=engine.tokens_per_cycle,
            deadline=deadline,
        )
        with open_engine(target, engine, output) as llm:
            described = llm.describe()
            workload = replace(workload, drafting=described.draft is not None)
            with output.progress("prompts", len(chosen)) as advance:
                measurement = measure(llm, workload, advance)
            _report(output, described, workload, measurement, _collectives(llm, measurement), html)


def _collectives(llm: LLM, measurement: Measurement) -> Collectives | None:
    """What became of the collectives; None on a single rank, and where the run was cut short and ranks may be gone."""
    return llm.collectives() if measurement.stopped in (None, "budget") else None


def _target(model: str | None, shape: str | None) -> str | ModelSource:
    """The model's name, or a source of random weights."""
    if (model is None) == (shape is None):
        found = "neither" if model is None else "both"
        raise InvalidOption(f"expected MODEL or --shape, one of the two; found {found}")
    if shape is None:
        assert model is not None
        return model
    from alula.models.source import resolve_shape

    return resolve_shape(shape)


def _choose(
    target: str | ModelSource,
    files: list[Path] | None,
    limit: int | None,
    raw: bool,
    prompt_tokens: int | None,
    seed: int,
) -> tuple[Prompt, ...]:
    """Text for a model; random token ids for a shape, which has no tokenizer."""
    from alula.bench.prompts import load_all, random_prompts

    for option, count in (("--limit", limit), ("--prompt-tokens", prompt_tokens)):
        if count is not None and count < 1:
            raise InvalidOption(f"{option} is {count}; expected 1 or more")
    if not isinstance(target, str):
        if files or raw:
            option = "--prompts" if files else "--raw"
            raise InvalidOption(
                f"{option} needs text, and --shape has none; its prompts are --prompt-tokens random ids"
            )
        assert target.shape_config is not None
        vocab_size: int = target.shape_config["vocab_size"]
        return random_prompts(limit or _RANDOM_PROMPTS, prompt_tokens or _PROMPT_TOKENS, vocab_size, seed)
    if prompt_tokens is not None:
        raise InvalidOption("--prompt-tokens is for --shape; a model answers text (--prompts)")
    chosen = load_all(files or ())[:limit]
    if raw:
        for prompt in chosen:
            prompt.raw_text()
    return chosen


def _report(
    output: Output,
    described: RunRecord,
    workload: Workload,
    measurement: Measurement,
    collectives: Collectives | None,
    html: Path | None,
) -> None:
    """Everything measured is shown and written, then an error or Ctrl-C that cut it short goes on its way."""
    from alula.bench.collectives_report import collective_sentences, path_table
    from alula.bench.document import document
    from alula.bench.graph_report import graph_sentences
    from alula.bench.page import page
    from alula.bench.report import sentences, table
    from alula.bench.results import summarise

    figures = summarise(measurement.runs, described.steps, workload.forced_tokens_per_cycle)
    output.document = document(described, workload, measurement, figures, collectives)
    if measurement.runs:
        output.human.print(table(described, figures))
        said = [*sentences(figures, measurement), *graph_sentences(described, figures)]
        if collectives is not None:
            output.human.print(path_table(collectives))
            said += collective_sentences(collectives)
        output.human.print("\n".join(said), markup=False, soft_wrap=True)
        if html is not None:
            write_file(html, page(described, figures, measurement, output.document, collectives))
    if measurement.fault is not None:
        raise measurement.fault
    if measurement.stopped == "interrupted":
        raise KeyboardInterrupt
    if not measurement.runs:
        raise InvalidOption(f"no prompt could be measured; the first one: {measurement.skipped[0].error}")
