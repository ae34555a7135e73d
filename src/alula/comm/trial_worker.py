"""A rank of a trial: probes and times backends one at a time, in a process that may be killed for it."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import Tensor

from alula.comm.backends.apart import ApartBackend
from alula.comm.backends.builtin import HOST
from alula.comm.backends.protocol import Backend, Unavailable, admission
from alula.comm.call import describe_call
from alula.comm.capture import is_capturable
from alula.comm.group import Group
from alula.comm.join import choosable, make_rules
from alula.comm.nccl_words import read_log
from alula.comm.probe import Place, agree, probe
from alula.comm.rules import choose
from alula.comm.table import MeasuredTable
from alula.comm.timing import time_backends
from alula.comm.tuning_plan import Message
from alula.core.errors import InvalidOption
from alula.core.records import Refusal


class NamesCommand(msgspec.Struct, frozen=True):
    """Asks for the backends, in order of preference."""


class ProbeCommand(msgspec.Struct, frozen=True):
    """Starts a backend and probes it, answered by None or the reason why it must not be used."""

    backend: str


class TimeCommand(msgspec.Struct, frozen=True):
    """Times a backend that was probed, answered by its MeasuredTable."""

    backend: str


class VerdictsCommand(msgspec.Struct, frozen=True):
    """Asks what each backend says of each message: (message, backend, reason or None)."""


class ChoicesCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Asks what would be chosen: (message, backend, rule), with the reason in the backend's place where nothing takes
    it. collectives: as --collectives."""

    collectives: str
    table: MeasuredTable | None
    refused: tuple[Refusal, ...]


class SpokenCommand(msgspec.Struct, frozen=True):
    """Asks which algorithm and protocol NCCL says that it ran the probes' messages with: nccl_log's Choices of this
    rank. Only rank 0 of a communicator is told by NCCL."""


class TrialPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial is about. prove: whether data is checked, or backends are only started. log_folder: of NCCL."""

    messages: tuple[Message, ...]
    device: str
    prove: bool
    log_folder: str | None = None


class TrialWorker:
    """Works on the backends of a group that has started none of them (`TuningPlan.trial`)."""

    def __init__(self, payload: TrialPayload, group: Group) -> None:
        self._payload = payload
        self._calls = [message.call(group.size, payload.device) for message in payload.messages]
        self._backends = {backend.name: backend for backend in group.backends}
        self._tables: list[MeasuredTable] = []
        self._place = Place(
            rank=group.rank,
            num_ranks=group.size,
            device=payload.device,
            host=self._backends[HOST],
            peers=group.peers,
        )

    def handle(self, command: Any) -> Any:
        if isinstance(command, NamesCommand):
            return tuple(self._backends)
        if isinstance(command, ProbeCommand):
            return self._probe(command.backend)
        if isinstance(command, TimeCommand):
            return self._time(command.backend)
        if isinstance(command, SpokenCommand):
            log = read_log(self._payload.log_folder)
            return () if log is None else log.choices
        if isinstance(command, ChoicesCommand):
            return self._choices(command)
        return [
            (message, name, admission(backend, call).reason)
            for message, call in zip(self._payload.messages, self._calls, strict=True)
            for name, backend in self._backends.items()
        ]

    def _choices(self, command: ChoicesCommand) -> list[tuple[Message, str, str | None]]:
        backends = choosable(tuple(self._backends.values()), command.collectives, self._payload.device)
        rules = make_rules(command.collectives, command.table, command.refused, self._calls, backends)
        found = []
        for message, call in zip(self._payload.messages, self._calls, strict=True):
            try:
                decision = choose(call, backends, rules)
                found.append((message, backends[decision.index].name, decision.rule))
            except InvalidOption as error:
                found.append((message, f"none: {error}", None))
        return found

    def _probe(self, name: str) -> str | None:
        backend = self._backends[name]
        if not any(admission(backend, call).admitted for call in self._calls):
            return None
        start = getattr(backend, "start", None)
        reason = None if start is None else agree(start, self._place)
        if reason is not None:
            reason = f"could not be started: {reason}"
        elif self._payload.prove:
            self._complete(backend)
            reason = probe(backend, self._calls, self._place)
        if reason is not None and name != HOST:
            self._backends[name] = Unavailable(name, reason)
        return reason

    def _time(self, name: str) -> MeasuredTable:
        backend = self._backends[name]
        self._complete(backend)
        table = time_backends([backend], self._calls, self._place)
        self._tables.append(table)
        return table

    def _complete(self, backend: Backend) -> None:
        """The twin of the fused sum takes for each size what sums fastest so far; each rank has the same times."""
        if isinstance(backend, ApartBackend):
            backend.all_reduce_by = self._sum

    def _sum(self, x: Tensor) -> Tensor:
        call = describe_call("all_reduce", x, "verify", self._place.num_ranks)
        able = [b for b in self._backends.values() if is_capturable(b) and admission(b, call).admitted]
        return min(able, key=lambda b: self._us(b.name, call.num_bytes)).all_reduce(x)

    def _us(self, name: str, num_bytes: int) -> float:
        times = (table.us(name, "all_reduce", num_bytes) for table in self._tables)
        return next((us for us in times if us is not None), float("inf"))


def build_trial_worker(payload: TrialPayload, group: Group) -> TrialWorker:
    """Entry point of a rank process."""
    return TrialWorker(payload, group)
