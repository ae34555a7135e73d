"""`alula check`: what this machine has, what each collective backend does here, and what a model is.

Tries the backends in ranks of their own (cli/check_collectives.py); without --head it reads no weights.
"""

from __future__ import annotations

import os
import platform
from typing import Annotated, Any

import typer

from alula import __version__
from alula.cli.check_collectives import check_collectives
from alula.cli.comm_options import Collectives, CommOptions
from alula.cli.options import Json
from alula.cli.output import SCHEMA, Output
from alula.core.errors import InvalidOption


def check(
    comm: CommOptions,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Also describe this model; its weights are not read.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="HEAD", help="Check this EAGLE-3 head against MODEL; 'auto' is the one it brings."
        ),
    ] = None,
    aux_boundaries: Annotated[
        str | None, typer.Option("--aux-boundaries", metavar="LIST", help="Check the head as if it read there.")
    ] = None,
    feedback: Annotated[
        str | None, typer.Option("--feedback", help="Check the head as if it handed on pre or post its norm.")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks to try the collective backends with.")] = 2,
    collectives: Collectives = "auto",
    json_file: Json = None,
) -> None:
    """Show what this machine has, which collective backends run here, how fast, and why not."""
    with Output("check", json_file) as output:
        if tp < 2:
            raise InvalidOption(f"--tp is {tp}; one rank needs no collectives, expected 2 or more")
        if head is not None and model is None:
            raise InvalidOption("--head needs the MODEL that the head was made for; give it before the option")
        machine = _describe(model, output)
        if model is not None and head is not None:
            from alula.cli.head import check_head

            output.document["head"] = check_head(model, head, aux_boundaries, feedback, output)
            return
        parallel = comm.parallel(tp=tp, collectives=collectives)
        output.document |= check_collectives(parallel, machine["device"], model, output)


def _describe(model: str | None, output: Output) -> dict[str, Any]:
    """Shows this machine, and a model where one is named -> the machine."""
    machine = _machine()
    output.document = {"schema": SCHEMA, "command": "check", "machine": machine}
    _print_facts(output, machine)
    if model is not None:
        described = _model(model, output)
        output.document["model"] = described
        _print_facts(output, described)
    return machine


def _print_facts(output: Output, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        shown = (", ".join(map(str, value)) or "none") if isinstance(value, list) else value
        output.human.print(f"{name.replace('_', ' '):<16} {shown}", markup=False, soft_wrap=True)
    output.human.print()


def _model(name: str, output: Output) -> dict[str, Any]:
    """What the config says of a model, and over how many ranks it can be spread."""
    from alula.core.shape import parse_shape
    from alula.models.checkpoint import open_checkpoint
    from alula.models.source import resolve_source

    checkpoint = open_checkpoint(resolve_source(name, output.note))
    shape = parse_shape(checkpoint.config)
    return {
        "model": name,
        "checkpoint": checkpoint.description,
        "architecture": shape.architecture,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "heads": f"{shape.num_heads} of {shape.head_dim}, {shape.num_kv_heads} for keys and values",
        "vocabulary": shape.vocab_size,
        "context": shape.max_position,
        "possible_tp": list(shape.possible_tp()),
    }


def _machine() -> dict[str, Any]:
    import torch

    from alula.engine.device import device_name, free_memory_bytes, resolve_device

    device = resolve_device("auto")
    found = [torch.device(device.type, index) for index in range(torch.accelerator.device_count())]
    return {
        "alula": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "processor": device_name(device),
        "free_memory": f"{free_memory_bytes(device) / 2**30:.1f} GiB",
        "accelerators": [f"{index}: {device_name(accelerator)}" for index, accelerator in enumerate(found)],
    }
