"""Runs the target over the rows of one cycle. Knows parts and drafts, not how they were chosen or what follows.

R rows, S sampled rows, H hidden, F features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.core.records import PhaseOutcome
from alula.engine.scheduler import Scheduled
from alula.kernels.reference.sampling import check_rows
from alula.layers.geometry import Geometry, Segment, build_forward
from alula.layers.slot_table import as_tensor
from alula.models.llama import LlamaModel

# Rows up to which a packed product gives each row the same bits; the exactness probe goes as far.
EXACT_ROWS = 64


def no_graphs(refusal: str | None) -> PhaseOutcome:
    """A cycle that the host leads has no graphs; on a GPU the reason is that of the device-resident cycle's absence."""
    return PhaseOutcome(replayed=False, reason=f"no_device_cycle: {refusal}" if refusal else "graphs_not_built")


@dataclass(frozen=True)
class TargetRows:
    """features_RF: one row for each row of every part, in order (None without a head). hidden_RH: likewise, after the
    final norm (None where nobody ran the target).

    logits_SV: one row for each sampled row. first_sampled: for each part, its first row in logits_SV, or None.
    broken: parts, sampled or not, whose hidden states hold NaN or infinity.
    """

    features_RF: Tensor | None
    logits_SV: Tensor | None
    first_sampled: tuple[int | None, ...]
    broken: frozenset[int]
    hidden_RH: Tensor | None = None


class TargetRunner:
    """One target over one cache. boundaries: which features the head reads; empty with `final_feature` for the
    hidden state after the final norm. settle: before the host reads what came of a forward."""

    def __init__(
        self,
        target: LlamaModel,
        geometry: Geometry,
        boundaries: tuple[int, ...],
        final_feature: bool,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self._settle = settle
        self._geometry = geometry
        self._boundaries = boundaries
        self._final_feature = final_feature

    def run(self, parts: Sequence[Scheduled], drafts: Sequence[Sequence[int]], wants_features: bool) -> TargetRows:
        """One forward over the known tokens and drafts of every part; writes their keys and values.

        A masked position takes part in attention as 0 * value, so NaN of one request would reach whoever reads its
        slots behind a mask. Where a hidden state is not finite, every part is therefore run again by itself.
        """
        pieces, start = [], 0
        for count in self._counts(parts):
            piece = slice(start, start + count)
            pieces.append(self._sound(parts[piece], drafts[piece], wants_features))
            start += count
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _counts(self, parts: Sequence[Scheduled]) -> list[int]:
        """How many parts, in order, share each forward. All, or, where rows must not depend on the rows beside them:
        each prompt alone, and no more decoding rows than matrix products keep apart."""
        if not self._geometry.kv_multiple:
            return [len(parts)]
        counts: list[int] = []
        room = 0
        for part in parts:
            num_rows = part.num_known + part.num_drafts
            if counts and not part.is_prefill and num_rows <= room:
                counts[-1] += 1
            else:
                counts.append(1)
                room = 0 if part.is_prefill else EXACT_ROWS
            room -= num_rows
        return counts

    def _sound(
        self, parts: Sequence[Scheduled], drafts: Sequence[Sequence[int]], wants_features: bool
    ) -> TargetRows:
        rows = self._forward(parts, drafts, wants_features)
        if not rows.broken:
            return rows
        for part in parts:
            self._clear(part)
        if len(parts) == 1:
            return rows
        alone = []
        for part, drafted in zip(parts, drafts, strict=True):
            alone.append(self._forward([part], [drafted], wants_features))
            if alone[-1].broken:
                self._clear(part)
        return _joined(alone)

    def _forward(
        self, parts: Sequence[Scheduled], drafts: Sequence[Sequence[int]], wants_features: bool
    ) -> TargetRows:
        segments, ids = [], []
        for part, drafted in zip(parts, drafts, strict=True):
            request, start = part.request, part.request.num_kv
            segments.append(Segment(request.table, start, part.num_known + part.num_drafts))
            ids += [*request.tokens[start : start + part.num_known], *drafted]
        forward = build_forward(self._geometry, segments, ids, "verify")
        output = self._target(forward, self._boundaries if wants_features else ())
        sampled, first_sampled = _sampled_rows(parts)
        logits_SV = self._target.logits(_pick(output.hidden_RH, sampled), "verify") if sampled else None
        features_RF = output.hidden_RH if wants_features and self._final_feature else output.features_RF
        self._settle()
        return TargetRows(
            features_RF=None if features_RF is None else features_RF[: len(ids)],
            logits_SV=logits_SV,
            first_sampled=first_sampled,
            broken=_broken_parts(parts, check_rows(output.hidden_RH[: len(ids)])),
            hidden_RH=output.hidden_RH[: len(ids)],
        )

    def _clear(self, part: Scheduled) -> None:
        """Zeroes the slots of the part's rows."""
        start, width = part.request.num_kv, part.num_known + part.num_drafts
        self._geometry.cache.clear(as_tensor(part.request.table.slots(start, start + width)))


def _broken_parts(parts: Sequence[Scheduled], bad_R: Tensor) -> frozenset[int]:
    if not bool(bad_R.any()):
        return frozenset()
    pieces = bad_R.split([part.num_known + part.num_drafts for part in parts])
    return frozenset(i for i, piece in enumerate(pieces) if bool(piece.any()))


def _joined(pieces: Sequence[TargetRows]) -> TargetRows:
    """The rows of several forwards, one after the other, as those of one."""
    firsts: list[int | None] = []
    logits: list[Tensor] = []
    broken: set[int] = set()
    for piece in pieces:
        sampled_before = sum(map(len, logits))
        broken |= {len(firsts) + i for i in piece.broken}
        firsts += [None if first is None else sampled_before + first for first in piece.first_sampled]
        logits += [] if piece.logits_SV is None else [piece.logits_SV]
    features = [piece.features_RF for piece in pieces if piece.features_RF is not None]
    hidden = [piece.hidden_RH for piece in pieces if piece.hidden_RH is not None]
    return TargetRows(
        features_RF=torch.cat(features) if features else None,
        logits_SV=torch.cat(logits) if logits else None,
        first_sampled=tuple(firsts),
        broken=frozenset(broken),
        hidden_RH=torch.cat(hidden) if hidden else None,
    )


def _sampled_rows(parts: Sequence[Scheduled]) -> tuple[list[int], tuple[int | None, ...]]:
    """Rows whose logits are needed: the last known one of a part that samples, and its drafts."""
    rows: list[int] = []
    firsts: list[int | None] = []
    base = 0
    for part in parts:
        end = base + part.num_known + part.num_drafts
        firsts.append(len(rows) if part.samples else None)
        if part.samples:
            rows += range(base + part.num_known - 1, end)
        base = end
    return rows, tuple(firsts)


def _pick(hidden_RH: Tensor, rows: list[int]) -> Tensor:
    return hidden_RH if rows == list(range(hidden_RH.shape[0])) else hidden_RH[rows]
