"""Collectives of CPU ranks on one host through the memory they share. Knows nothing of how that memory came about.

A collective is one round (or several, where the tensor is larger than a slot): each rank writes its data into one of
its two slots, publishes the number of the round, waits until every rank has published it, and reads all slots. There
is no second wait. A rank writes the same slot again two rounds later, and to get there it has seen every other rank
arrive in the round between, which a rank does only after it has read the slots of the round before.

Plain stores from Python are enough on x86, where stores become visible in program order. Elsewhere the data might
become visible after the round's number, so the backend refuses.
"""

from __future__ import annotations

import os
import platform
import time

import torch
from torch import Tensor

from alula.comm.backends.protocol import YES, Verdict, no
from alula.comm.backends.reduction import sum_in_rank_order
from alula.comm.call import CollectiveCall
from alula.comm.faults import CALLS, explained
from alula.comm.patience import Peers
from alula.comm.segment import LINE_WORDS, Segment
from alula.core.errors import RankFailure

OPS = ("all_reduce", "all_gather", "broadcast")
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
DTYPE_NAMES = tuple(str(dtype).removeprefix("torch.") for dtype in DTYPES)
IN_ORDER_MACHINES = ("x86_64", "amd64", "i686")

# Ranks may outnumber cores: a rank that spins for longer than a few polls keeps the one it waits for from running.
NUM_EAGER_POLLS = 8
YIELD_S = 0.002  # this long a waiting rank only yields; then it sleeps between polls,
NAP_SHARE = 0.02  # each time for this share of the time it has waited already,
MAX_NAP_S = 0.001  # up to this
MAX_LAYOUTS = 512


class _Layout:
    """Views of all slots for tensors of one dtype and shape, by parity and rank, and what identifies them."""

    __slots__ = ("signature", "views")

    def __init__(self, views: tuple[tuple[Tensor, ...], ...], signature: int) -> None:
        self.views = views
        self.signature = signature


class SharedMemoryBackend:
    """Fixed order, fp32 accumulation, the same bits on every rank."""

    name = "shared_memory"
    fixed_order = True

    def __init__(self, segment: Segment, rank: int, timeout_s: float) -> None:
        self._segment = segment
        self._rank = rank
        self._peers = Peers(segment, rank, timeout_s)
        self._waited_s = 0.0
        self._words = segment.words
        self._bytes = torch.frombuffer(segment.memory, dtype=torch.uint8)
        self._line = (1 + rank) * LINE_WORDS
        self._peer_lines = tuple((1 + peer) * LINE_WORDS for peer in range(segment.num_ranks) if peer != rank)
        self._round = 0
        self._layouts: dict[tuple[torch.dtype, torch.Size], _Layout] = {}
        self._machine = platform.machine()

    def admits(self, call: CollectiveCall) -> Verdict:
        if call.device != "cpu":
            return no(f"the tensor is on {call.device}; this backend reads host memory only")
        if call.dtype not in DTYPE_NAMES:
            return no(f"dtype {call.dtype} is not one of {', '.join(DTYPE_NAMES)}")
        if call.op == "all_reduce" and call.dtype == "bool":
            return no("a sum of bool is not defined")
        if self._machine.lower() not in IN_ORDER_MACHINES:
            return no(f"stores of a {self._machine} processor may become visible out of order")
        return YES

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.nbytes <= self._segment.slot_bytes:
            self._reduce_block(x)
            return x
        flat = x.reshape(-1)  # a copy where x has gaps
        for block in self._blocks(flat):
            self._reduce_block(block)
        return x if x.is_contiguous() else x.copy_(flat.view(x.shape))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        if x.nbytes <= self._segment.slot_bytes:
            return torch.cat(self._gather_block(x), dim)
        joined = torch.empty((self._segment.num_ranks, x.numel()), dtype=x.dtype)
        start = 0
        for block in self._blocks(x.reshape(-1)):
            stop = start + block.numel()
            for row, part in zip(joined, self._gather_block(block), strict=True):
                row[start:stop].copy_(part)
            start = stop
        return torch.cat([row.view(x.shape) for row in joined], dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        if x.nbytes <= self._segment.slot_bytes:
            self._broadcast_block(x, root)
            return x
        flat = x.reshape(-1)
        for block in self._blocks(flat):
            self._broadcast_block(block, root)
        return x if x.is_contiguous() else x.copy_(flat.view(x.shape))

    @property
    def waits(self) -> tuple[int, float]:
        """(rounds, seconds in which this rank waited for others in them)."""
        return self._round, self._waited_s

    def close(self) -> None:
        self._layouts.clear()

    def _blocks(self, flat: Tensor) -> tuple[Tensor, ...]:
        return flat.split(self._segment.slot_bytes // flat.element_size())

    def _reduce_block(self, x: Tensor) -> None:
        layout = self._layout(x)
        slots = layout.views[(self._round + 1) & 1]
        slots[self._rank].copy_(x)
        self._meet(layout.signature)
        sum_in_rank_order(slots, x)

    def _gather_block(self, x: Tensor) -> tuple[Tensor, ...]:
        """Every rank's block, in the slots: valid until this rank calls again."""
        layout = self._layout(x)
        slots = layout.views[(self._round + 1) & 1]
        slots[self._rank].copy_(x)
        self._meet(layout.signature | 1)
        return slots

    def _broadcast_block(self, x: Tensor, root: int) -> None:
        layout = self._layout(x)
        slots = layout.views[(self._round + 1) & 1]
        if self._rank == root:
            slots[root].copy_(x)
        self._meet(layout.signature | 2 | root << 8)
        if self._rank != root:
            x.copy_(slots[root])

    def _layout(self, x: Tensor) -> _Layout:
        key = (x.dtype, x.shape)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:  # prefill sees many row counts
                self._layouts.clear()
            layout = self._layouts[key] = self._make_layout(x)
        return layout

    def _make_layout(self, x: Tensor) -> _Layout:
        """The signature's low byte is for the operation and dtype, bits 8 to 23 for a root; the size lies above."""
        views = tuple(
            tuple(
                self._bytes[start : start + x.nbytes].view(x.dtype).view(x.shape)
                for start in (self._segment.slot_offset(rank, parity) for rank in range(self._segment.num_ranks))
            )
            for parity in (0, 1)
        )
        return _Layout(views, DTYPES.index(x.dtype) << 2 | x.nbytes << 24)

    def _meet(self, signature: int) -> None:
        """Publishes this rank's next round and waits for the others. Raises RankFailure: missing or at odds."""
        self._round = number = self._round + 1
        words, place = self._words, 1 + (number & 1)
        words[self._line + place] = signature
        words[self._line] = number
        for line in self._peer_lines:
            polls = 0
            while words[line] < number:
                polls += 1
                if polls > NUM_EAGER_POLLS:
                    self._wait(line, number, signature)
            if words[line + place] != signature:
                self._raise_disagreement(line, words[line + place], signature)

    def _wait(self, line: int, number: int, signature: int) -> None:
        start = time.monotonic()
        while self._words[line] < number:
            if time.monotonic() - start < YIELD_S:
                os.sched_yield()
                continue
            with self._peers.own.waiting():
                self._wait_long(line, number, signature, start)
        self._waited_s += time.monotonic() - start

    def _wait_long(self, line: int, number: int, signature: int, start: float) -> None:
        patience = self._peers.patience()
        while self._words[line] < number:
            time.sleep(min((time.monotonic() - start) * NAP_SHARE, MAX_NAP_S))
            if not patience.due():
                continue
            missing = tuple(rank for rank, arrived in enumerate(self._segment.arrivals()) if arrived < number)
            if missing and (fault := patience.look(missing)):
                raise self._peers.failure(fault, _describe(signature))

    def _raise_disagreement(self, line: int, theirs: int, ours: int) -> None:
        peer = line // LINE_WORDS - 1
        raise RankFailure(
            f"ranks make different calls: rank {self._rank} {_describe(ours)}, rank {peer} {_describe(theirs)}. "
            f"{explained(self._peers.watch, CALLS, sorted((self._rank, peer)))}",
            rank=peer,
        )


def _describe(signature: int) -> str:
    op, dtype = OPS[signature & 3], DTYPE_NAMES[signature >> 2 & 63]
    root = f" from rank {signature >> 8 & 0xFFFF}" if op == "broadcast" else ""
    return f"{op} of {signature >> 24} bytes of {dtype}{root}"
