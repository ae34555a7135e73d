"""`alula bench`: plain and EAGLE-3 on the same prompts, a table, JSON and a page. Measures nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.cli.engine import open_engine
from alula.cli.options import Budget, EngineOptions, Json, Model, Raw, SamplingOptions
from alula.cli.output import Output, check_writable, write_file
from alula.cli.run import deadline_of
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.bench.compare import Measurement, Workload
    from alula.bench.prompts import Prompt
    from alula.core.records import RunRecord

Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE...",
        help="JSONL (prompt, messages or turns) or text, one prompt a line; default: 24 MT-bench first turns.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page.")]


def bench(
    model: Model,
    engine: EngineOptions,
    sampling: SamplingOptions,
    prompts: Prompts = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N prompts.", metavar="N")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    raw: Raw = False,
    json_file: Json = None,
    html: Html = None,
    budget: Budget = None,
) -> None:
    """Decode the same prompts plainly and with EAGLE-3, and say where every millisecond went."""
    from alula.bench.compare import Workload, measure

    deadline = deadline_of(budget)
    with Output("bench", json_file) as output:
        if html is not None:
            check_writable("--html", html)
        chosen = _choose(prompts, limit, raw)
        params = sampling.params(seed=engine.seed, max_tokens=max_tokens)
        with open_engine(model, engine, output) as llm:
            described = llm.describe()
            workload = Workload(
                prompts=chosen, sampling=params, raw=raw, drafting=described.draft is not None, deadline=deadline
            )
            with output.progress("prompts", len(chosen)) as advance:
                measurement = measure(llm, workload, advance)
            _report(output, described, workload, measurement, html)


def _choose(files: list[Path] | None, limit: int | None, raw: bool) -> tuple[Prompt, ...]:
    from alula.bench.prompts import load_all

    if limit is not None and limit < 1:
        raise InvalidOption(f"--limit is {limit}; expected 1 or more")
    chosen = load_all(files or ())[:limit]
    if raw:
        for prompt in chosen:
            prompt.raw_text()
    return chosen


def _report(
    output: Output, described: RunRecord, workload: Workload, measurement: Measurement, html: Path | None
) -> None:
    """Everything measured is shown and written, then an error or Ctrl-C that cut it short goes on its way."""
    from alula.bench.document import document
    from alula.bench.page import page
    from alula.bench.report import sentences, table
    from alula.bench.results import summarise

    figures = summarise(measurement.runs, described.steps)
    output.document = document(described, workload, measurement, figures)
    if measurement.runs:
        output.human.print(table(described, figures))
        output.human.print("\n".join(sentences(figures, measurement)), markup=False, soft_wrap=True)
        if html is not None:
            write_file(html, page(described, figures, measurement, output.document))
    if measurement.fault is not None:
        raise measurement.fault
    if measurement.stopped == "interrupted":
        raise KeyboardInterrupt
    if not measurement.runs:
        raise InvalidOption(f"no prompt could be measured; the first one: {measurement.skipped[0].error}")
