"""`alula check`: what this machine has, what each collective backend would do, and what a model is.

Asks the run tower's own admission tests; starts no rank, connects nothing and, without --head, reads no weights.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from alula import __version__
from alula.cli.options import Json
from alula.cli.output import SCHEMA, Output
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.comm.call import CollectiveCall

# One row of a hidden state, as each layer of a decode step reduces it: a small model's, and a block of a large one's.
_SAMPLE_BYTES = (1152, 114_688)


def check(
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
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks to ask the collective backends about.")] = 2,
    json_file: Json = None,
) -> None:
    """Show what this machine has, which collective backends would run here, and why not."""
    with Output("check", json_file) as output:
        if tp < 2:
            raise InvalidOption(f"--tp is {tp}; one rank needs no collectives, expected 2 or more")
        if head is not None and model is None:
            raise InvalidOption("--head needs the MODEL that the head was made for; give it before the option")
        machine = _machine()
        output.document = {"schema": SCHEMA, "command": "check", "machine": machine}
        _print_facts(output, machine)
        if model is not None:
            described = _model(model, output)
            output.document["model"] = described
            _print_facts(output, described)
        if model is not None and head is not None:
            from alula.cli.head import check_head

            output.document["head"] = check_head(model, head, aux_boundaries, feedback, output)
            return
        collectives = _collectives(tp, machine["device"])
        output.document |= {"tp": tp, "collectives": collectives}
        output.human.print(_table(tp, collectives))


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


def _collectives(num_ranks: int, device: str) -> list[dict[str, Any]]:
    """For each sample call and backend: admitted, or the reason why not. The first that is admitted would run."""
    from alula.comm.backends.shared_memory import SharedMemoryBackend
    from alula.comm.backends.torch_distributed import TorchDistributedBackend
    from alula.comm.segment import Segment, create_segment_file

    segment = Segment(create_segment_file(num_ranks))
    backends = (SharedMemoryBackend(segment, 0, 1.0), TorchDistributedBackend(segment, 0, device, 1.0))
    asked = []
    for call in _sample_calls(num_ranks, device):
        for backend in backends:
            reason = backend.admits(call).reason
            asked.append({"op": call.op, "bytes": call.num_bytes, "backend": backend.name, "refused": reason})
    return asked


def _sample_calls(num_ranks: int, device: str) -> list[CollectiveCall]:
    from alula.comm.call import CollectiveCall

    return [
        CollectiveCall(
            op=op,
            num_bytes=size,
            dtype="bfloat16",
            aligned=True,
            num_ranks=num_ranks,
            phase="verify",
            device=device,
        )
        for op in ("all_reduce", "all_gather")
        for size in _SAMPLE_BYTES
    ]


def _table(num_ranks: int, collectives: list[dict[str, Any]]) -> Table:
    table = Table(
        "call", "bytes", "backend", "here", title=f"Collectives over {num_ranks} ranks", title_justify="left"
    )
    for row in collectives:
        table.add_row(row["op"], str(row["bytes"]), row["backend"], row["refused"] or "yes")
    return table
