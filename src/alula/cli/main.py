"""The entry point: dispatches to a command and turns every outcome into an exit code, in this one place.

0 fine, 1 a fault of ours or of the machine, 2 something the user can change, 3 speculation does not pay (`explain`),
130 Ctrl-C. Commands raise; only this file exits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Annotated

import typer

from alula import __version__
from alula.cli import bench, check, collect, explain, run
from alula.cli.arguments import spread_values
from alula.cli.options import grouped
from alula.cli.output import Stdout, StdoutClosed
from alula.cli.start import INTERRUPTED
from alula.core.errors import AlulaError, InvalidOption, MissingExtra

FINE = 0
# Modules of the extra `run`: the base install does without them.
RUN_EXTRA = ("torch", "numpy", "safetensors", "tokenizers", "transformers", "huggingface_hub", "gguf", "jinja2")
# typer may bring its own copy of click; the base class of its errors is reached through what it exports.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="alula",
    help="EAGLE-3 speculative decoding that accounts for every millisecond.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(grouped(run.run))
app.command("bench")(grouped(bench.bench))
app.command("check")(grouped(check.check))
app.command("collect")(grouped(collect.collect))
app.command("explain")(grouped(explain.explain))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"alula {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(InvalidOption.exit_code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    _hold_standard_files()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 shows "?" instead of ending the answer
            stream.reconfigure(errors="replace")
    arguments = spread_values(sys.argv[1:] if argv is None else argv)
    try:
        if sys.stdout is None:  # closed before we started
            return _run(arguments)
        with redirect_stdout(Stdout(sys.stdout)):
            return _run(arguments)
    finally:
        _flush_stdout()


def _run(arguments: list[str]) -> int:
    try:
        code = typer.main.get_command(app)(arguments, prog_name="alula", standalone_mode=False)
    except StdoutClosed:
        return FINE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (AlulaError, ModuleNotFoundError, _ParserError) as error:
        known = _as_ours(error)
        if known is None:
            raise
        _complain(f"error: {known}")
        return known.exit_code
    if code == INTERRUPTED:  # also how typer reports a Ctrl-C that a command let through
        _complain("interrupted")
    return code if isinstance(code, int) else FINE


def _as_ours(error: Exception) -> AlulaError | None:
    if isinstance(error, AlulaError):
        return error
    if isinstance(error, _ParserError):
        return InvalidOption(f"{error.format_message()}\n{_hint(error)}")  # type: ignore[attr-defined]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in RUN_EXTRA:
        return MissingExtra(
            f"{error.name} is not installed, and this command needs it: install alula's extra `run` "
            "(in a checkout: pip install '.[run]')"
        )
    return None


def _hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path if context else 'alula'} --help` lists what there is."


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(f"alula: {text}", file=sys.stderr)


def _hold_standard_files() -> None:
    """Opens /dev/null in place of a closed stdin, stdout or stderr, so that no file of ours takes its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free number
        continue
    os.close(descriptor)


def _flush_stdout() -> None:
    """What a full disk or a closed pipe refuses goes nowhere, instead of failing once more when Python exits."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
