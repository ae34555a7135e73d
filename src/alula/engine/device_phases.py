"""The phases of a device-resident cycle as functions over tensors that never move: what graphs capture.

Each returns a function without arguments that reads the seats' state, runs its forwards, and writes the state back.
Prompts and catching up are here too, as plain calls: their number of rows varies, so they are never captured.

R rows, B requests, W rows of each, F target features, H draft hidden, S seats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.engine.device_state import DeviceState
from alula.engine.memory import KEPT_POSITIONS
from alula.engine.setup import Parts
from alula.kernels.reference.chain_rows import Prepared, picked
from alula.kernels.reference.paged import PagedRows
from alula.layers.block_input import BlockInput
from alula.layers.block_kernels import BlockKernels
from alula.layers.geometry import Geometry
from alula.layers.stream import Deferred, Stream
from alula.spec.draft_model import DraftModel

FEATURES_KEPT, FEATURES_READ, NO_FEATURES = "kept", "read", "none"


@dataclass(frozen=True)
class Variant:
    """What a phase contains. sampled, filtered: whether any request draws, or draws from a part of its distribution.
    features: whether the draft reads them in this cycle, or they are kept for later. host: the host draws."""

    sampled: bool = False
    filtered: bool = False
    features: str = NO_FEATURES
    host: bool = False

    @property
    def draws(self) -> str:
        return "filtered" if self.filtered else "sampled" if self.sampled else "greedy"

    @property
    def name(self) -> str:
        return f"{'host' if self.host else self.draws}, features {self.features}"


@dataclass(frozen=True)
class ChunkRead:
    """Known tokens that the target has read, from position `first` on. logits_1V: of the last, where it was asked."""

    ids_R: Tensor
    first: int
    features_RF: Tensor | None
    logits_1V: Tensor | None


class DevicePhases:
    """Over one engine's parts and state."""

    def __init__(self, parts: Parts, state: DeviceState, kernels: BlockKernels) -> None:
        self._parts = parts
        self._state = state
        self._kernels = kernels
        head = None if parts.drafter is None else parts.drafter.model.config
        self._boundaries = () if head is None else head.boundaries
        self._final_feature = head is not None and not head.boundaries

    def verify(self, batch: int, width: int, variant: Variant) -> Callable[[], Tensor]:
        """Target forward, draws, acceptance -> logits [R, V]."""
        buffers, state = self._state.buffers(batch, width), self._state

        def run() -> Tensor:
            prepared = (buffers.ids_R, buffers.positions_R, buffers.slots_R, buffers.first_B)
            target, chain = self._parts.target, self._kernels.chain
            embedded = self._begin_rows(buffers.seats_B, width, prepared)
            forward = self._forward(self._parts.geometry, prepared, buffers.seats_B, width, "verify")
            stream, features = self._target(forward, variant.features != NO_FEATURES, embedded)
            logits_RV = target.block_logits(stream.normed, forward)
            if variant.features == FEATURES_READ:
                chain.store_features(features, buffers.features_RF)
            elif variant.features == FEATURES_KEPT:
                chain.keep_features(features, state.kept_STF, buffers.seats_B, buffers.positions_R)
            if not variant.host:
                draws_R, bad_R = self._kernels.draws.draw_tokens(
                    *(logits_RV, state.sampling, buffers.seats_B, width, buffers.positions_R),
                    filtered=variant.filtered,
                    sampled=variant.sampled,
                )
                self.accept(batch, width, draws_R, bad_R)
            return logits_RV

        return run

    def accept(self, batch: int, width: int, draws_R: Tensor, bad_R: Tensor) -> None:
        """Moves the seats on by what the target drew."""
        buffers, state = self._state.buffers(batch, width), self._state
        forced = state.forced if width > 1 else None
        self._kernels.seats.accept_rows(
            *(state.seats, buffers.seats_B, width, draws_R, bad_R, forced),
            *(buffers.accepted_B, buffers.last_row_B, buffers.results_BX),
        )

    def draft(self, batch: int, num_drafts: int, variant: Variant) -> Callable[[], None]:
        """The draft's forwards after its first token: num_drafts - 1 of them."""
        seats_B, state = self._state.buffers(batch, 1).seats_B, self._state
        model, geometry = self._model, self._draft_geometry
        ids_B, positions_B, slots_B = (torch.zeros_like(self._state.buffers(batch, 1).ids_R) for _ in range(3))
        prepared = (ids_B, positions_B, slots_B, torch.zeros_like(seats_B))

        def run() -> None:
            feature_BH = state.feedback_SH.index_select(0, seats_B)
            for step in range(num_drafts - 1):
                self._kernels.seats.prepare_draft_rows(state.seats, seats_B, step, *prepared)
                forward = self._forward(geometry, prepared, seats_B, 1, "draft")
                stream = model.block(forward, feature_BH)
                drafts_B = self._draw_drafts(stream.normed, forward, seats_B, positions_B, variant)
                self._kernels.seats.store_drafts(state.seats, seats_B, drafts_B, step + 1)
                if step + 2 < num_drafts:
                    feature_BH = model.block_feedback(stream, forward)

        return run

    def extend(self, batch: int, width: int, variant: Variant) -> Callable[[], None]:
        """The draft over all rows of the last verify, with the target's features; draws each request's first draft.

        Rows behind the accepted ones are read too and count for nothing: what they write is overwritten later."""
        buffers = self._state.buffers(batch, width)

        def run() -> None:
            ids_R = buffers.results_BX[:, 2:].reshape(-1)
            prepared = (ids_R, buffers.positions_R, buffers.slots_R, buffers.first_B)
            forward = self._forward(self._draft_geometry, prepared, buffers.seats_B, width, "extend")
            stream = self._model.block(forward, self._model.fuse.block(buffers.features_RF, forward.products))
            self._begin_chain(stream, buffers.last_row_B, forward, buffers.seats_B, variant)

        return run

    def read_chunk(self, ids: list[int], first: int, samples: bool, features: bool) -> ChunkRead:
        """Target forward over known tokens of the seat in `state.prompt`, at positions from `first` on. Eager."""
        ids_R = self._ids(ids)
        forward = self._chunk(self._parts.geometry, ids_R, first, "verify")
        stream, parts = self._target(forward, features)
        features_RF = torch.cat(parts, dim=-1) if parts else None
        logits_1V = None
        if samples:
            last_1 = self._one(len(ids) - 1)
            logits_1V = self._parts.target.block_logits(picked(stream, last_1), forward)
        return ChunkRead(ids_R, first, features_RF, logits_1V)

    def draw_first(self, read: ChunkRead, variant: Variant) -> tuple[Tensor, Tensor]:
        """The token behind a prompt -> (ids_1, bad_1)."""
        state = self._state
        assert read.logits_1V is not None
        position_1 = self._one(read.first + len(read.ids_R) - 1)
        drawn: tuple[Tensor, Tensor] = self._kernels.draws.draw_tokens(
            *(read.logits_1V, state.sampling, state.prompt.seats_B, 1, position_1),
            filtered=variant.filtered,
            sampled=variant.sampled,
        )
        return drawn

    def extend_chunk(self, read: ChunkRead, successor: int | None, begins: bool, variant: Variant) -> None:
        """The draft over the rows of a chunk, or over kept features. Eager.

        successor: the known token behind the chunk; None for the seat's root, which only the device may know yet.
        begins: whether the last row begins the next chain.
        """
        state, seats_1 = self._state, self._state.prompt.seats_B
        assert read.features_RF is not None
        root_1 = state.seats.root_S.index_select(0, seats_1)
        behind_1 = root_1 if successor is None else self._one(successor)
        forward = self._chunk(self._draft_geometry, torch.cat((read.ids_R[1:], behind_1)), read.first, "extend")
        stream = self._model.block(forward, self._model.fuse.block(read.features_RF, forward.products))
        if begins:
            last_1 = self._one(len(read.ids_R) - 1)
            self._begin_chain(stream, last_1, forward, seats_1, variant)

    def kept(self, seat: int, tokens: list[int], first: int) -> ChunkRead:
        """Features kept in plain cycles at positions from `first` on, as if the rows had just been read."""
        places = torch.arange(first, first + len(tokens), device=self._parts.device) % KEPT_POSITIONS
        return ChunkRead(self._ids(tokens), first, self._state.kept_STF[seat].index_select(0, places), None)

    def _ids(self, ids: list[int]) -> Tensor:
        """Token ids on the device, without waiting for it."""
        return torch.tensor(ids).to(self._parts.device, non_blocking=True)

    def _one(self, number: int) -> Tensor:
        return torch.full((1,), number, dtype=torch.int64, device=self._parts.device)

    @property
    def _model(self) -> DraftModel:
        assert self._parts.drafter is not None
        return self._parts.drafter.model

    @property
    def _draft_geometry(self) -> Geometry:
        assert self._parts.drafter is not None
        return self._parts.drafter.geometry

    def _target(
        self, forward: BlockInput, features: bool, embedded: Stream | None = None
    ) -> tuple[Stream, tuple[Tensor, ...]]:
        output = self._parts.target.block(forward, self._boundaries if features else (), embedded)
        if features and self._final_feature:
            return output.stream, (self._kernels.stream.finish(output.stream),)
        return output.stream, output.features

    def _begin_rows(self, seats_B: Tensor, width: int, prepared: Prepared) -> Stream | None:
        """The rows of a verify, into `prepared`; with their embedding where this rank holds all of it."""
        target, seats = self._parts.target, self._state.seats
        if not target.embedding.is_whole:
            self._kernels.seats.prepare_rows(seats, seats_B, width, *prepared)
            return None
        embedded: Stream = self._kernels.chain.embed_rows(
            *(seats, seats_B, width, prepared, target.embedding.weight_VH, target.first_norm)
        )
        return embedded

    def _forward(
        self, geometry: Geometry, prepared: Prepared, seats_B: Tensor, width: int, phase: str
    ) -> BlockInput:
        """Rows of decoding."""
        ids_R, positions_R, slots_R, first_B = prepared
        tables_SP, page_tokens = self._state.seats.tables_SP, self._state.seats.page_tokens
        rows = PagedRows(tables_SP, seats_B, first_B, width, page_tokens)
        return BlockInput(ids_R, positions_R, slots_R, rows, geometry.cache, self._kernels, True, phase)

    def _chunk(self, geometry: Geometry, ids_R: Tensor, first: int, phase: str) -> BlockInput:
        """Rows of a prompt."""
        width, seats = len(ids_R), self._state.seats
        positions_R = torch.arange(first, first + width, device=ids_R.device)
        seats_1 = self._state.prompt.seats_B
        pages_R = seats.tables_SP[seats_1.long(), positions_R // seats.page_tokens].long()
        slots_R = pages_R * seats.page_tokens + positions_R % seats.page_tokens
        first_1 = torch.full((1,), first, dtype=torch.int32, device=ids_R.device)
        rows = PagedRows(seats.tables_SP, seats_1, first_1, width, seats.page_tokens)
        return BlockInput(ids_R, positions_R, slots_R, rows, geometry.cache, self._kernels, False, phase)

    def _begin_chain(
        self, stream: Stream, last_B: Tensor, forward: BlockInput, seats_B: Tensor, variant: Variant
    ) -> None:
        """The rows `last_B` of a draft forward begin their requests' next chains: first draft and feedback."""
        post = self._model.config.feedback == "post"
        normed = self._kernels.chain.begin_chains(stream, last_B, seats_B, self._state.feedback_SH, post)
        positions_B = forward.positions_R.index_select(0, last_B)
        drafts_B = self._draw_drafts(normed, forward, seats_B, positions_B, variant)
        self._kernels.seats.store_drafts(self._state.seats, seats_B, drafts_B, 0)

    def _draw_drafts(
        self, normed: Deferred, forward: BlockInput, seats_B: Tensor, positions_B: Tensor, variant: Variant
    ) -> Tensor:
        drafts_B: Tensor = self._kernels.draws.draw_draft_tokens(
            *(
                self._model.block_logits(normed, forward),
                self._model.hot_D,
                self._state.sampling,
                seats_B,
                positions_B,
            ),
            sampled=variant.sampled,
        )
        return drafts_B
