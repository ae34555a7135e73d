"""The part of `alula check` about ranks: what each collective backend says, does and costs here, and what would be
chosen. Tries them in ranks of their own, as the start of an engine does; measures nothing itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from alula.cli.output import Output

if TYPE_CHECKING:
    from alula.comm.environment_plan import EnvironmentPlan
    from alula.comm.table import MeasuredTable
    from alula.comm.topology import Topology
    from alula.comm.tuning_plan import Message
    from alula.core.config import ParallelConfig
    from alula.engine.comm_trial import Trial, Verdict

# Without a model: rows of a hidden state from a small model's single token to a block of a large one's.
_SAMPLE_BYTES = (1152, 14_336, 57_344, 114_688, 917_504)


def check_collectives(parallel: ParallelConfig, device: str, model: str | None, output: Output) -> dict[str, Any]:
    """Prints the tables, writes the profile where one is named and is not there, and returns the part of the document.

    Raises InvalidOption for options that no run would take, before anything is tried."""
    from alula.cli.environment_table import environment_table
    from alula.comm.topology import detect_topology
    from alula.engine.comm_trial import try_backends

    plan, messages, path, known = _prepared(parallel, device, model, output)
    trial = try_backends(plan, messages, output.note, known=known)
    topology = detect_topology() if device == "cuda" else None
    output.human.print(
        "links: none, ranks on a CPU share memory" if topology is None else _links(topology),
        markup=False,
        soft_wrap=True,
    )
    output.human.print(_verdict_table(parallel.tp, trial.verdicts))
    output.human.print(environment_table(trial.environment))
    document = _document(parallel, topology, trial, messages)
    document |= _show_times(trial, known is not None, output)
    if path is not None and trial.table is not None and known is None and not parallel.without:
        _write_profile(path, plan, messages, trial.table, output)
    return document


def _document(
    parallel: ParallelConfig, topology: Topology | None, trial: Trial, messages: tuple[Message, ...]
) -> dict[str, Any]:
    import msgspec

    from alula.cli.environment_table import environment_document

    return {
        "tp": parallel.tp,
        "dtype": messages[0].dtype,
        "topology": None if topology is None else msgspec.to_builtins(topology),
        "environment": environment_document(trial.environment),
        "collectives": [
            {"op": v.message.op, "bytes": v.message.num_bytes, "backend": v.backend, "refused": v.reason}
            for v in trial.verdicts
        ],
        "nccl_says": [msgspec.to_builtins(said) for said in trial.spoken],
        "chosen": [
            {"op": c.message.op, "bytes": c.message.num_bytes, "backend": c.backend, "rule": c.rule}
            for c in trial.choices
        ],
    }


def _prepared(
    parallel: ParallelConfig, device: str, model: str | None, output: Output
) -> tuple[EnvironmentPlan, tuple[Message, ...], Path | None, MeasuredTable | None]:
    """The plan, the messages, and the profile that is named with what it holds."""
    from alula.comm.backends.builtin import check_collectives as check_name
    from alula.comm.host_plan import plan_for_host
    from alula.comm.stored_profile import load_profile
    from alula.core.environment import inherited
    from alula.engine.comm_settling import leaving_out, profile_key, profile_path

    check_name(parallel.collectives)
    leaving_out(parallel)
    for option, given in (("--nccl", bool(parallel.nccl)), ("--share-gpus", parallel.share_gpus)):
        if given and device == "cpu":
            output.note(f"{option} has no effect on ranks of a CPU")
    plan = plan_for_host(parallel, device, inherited())
    messages = _messages(model, parallel, device, output)
    path = profile_path(parallel)
    known = None if path is None else load_profile(path, profile_key(plan, messages[0].dtype))
    return plan, messages, path, known


def _write_profile(
    path: Path, plan: EnvironmentPlan, messages: tuple[Message, ...], table: MeasuredTable, output: Output
) -> None:
    from alula.comm.stored_profile import save_profile
    from alula.engine.comm_settling import profile_key

    save_profile(path, profile_key(plan, messages[0].dtype), table)
    output.note(f"wrote {path}")


def _show_times(trial: Trial, stored: bool, output: Output) -> dict[str, Any]:
    import msgspec

    from alula.comm.table import crossovers

    output.human.print(_choice_table(trial))
    for said in trial.spoken:
        told = f"{said.collective or 'a collective'} of {said.num_bytes} bytes: {said.algorithm} {said.protocol}"
        output.human.print(f"NCCL says: {told}", markup=False, soft_wrap=True)
    if trial.table is None:
        return {}
    crossings = crossovers(trial.table)
    if trial.table.timings:
        output.human.print(_time_table(trial.table, stored))
    for crossing in crossings:
        output.human.print(
            f"{crossing.op}: {crossing.below} up to about {crossing.num_bytes} bytes, {crossing.above} beyond "
            f"(seen between {crossing.measured[0]} and {crossing.measured[1]})",
            markup=False,
            soft_wrap=True,
        )
    return {
        "times_us": [msgspec.to_builtins(timing) for timing in trial.table.timings],
        "captured": trial.table.captured,
        "stored": stored,
        "crossovers": [msgspec.to_builtins(crossing) for crossing in crossings],
    }


def _choice_table(trial: Trial) -> Table:
    """What a run would send each message through."""
    table = Table("call", "bytes", "would take", "because of", title="Choices", title_justify="left")
    lines: dict[tuple[str, str, str], list[int]] = {}
    for choice in trial.choices:
        why = choice.rule or ("the measured times" if trial.table is not None else "its place: nothing was timed")
        lines.setdefault((choice.message.op, choice.backend, why), []).append(choice.message.num_bytes)
    for (op, backend, why), sizes in lines.items():
        table.add_row(op, _span(sizes), backend, why)
    return table


def _links(topology: Topology) -> str:
    """One line: how the GPUs are joined, and what could not be found out."""
    access = {True: "every pair", False: "not every pair", None: "unknown"}[topology.peer_access]
    links = ", ".join(f"{pair} {link}" for pair, link in topology.links.items()) or "unknown"
    told = f"links: {links}; NVLink: {topology.nvlink or 'unknown'}; peer access: {access}"
    return "; ".join((told, *(f"not found out: {reason}" for reason in topology.unknown)))


def _messages(model: str | None, parallel: ParallelConfig, device: str, output: Output) -> tuple[Message, ...]:
    """A model's own; without one, sizes of hidden states."""
    import torch

    from alula.comm.tuning_plan import Message
    from alula.core.config import EngineConfig
    from alula.core.shape import parse_shape
    from alula.engine.messages import collective_messages
    from alula.engine.setup import resolve_dtype
    from alula.models.checkpoint import open_checkpoint
    from alula.models.source import resolve_source

    captured = device == "cuda"
    if model is None:
        return tuple(
            Message(op=op, num_bytes=size, dtype="bfloat16", captured=captured)
            for op in ("all_gather", "all_reduce")
            for size in _SAMPLE_BYTES
        )
    config = open_checkpoint(resolve_source(model, output.note)).config
    dtype = str(resolve_dtype("auto", config, torch.device(device))).removeprefix("torch.")
    return collective_messages(parse_shape(config), EngineConfig(parallel=parallel), dtype, captured)


def _verdict_table(num_ranks: int, verdicts: tuple[Verdict, ...]) -> Table:
    """One line for each backend and reason, with the sizes that it is about."""
    table = Table(
        "backend", "call", "bytes", "here", title=f"Collectives over {num_ranks} ranks", title_justify="left"
    )
    lines: dict[tuple[str, str, str], list[int]] = {}
    for verdict in verdicts:
        key = (verdict.backend, verdict.message.op, verdict.reason or "yes")
        lines.setdefault(key, []).append(verdict.message.num_bytes)
    for (backend, op, said), sizes in sorted(lines.items(), key=lambda line: _place(line[0][0], verdicts)):
        table.add_row(backend, op, _span(sizes), said)
    return table


def _place(backend: str, verdicts: tuple[Verdict, ...]) -> int:
    return next(index for index, verdict in enumerate(verdicts) if verdict.backend == backend)


def _span(sizes: list[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)}-{max(sizes)}"


def _time_table(table: MeasuredTable, stored: bool) -> Table:
    """Microseconds by size and backend, the least of each size in bold."""
    where = "inside a CUDA graph" if table.captured else "in a loop"
    where += ", from the stored profile" if stored else ""
    names = sorted({timing.backend for timing in table.timings})
    shown = Table("call", "bytes", title=f"Microseconds, {where}, slowest rank", title_justify="left")
    for name in names:
        shown.add_column(name, justify="right")
    for op in table.ops():
        for size in table.sizes(op):
            times = [
                next((t.us for t in table.timings if (t.backend, t.op, t.num_bytes) == (name, op, size)), None)
                for name in names
            ]
            least = min(us for us in times if us is not None)
            shown.add_row(op, str(size), *(_cell(us, least) for us in times))
    return shown


def _cell(us: float | None, least: float) -> str:
    if us is None:
        return "-"
    return f"[bold]{us:.1f}[/bold]" if us == least else f"{us:.1f}"
