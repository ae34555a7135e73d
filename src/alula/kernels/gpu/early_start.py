"""Early start (programmatic dependent launch, CUDA programming guide) as kernels say it; EARLY comes from
`launch.early_launch`. Where it is off, as in Triton's interpreter, both say nothing.

Every program of a kernel waits, on every path, before it reads what an earlier kernel wrote and before it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(EARLY: tl.constexpr):
    """Lets the next kernel start as soon as all programs of this one have come here. It sees no results by that."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until all kernels before this one are done and what they wrote can be seen."""
    if EARLY:
        gdc_wait()


@triton.jit
def publish(EARLY: tl.constexpr):
    """What this program stored can be seen by whoever starts after it has ended, also before a wait of their own.

    The end of a kernel alone promises that only behind the next kernel's wait. Not run in Triton's interpreter.
    """
    if EARLY:
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
