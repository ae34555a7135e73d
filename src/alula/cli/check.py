"""`alula check`: what this machine has, and what each collective backend would do with a decode-sized call.

Asks the run tower's own admission tests; starts no rank and connects nothing.
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
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks to ask the collective backends about.")] = 2,
    json_file: Json = None,
) -> None:
    """Show what this machine has and which collective backends would run here, and why not."""
    with Output("check", json_file) as output:
        if tp < 2:
            raise InvalidOption(f"--tp is {tp}; one rank needs no collectives, expected 2 or more")
        machine = _machine()
        collectives = _collectives(tp, machine["device"])
        output.document = {"schema": SCHEMA, "command": "check", **machine, "tp": tp, "collectives": collectives}
        for name, value in machine.items():
            if name != "devices":
                output.human.print(f"{name.replace('_', ' '):<16} {value}", markup=False)
        for device in machine["devices"]:
            output.human.print(f"{'':<16} {device}", markup=False)
        output.human.print(_table(tp, collectives))


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
        "devices": [f"{index}: {device_name(accelerator)}" for index, accelerator in enumerate(found)],
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
