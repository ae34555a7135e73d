"""A rank joins its group: backends are built and started, probed and timed where that is due, and rules settled.

Every rank ends with the same rules, which is checked by a hash: one that chose otherwise would hang the others or give
wrong sums, and no library would say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import torch

from alula.comm.backends.builtin import HOST, MODES, build_backends, check_collectives
from alula.comm.backends.protocol import OPS, SUM_ONTO, Backend, Narrowed, Unavailable, operations
from alula.comm.call import CollectiveCall
from alula.comm.capture import capture_refusal
from alula.comm.dispatch import Dispatcher
from alula.comm.group import Group, single_group
from alula.comm.patience import Peers, longest_wait_s
from alula.comm.plugins import CommunicatorContext
from alula.comm.probe import Place, agree, probe
from alula.comm.process_groups import ProcessGroups
from alula.comm.rules import AUTO, FASTEST, Rules, choose, choose_families, order_refusal
from alula.comm.segment import Segment
from alula.comm.table import MeasuredTable
from alula.comm.timing import time_backends
from alula.comm.tuning_plan import NOTHING_KNOWN, TuningPlan
from alula.core.errors import InvalidOption, RankFailure
from alula.core.records import Refusal


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank needs to join its group. timeout_s: the deadline of a wait for other ranks (comm/patience.py).
    segment_fd: the descriptor of the block its ranks share.

    prove: whether backends are probed before they are used. share_gpus: ranks may share a GPU; nothing is timed then.
    """

    rank: int
    size: int
    device: str
    collectives: str
    timeout_s: float
    segment_fd: int
    share_gpus: bool = False
    prove: bool = True
    tuning: TuningPlan = NOTHING_KNOWN


def join_group(member: GroupMember) -> Group:
    """This rank's group; sets the current CUDA device where the group is on CUDA, and connects it there.

    Raises InvalidOption for an unknown backend name or more ranks than GPUs, RankFailure where ranks do not agree."""
    check_collectives(member.collectives)
    if member.device == "cuda":
        take_gpu(member)
    if member.size == 1:
        return single_group()
    context = JoinContext(member)
    if member.tuning.trial:
        backends = build_backends(context.segment, context.plugins)
        dispatcher = Dispatcher(backends, member.size, watch=context.peers.own)
        return Group(member.rank, member.size, dispatcher, peers=context.peers)
    backends = choosable(build_backends(context.segment, context.plugins), member.collectives, member.device)
    place = context.place(backends)
    backends = tuple(_started(backend, member, place) for backend in backends)
    rules = settle_rules(backends, member, place)
    return make_group(member, backends, rules, place, context.peers)


class JoinContext:
    """What the backends of one rank are built on."""

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self.segment = Segment(member.segment_fd)
        self.peers = Peers(self.segment, member.rank, member.timeout_s)
        self.groups = ProcessGroups(self.segment, member.rank, longest_wait_s(member.timeout_s), self.peers)
        self.plugins = CommunicatorContext(
            rank=member.rank,
            num_ranks=member.size,
            device=member.device,
            timeout_s=member.timeout_s,
            groups=self.groups,
        )

    def place(self, backends: Sequence[Backend]) -> Place:
        """Where probes run: verdicts go over the host's shared memory, whatever the run may choose for its tensors."""
        host = next(backend for backend in backends if backend.name == HOST)
        member = self.member
        return Place(rank=member.rank, num_ranks=member.size, device=member.device, host=host, peers=self.peers)


def take_gpu(member: GroupMember) -> None:
    """Makes this rank's GPU the current one. Raises InvalidOption where there are fewer GPUs than ranks."""
    count = torch.cuda.device_count()
    if member.size > count and not member.share_gpus:
        raise InvalidOption(
            f"--tp is {member.size} and this machine shows {count} GPUs; each rank needs its own "
            "(--share-gpus lets ranks share one, for right results at meaningless speed)"
        )
    torch.cuda.set_device(member.rank % count)


def settle_rules(backends: Sequence[Backend], member: GroupMember, place: Place) -> Rules:
    """Probes and times where the plan asks for it; the rest is what was known before."""
    tuning = member.tuning
    calls = [message.call(member.size, member.device) for message in tuning.messages]
    refused, table = tuning.refused, tuning.table
    if tuning.measure and calls:
        if member.prove:
            refused = (*refused, *_probed(backends, calls, place))
        usable = [backend for backend in backends if all(backend.name != r.backend for r in refused)]
        if not member.share_gpus:
            table = time_backends(usable, calls, place)
    return make_rules(member.collectives, table, refused, calls, backends)


def make_rules(
    collectives: str,
    table: MeasuredTable | None,
    refused: Sequence[Refusal],
    calls: Sequence[CollectiveCall],
    backends: Sequence[Backend],
) -> Rules:
    """The rules of a run: `collectives` as the option, calls as its forwards make them."""
    mode = FASTEST if collectives == FASTEST else AUTO
    rules = Rules(mode=mode, table=table, unusable=tuple(refused))
    return msgspec.structs.replace(rules, families=choose_families(calls, backends, rules))


def make_group(member: GroupMember, backends: Sequence[Backend], rules: Rules, place: Place, peers: Peers) -> Group:
    """Raises RankFailure where the ranks would choose differently, InvalidOption where a message finds no backend."""
    calls = [message.call(member.size, member.device) for message in member.tuning.messages]
    choices = [choose(call, backends, rules).index for call in calls]
    _compare([backend.name for backend in backends], rules, choices, place)
    usable = [backend for backend in backends if rules.excluded(backend.name) is None]
    return Group(
        member.rank,
        member.size,
        Dispatcher(backends, member.size, rules, watch=peers.own),
        capture_refusal(usable, member.device, member.size),
        order_refusal(calls, backends, rules) if calls else None,
        peers,
    )


def choosable(backends: Sequence[Backend], collectives: str, device: str) -> tuple[Backend, ...]:
    """All of them; or the named one alone, the others for nothing but operations that it does not have at all, and for
    tensors of the host beside a device."""
    if collectives in MODES:
        return tuple(backends)
    named = next((backend for backend in backends if backend.name == collectives), None)
    if named is None:
        raise InvalidOption(
            f"--collectives {collectives}: there is no such backend on {device}; here: "
            f"{', '.join(backend.name for backend in backends)}"
        )
    lacking = tuple(op for op in (*OPS, SUM_ONTO) if op not in operations(named))
    devices = () if device == "cpu" else ("cpu",)
    others = (
        Narrowed(backend, lacking, devices, f"--collectives {named.name}")
        for backend in backends
        if backend is not named
    )
    return (named, *others)


def _started(backend: Backend, member: GroupMember, place: Place) -> Backend:
    """The backend, connected; or one that refuses, where a probe has failed or it cannot be started. A collective."""
    known = member.tuning.refusal_of(backend.name)
    if known is not None and backend.name != HOST:  # ranks agree through that one, whatever their tensors take
        return Unavailable(backend.name, known)
    start = getattr(backend, "start", None)
    # On a CPU only gloo has something to start, and it starts when it is called: most runs never do.
    if start is None or member.device == "cpu":
        return backend
    reason = agree(start, place)
    return backend if reason is None else Unavailable(backend.name, f"could not be started: {reason}")


def _probed(backends: Sequence[Backend], calls: Sequence[CollectiveCall], place: Place) -> list[Refusal]:
    found = []
    for backend in backends:
        reason = probe(backend, calls, place)
        if reason is not None:
            found.append(Refusal(backend=backend.name, reason=reason))
    return found


def _compare(names: Sequence[str], rules: Rules, choices: Sequence[int], place: Place) -> None:
    text = msgspec.json.encode((names, rules, choices))
    digest = torch.frombuffer(bytearray(hashlib.blake2b(text, digest_size=16).digest()), dtype=torch.uint8)
    lines = place.host.all_gather(digest, 0).view(place.num_ranks, -1)
    odd = [rank for rank in range(place.num_ranks) if not torch.equal(lines[rank], lines[0])]
    if odd:
        raise RankFailure(
            f"rank {odd[0]} would choose other collective backends than rank 0 (backends here: {', '.join(names)}); "
            "are other versions or plug-ins installed for one of them?",
            rank=odd[0],
        )
