"""What a group is joined with besides its members: the messages it will send, and what is known of the backends.

Made once, in the engine's process, and given to every rank, so that all decide alike. Knows no backend.
"""

from __future__ import annotations

import msgspec

from alula.comm.call import CollectiveCall
from alula.comm.table import MeasuredTable
from alula.core.records import Refusal


class Message(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A collective that a model's forwards will make: of one rank's tensor, a matrix of num_rows. captured: within a
    CUDA graph."""

    op: str
    num_bytes: int
    dtype: str
    num_rows: int = 1
    phase: str = "verify"
    captured: bool = False

    def call(self, num_ranks: int, device: str) -> CollectiveCall:
        """As admission sees it. Layers send whole rows, so it is aligned."""
        return CollectiveCall(
            op=self.op,
            num_bytes=self.num_bytes,
            dtype=self.dtype,
            num_rows=self.num_rows,
            aligned=True,
            num_ranks=num_ranks,
            phase=self.phase,
            device=device,
            captured=self.captured and device != "cpu",
        )


class TuningPlan(msgspec.Struct, frozen=True, kw_only=True):
    """messages: what is worth measuring. table: what was measured before. refused: backends that failed a probe, which
    are not even started. measure: whether ranks are to probe and time for themselves as they join. trial: whether
    nothing is to be started at all, since each backend will be tried by a command of its own."""

    messages: tuple[Message, ...] = ()
    table: MeasuredTable | None = None
    refused: tuple[Refusal, ...] = ()
    measure: bool = False
    trial: bool = False

    def refusal_of(self, name: str) -> str | None:
        return next((refusal.reason for refusal in self.refused if refusal.backend == name), None)


NOTHING_KNOWN = TuningPlan()
