"""`alula explain`: why speculation is slower than plain decoding, or that it is not. Judges nothing itself.

Foreign evidence (--from), typed numbers and comparisons need no torch; the live form (MODEL) measures with the lab.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from alula.cli.explain_live import LiveOptions, live
from alula.cli.options import EngineOptions, Json, OptionalModel, SamplingOptions
from alula.cli.output import Output, check_writable, write_file
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.explain.typed import Typed
    from alula.explain.verdict import Verdict
    from alula.lab.runner import Outcome

_TYPED = "Numbers typed by hand"
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="FILE...",
        help="Logs, commands, bench tables, traces, environments of the run that speculates; '-' is stdin.",
    ),
]
Baseline = Annotated[
    list[str] | None,
    typer.Option("--baseline", metavar="FILE...", help="The same of the run without speculation."),
]
Compare = Annotated[
    list[str] | None,
    typer.Option("--compare", metavar="A B", help="Two record files (or logs): each number of both, side by side."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Also ask this running SGLang, vLLM or alula server for what it says."
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page.")]


def _number(name: str, text: str, metavar: str = "N") -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=_TYPED)


@dataclass(frozen=True, kw_only=True)
class TypedOptions:
    """What the user knows without a file."""

    plain_tps: Annotated[float | None, _number("--plain-tps", "Tokens/s without speculation.")] = None
    spec_tps: Annotated[float | None, _number("--spec-tps", "Tokens/s with speculation.")] = None
    steps: Annotated[int | None, _number("--steps", "Drafts a cycle (k).")] = None
    tokens_per_cycle: Annotated[
        float | None, _number("--tokens-per-cycle", "Accepted drafts + 1, as a mean over cycles.")
    ] = None
    plain_ms: Annotated[float | None, _number("--plain-ms", "Milliseconds of a plain step.")] = None
    verify_ms: Annotated[float | None, _number("--verify-ms", "Milliseconds of a verify.")] = None
    draft_ms: Annotated[float | None, _number("--draft-ms", "Milliseconds of a cycle's drafting.")] = None
    cycle_ms: Annotated[float | None, _number("--cycle-ms", "Milliseconds of a whole cycle.")] = None
    model_name: Annotated[str | None, _number("--model", "The target's name.", "NAME")] = None
    gpu: Annotated[str | None, _number("--gpu", "The GPU's name.", "NAME")] = None
    tp: Annotated[int | None, _number("--tp", "Ranks.")] = None
    batch: Annotated[int | None, _number("--batch", "Requests at once.")] = None

    def typed(self) -> Typed:
        """As the reason tower takes them. Raises InvalidOption for numbers that no run can have."""
        from alula.explain.typed import Typed

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Typed(model=values.pop("model_name"), **values)


_LIVE_TOO = ("steps", "tp", "tokens_per_cycle")  # typed numbers that are options of an engine as well


def explain(
    numbers: TypedOptions,
    engine: EngineOptions,
    sampling: SamplingOptions,
    here: LiveOptions,
    model: OptionalModel = None,
    from_files: Files = None,
    baseline: Baseline = None,
    url: Url = None,
    compare: Compare = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Say why speculation is slower than plain decoding: of MODEL by experiments here, or from logs of any engine."""
    with Output("explain", json_file) as output:
        if html is not None:
            check_writable("--html", html)
        if compare:
            _compare(output, compare)
            return
        given = [*(from_files or []), *(baseline or []), *([url] if url else [])]
        found = None
        if model is not None or here.shape is not None:
            _refuse_mixture(numbers, given)
            found = live(output, engine, sampling, model, here)
            verdict = found.verdict
        else:
            verdict = _from_evidence(output, numbers, from_files or [], baseline or [], url)
        _show(output, verdict, html)
        if found is not None:
            _show_run(output, found.outcome)
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _show_run(output: Output, outcome: Outcome) -> None:
    """What became of each experiment; an interrupt goes on its way once everything is written."""
    if outcome.ran:
        output.document["facts"]["experiments"] = to_builtins(outcome.ran)
    if outcome.interrupted:
        raise KeyboardInterrupt


def _refuse_mixture(numbers: TypedOptions, sources: list[str]) -> None:
    if sources:
        raise InvalidOption(f"a model is measured here, or {sources[0]} is read (--from); expected one of the two")
    typed = [name for name in vars(numbers) if getattr(numbers, name) is not None and name not in _LIVE_TOO]
    if typed:
        raise InvalidOption(
            f"--{typed[0].removesuffix('_name').replace('_', '-')} is for --from and typed numbers; a model that is "
            "measured needs none"
        )


def _from_evidence(
    output: Output, numbers: TypedOptions, from_files: list[str], baseline: list[str], url: str | None
) -> Verdict:
    typed = numbers.typed()
    sources = [*from_files, *([] if url is None else [checked_url(url)])]
    if not (sources or baseline or typed.given):
        raise InvalidOption(
            "nothing to explain: give MODEL to measure one here, --from FILE... (and --baseline FILE...), numbers such "
            "as --plain-tps and --spec-tps, or --compare A B"
        )
    return _judge(output, sources, baseline, typed)


def checked_url(url: str) -> str:
    """The address as it stands. Raises InvalidOption for what is none."""
    if not url.startswith(("http://", "https://")):
        raise InvalidOption(f"--url is {url!r}; expected a server's address, such as http://127.0.0.1:30000")
    return url


def _judge(output: Output, from_files: list[str], baseline: list[str], typed: Typed) -> Verdict:
    from alula.explain.judge import explain as judged
    from alula.explain.readers.inputs import read_inputs
    from alula.profile.evidence import Label

    sinks = read_inputs(from_files, Label.UNKNOWN, output.note) if from_files else []
    sinks += read_inputs(baseline, Label.BASELINE, output.note) if baseline else []
    verdict = judged(sinks, typed)
    for sink in sinks:
        if not sink.recognised:
            output.note(f"{sink.source}: nothing recognised")
    return verdict


def _show(output: Output, verdict: Verdict, html: Path | None) -> None:
    from alula.explain.report.terminal import print_verdict
    from alula.explain.verdict import as_document

    output.document = as_document(verdict)
    print_verdict(output.human, verdict)
    if html is not None:
        from alula.explain.report.page import page

        write_file(html, page(verdict))


def _compare(output: Output, names: list[str]) -> None:
    from alula.explain.readers.inputs import read_inputs
    from alula.explain.report.terminal import print_comparison
    from alula.profile.comparison import compare
    from alula.profile.evidence import Label

    if len(names) != 2:
        raise InvalidOption(f"--compare takes two files, found {len(names)}: --compare A B")
    sides = [
        [one for sink in read_inputs([name], Label.UNKNOWN, output.note) for run in sink.runs() for one in run]
        for name in names
    ]
    differences = compare(sides[0], sides[1])
    output.document = {
        "schema": 1,
        "command": "explain --compare",
        "files": names,
        "differences": [
            {
                "quantity": one.quantity.value,
                "scope": one.scope.words(),
                "left": one.left.number,
                "right": one.right.number,
                "ratio": one.ratio,
                "apart": one.apart,
            }
            for one in differences
        ],
    }
    if not differences:
        raise InvalidOption(
            f"{names[0]} and {names[1]} have no number in common; expected record files of two runs"
        )
    print_comparison(output.human, differences, (names[0], names[1]))
