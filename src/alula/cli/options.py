"""The options that commands share, each defined once, and what they become: an EngineConfig, SamplingParams.

Ranges are checked by those records, not here. `grouped` lets a command take a whole group as one parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from alula.cli.comm_options import ENGINE, Collectives, CommOptions, option
from alula.core.config import (
    DTYPES,
    GRAPH_PHASES,
    SPECULATE,
    EngineConfig,
    GraphConfig,
    ParallelConfig,
    SpeculationConfig,
)
from alula.core.errors import InvalidOption
from alula.core.sampling import SamplingParams

_SAMPLING = "Sampling"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DEVICES = ("auto", "cpu", "cuda")

_MODEL = "Hugging Face directory, hub id, .gguf file, or the built-in name smollm2-135m."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)]
OptionalModel = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
Shape = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="NAME|CONFIG.json",
        help="Instead of MODEL: random weights and a random head of a shape. llama-3.1-8b, llama-3.1-70b, "
        "llama-3.2-1b, smollm2-135m, or the path of a config.json.",
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON; '-' is stdout, and text goes to stderr."
    ),
]
Budget = Annotated[float | None, typer.Option("--budget", metavar="SECONDS", help="Stop after that many seconds.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send prompts as they are, without the chat template.")]


@dataclass(frozen=True, kw_only=True)
class EngineOptions(CommOptions):
    """How to load and run the model."""

    draft: Annotated[
        str,
        option(
            "--draft",
            text="EAGLE-3 head: directory, file or hub id; 'none' decodes plainly; 'auto' is the head that the "
            "built-in model brings, for other models none.",
            panel=ENGINE,
            metavar="HEAD",
        ),
    ] = "auto"
    draft_head: Annotated[
        str,
        option(
            "--draft-head",
            text="The head's weights: trained, random or adversarial. The last two are experiments: slower, same "
            "output.",
            panel=ENGINE,
        ),
    ] = "trained"
    steps: Annotated[int, option("--steps", text="Drafts a cycle, 1 to 8.", panel=ENGINE, metavar="K")] = (
        SpeculationConfig().steps
    )
    speculate: Annotated[
        str,
        option(
            "--speculate",
            text=f"One of {', '.join(SPECULATE)}; auto drafts while that is measured to be faster.",
            panel=ENGINE,
        ),
    ] = SpeculationConfig().speculate
    aux_boundaries: Annotated[
        str | None,
        option(
            "--aux-boundaries",
            text="Target layers after which the head reads, such as 2,15,27; instead of what its config says.",
            panel=ENGINE,
            metavar="LIST",
        ),
    ] = None
    feedback: Annotated[
        str | None,
        option(
            "--feedback",
            text="What a draft step hands on: pre or post the final norm; instead of what the head's config says.",
            panel=ENGINE,
        ),
    ] = None
    tokens_per_cycle: Annotated[
        float | None,
        option(
            "--tokens-per-cycle",
            text="Force how many drafts count, to this mean (1 to K + 1): for what cycles cost; the text is void.",
            panel=ENGINE,
            metavar="X",
        ),
    ] = None
    dtype: Annotated[str, option("--dtype", text=f"One of {', '.join(DTYPES)}.", panel=ENGINE)] = "auto"
    device: Annotated[str, option("--device", text=f"One of {', '.join(DEVICES)}.", panel=ENGINE)] = "auto"
    tp: Annotated[int, option("--tp", text="Tensor-parallel ranks.", panel=ENGINE, metavar="N")] = 1
    draft_tp: Annotated[
        str, option("--draft-tp", text="The head over the ranks: auto, sharded or replicated.", panel=ENGINE)
    ] = "auto"
    collectives: Collectives = "auto"
    rank_deadline: Annotated[
        float,
        option(
            "--rank-deadline",
            text="A rank that is silent, or that all others wait for, ends the run after that long.",
            panel=ENGINE,
            metavar="SECONDS",
        ),
    ] = ParallelConfig().rank_deadline_s
    exact: Annotated[
        bool,
        option("--exact", text="Same tokens with and without a draft, in bf16 on a CPU too; slower.", panel=ENGINE),
    ] = False
    context: Annotated[
        int | None,
        option("--context", text="Longest sequence (default: the model's).", panel=ENGINE, metavar="TOKENS"),
    ] = None
    kv_memory: Annotated[
        str | None,
        option(
            "--kv-memory",
            text="Memory of the KV cache, such as 512M or 2G (default: a share of what is free).",
            panel=ENGINE,
            metavar="SIZE",
        ),
    ] = None
    graph_batches: Annotated[
        str | None,
        option(
            "--graph-batches",
            text="Batch sizes that CUDA graphs are captured for; a batch is padded to the next of them "
            f"(default: {','.join(map(str, GraphConfig().batches))}).",
            panel=ENGINE,
            metavar="LIST",
        ),
    ] = None
    graph_widths: Annotated[
        str | None,
        option(
            "--graph-widths",
            text="Rows a request, such as 2,3, that are captured at the start besides 1 and K + 1; others are at "
            "their first use.",
            panel=ENGINE,
            metavar="LIST",
        ),
    ] = None
    no_graphs: Annotated[bool, option("--no-graphs", text="Capture no CUDA graphs.", panel=ENGINE)] = False
    eager: Annotated[
        list[str] | None,
        option(
            "--eager",
            text=f"Run a phase ({', '.join(GRAPH_PHASES)}) without its graph, for experiments; repeatable, or a list.",
            panel=ENGINE,
            metavar="PHASE",
        ),
    ] = None
    threads: Annotated[int | None, option("--threads", text="CPU threads (default: all).", panel=ENGINE)] = None
    seed: Annotated[int, option("--seed", text="Seed of sampling and of random heads.", panel=ENGINE)] = 0
    record: Annotated[
        Path | None,
        option("--record", text="Write every cycle as a line of JSON.", panel=ENGINE, metavar="FILE"),
    ] = None

    def draft_name(self) -> str | None:
        return None if self.draft == "none" else self.draft

    def config(self) -> EngineConfig:
        """Raises InvalidOption where a value is out of range."""
        if self.draft == "none" and self.draft_head != "trained":
            raise InvalidOption(
                f"--draft none decodes plainly, --draft-head {self.draft_head} drafts; drop one of them"
            )
        if self.device not in DEVICES:
            raise InvalidOption(f"--device is {self.device!r}; expected one of {', '.join(DEVICES)}")
        return EngineConfig(
            dtype=self.dtype,
            device=self.device,
            exact=self.exact,
            kv_memory_bytes=None if self.kv_memory is None else parse_size("--kv-memory", self.kv_memory),
            context_tokens=self.context,
            threads=self.threads,
            seed=self.seed,
            parallel=self.parallel(
                tp=self.tp,
                collectives=self.collectives,
                draft=self.draft_tp,
                rank_deadline_s=self.rank_deadline,
            ),
            speculation=SpeculationConfig(
                steps=self.steps,
                speculate=self.speculate,
                head=self.draft_head,
                aux_boundaries=parse_boundaries(self.aux_boundaries),
                feedback=self.feedback,
                forced_tokens_per_cycle=self.tokens_per_cycle,
            ),
            graphs=self._graphs(),
        )

    def graph_options(self) -> list[str]:
        """The names of the options about graphs that were given."""
        given = {
            "--graph-batches": self.graph_batches,
            "--graph-widths": self.graph_widths,
            "--no-graphs": self.no_graphs,
            "--eager": self.eager,
        }
        return [name for name, value in given.items() if value]

    def _graphs(self) -> GraphConfig:
        batches = parse_numbers("--graph-batches", self.graph_batches, "batch sizes such as 1,2,4,8")
        phases = [phase.strip() for text in self.eager or () for phase in text.split(",")]
        return GraphConfig(
            enabled=not self.no_graphs,
            batches=GraphConfig().batches if batches is None else batches,
            widths=parse_numbers("--graph-widths", self.graph_widths, "widths such as 2,3") or (),
            eager=tuple(dict.fromkeys(phases)),
        )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How to draw tokens; greedy by default."""

    temperature: Annotated[float, option("--temperature", text="0 takes the likeliest token.", panel=_SAMPLING)] = (
        0.0
    )
    top_k: Annotated[int, option("--top-k", text="Draw from the K likeliest; 0: no limit.", panel=_SAMPLING)] = 0
    top_p: Annotated[float, option("--top-p", text="Draw from this share of probability.", panel=_SAMPLING)] = 1.0
    min_p: Annotated[
        float, option("--min-p", text="Drop tokens below this share of the likeliest.", panel=_SAMPLING)
    ] = 0.0

    def params(
        self, *, seed: int, max_tokens: int, stop: tuple[str, ...] = (), ignore_eos: bool = False
    ) -> SamplingParams:
        """Raises InvalidOption where a value is out of range."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=seed,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
        )


def parse_boundaries(text: str | None) -> tuple[int, ...] | None:
    """Layer numbers of a list such as "2,15,27"; None stays None."""
    return parse_numbers("--aux-boundaries", text, "layer numbers such as 2,15,27")


def parse_numbers(option: str, text: str | None, expected: str) -> tuple[int, ...] | None:
    """Whole numbers of a list such as "2,15,27"; None stays None."""
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise InvalidOption(f"{option} is {text!r}; expected {expected}") from error


def parse_size(option: str, text: str) -> int:
    """Bytes of a size such as "1000000", "512M" or "1.5G" (powers of 1024)."""
    unit = _UNITS.get(text[-1:].upper(), 1)
    try:
        size = int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise InvalidOption(f"{option} is {text!r}; expected a size such as 512M or 2G")
    return size


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command with each parameter that is a group (a dataclass of options) replaced by the group's fields.

    An option that two groups share is one option, described by the first; where it is not given, which the first
    group's default (None) says, each group takes its own default.
    """
    hints = get_type_hints(command, include_extras=True)
    flat: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind  # type: ignore[assignment]  # a dataclass type, not an instance
            known = {one.name for one in flat}
            flat += [one for one in _field_parameters(kind) if one.name not in known]  # type: ignore[arg-type]
        else:
            flat.append(parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY))

    def run(**values: Any) -> None:
        built = {
            name: kind(**{field.name: _or_default(values[field.name], field) for field in fields(kind)})
            for name, kind in groups.items()
        }
        taken = {field.name for kind in groups.values() for field in fields(kind)}
        command(**{name: value for name, value in values.items() if name not in taken}, **built)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return run


def _or_default(value: Any, field: Field[Any]) -> Any:
    return field.default if value is None else value


def _field_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
