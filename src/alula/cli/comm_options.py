"""The options about ranks and what they know of each other, which several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from alula.core.config import COMM_PROOFS, ParallelConfig
from alula.core.errors import InvalidOption

ENGINE = "Engine"


def option(*names: str, text: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, metavar=metavar)


Collectives = Annotated[
    str,
    option(
        "--collectives",
        text="auto, fastest (whatever the order of sums), or one backend's name.",
        panel=ENGINE,
        metavar="NAME",
    ),
]


@dataclass(frozen=True, kw_only=True)
class CommOptions:
    """How ranks are started and what they know of each other."""

    nccl: Annotated[
        list[str] | None,
        option(
            "--nccl",
            text="A variable of NCCL that every rank is started with, such as PROTO=LL; repeatable.",
            panel=ENGINE,
            metavar="KEY=VALUE",
        ),
    ] = None
    comm_profile: Annotated[
        Path | None,
        option(
            "--comm-profile",
            text="File of measured collectives: read where it is, written where it is not.",
            panel=ENGINE,
            metavar="FILE",
        ),
    ] = None
    comm_proof: Annotated[
        str,
        option(
            "--comm-proof",
            text=f"One of {', '.join(COMM_PROOFS)}: what to do where a rank's environment is not the planned one.",
            panel=ENGINE,
        ),
    ] = ParallelConfig().comm_proof
    share_gpus: Annotated[
        bool,
        option("--share-gpus", text="Let ranks share a GPU: right results, meaningless times.", panel=ENGINE),
    ] = False

    without: Annotated[
        str | None,
        option(
            "--without",
            text="Backends of collectives to leave out, such as peer_push,nccl; for experiments.",
            panel=ENGINE,
            metavar="LIST",
        ),
    ] = None

    def parallel(self, **others: Any) -> ParallelConfig:
        """These with the other fields of the config. Raises InvalidOption where a value is out of range."""
        return ParallelConfig(
            nccl=parse_variables(self.nccl or ()),
            comm_profile=None if self.comm_profile is None else str(self.comm_profile),
            comm_proof=self.comm_proof,
            share_gpus=self.share_gpus,
            without=tuple(name.strip() for name in (self.without or "").split(",") if name.strip()),
            **others,
        )


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """{"NCCL_PROTO": "LL"} of "PROTO=LL" or "NCCL_PROTO=LL". Raises InvalidOption for anything else, and for two values
    of one variable."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals or not value:
            raise InvalidOption(f"--nccl is {text!r}; expected KEY=VALUE, such as PROTO=LL")
        name = f"NCCL_{name.strip().upper().removeprefix('NCCL_')}"
        if found.setdefault(name, value) != value:
            raise InvalidOption(f"--nccl gives {name} both {found[name]!r} and {value!r}; drop one of them")
    return found
