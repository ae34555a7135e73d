"""What travels between the engine's process and its ranks, as bytes. Knows nothing of sockets or processes.

Pickle is used between processes of one program only, over a socket pair that nobody else can reach.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from alula.comm.environment_plan import EnvironmentPlan
from alula.comm.tuning_plan import NOTHING_KNOWN, TuningPlan
from alula.core.errors import AlulaError, RankFailure


@dataclass(frozen=True)
class Start:
    """The first message to a rank. `payload` stays pickled until the rank is ready to report what goes wrong."""

    rank: int
    entry: str  # "module:function"
    payload: bytes
    plan: EnvironmentPlan
    segment_fd: int
    timeout_s: float
    tuning: TuningPlan = NOTHING_KNOWN


@dataclass(frozen=True)
class Failure:
    """An exception of one rank. `ours`: raised on purpose, to be raised again as it is."""

    rank: int
    error: AlulaError
    ours: bool
    traceback: str


def encode(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def decode(body: bytes) -> Any:
    return pickle.loads(body)


def encode_failure(rank: int, error: Exception) -> bytes:
    """An AlulaError as it is; anything else as a RankFailure that names rank, type and message."""
    text = "".join(traceback.format_exception(error))
    wrapped = RankFailure(f"rank {rank} failed: {type(error).__name__}: {error}", rank=rank)
    if isinstance(error, AlulaError):
        try:
            body = encode(Failure(rank, error, True, text))
            decode(body)  # an exception with arguments of its own may pickle and yet not unpickle
            return body
        except (TypeError, AttributeError, pickle.PicklingError):
            pass
    return encode(Failure(rank, wrapped, False, text))
