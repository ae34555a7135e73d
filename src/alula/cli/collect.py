"""`alula collect`: gathers what `alula explain --from` wants on a box that runs another engine, into one archive.

Shows what it took and what it could not have. Needs no torch and changes nothing on the box.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from alula.cli.explain import checked_url
from alula.cli.options import Json
from alula.cli.output import SCHEMA, Output, check_writable

if TYPE_CHECKING:
    from alula.explain.collect import Collected


def collect(
    pid: Annotated[
        list[int] | None,
        typer.Option(
            "--pid", metavar="PID...", help="The engine's main processes; their workers are found. Default: search."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Also ask this running server: http://127.0.0.1:30000."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="FILE...", help="Also take the start and the end of these logs."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The archive. Default: alula-collect-TIME.tar.gz.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Gather evidence about a running engine into one archive, secrets left out."""
    with Output("collect", json_file) as output:
        path = out or Path(time.strftime("alula-collect-%Y%m%d-%H%M%S.tar.gz"))
        check_writable("--out", path)
        if url is not None:
            checked_url(url)
        from alula.explain.collect import collect as gather
        from alula.explain.collect import write_archive

        collected = gather(pid or (), url, log or (), output.note)
        write_archive(collected, path)
        output.document = {
            "schema": SCHEMA,
            "command": "collect",
            "archive": str(path),
            "taken": [{"name": item.name, "characters": len(item.text)} for item in collected.taken],
            "missing": [{"name": item.name, "reason": item.problem} for item in collected.items if item.problem],
            "num_replaced": collected.num_replaced,
        }
        _show(output, collected, path)


def _show(output: Output, collected: Collected, path: Path) -> None:
    table = Table("what", "characters", "", title="Collected", title_justify="left")
    for item in collected.items:
        table.add_row(item.name, "-" if item.problem else str(len(item.text)), item.problem)
    output.human.print(table)
    output.human.print(
        f"{path}: look into it before you send it (tar -xzf). {collected.num_replaced} secrets and addresses were "
        f"replaced.\nalula explain --from {path} reads it.",
        markup=False,
        soft_wrap=True,
    )
