"""A sum over ranks, then the residual, then the norm's beginning, each by its own kernel: the twin of the fused one.

Whichever backend of all_reduce is chosen for these rows makes the sum, and records it as such.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from alula.comm.backends.protocol import SUM_ONTO, YES, Partial, Verdict
from alula.comm.call import CollectiveCall
from alula.kernels.reference.fused import Norm, Stream

NAME = "apart"
AllReduce = Callable[[Tensor], Tensor]
Enter = Callable[[Tensor, Norm], Stream]


class ApartBackend(Partial):
    """all_reduce_by: what sums while backends are tried. In a run the group sums, and calls `add`."""

    name = NAME
    ops = (SUM_ONTO,)
    capturable = True
    fixed_order = True  # it adds one number to a sum; the order of that sum is another record's

    def __init__(self, enter: Enter) -> None:
        self._enter = enter
        self.all_reduce_by: AllReduce | None = None

    def admits(self, call: CollectiveCall) -> Verdict:
        return YES

    def add(self, sum_RH: Tensor, onto_RH: Tensor, norm: Norm) -> Stream:
        """onto + a sum that was made already, ready for `norm`."""
        return self._enter(onto_RH + sum_RH, norm)

    def sum_onto(self, y_RH: Tensor, onto_RH: Tensor, norm: Norm) -> Stream:
        """onto + the sum of y over ranks, ready for `norm`."""
        assert self.all_reduce_by is not None
        return self.add(self.all_reduce_by(y_RH), onto_RH, norm)

    def close(self) -> None:
        """Holds nothing."""
