"""The floor of each phase: the bytes that it cannot do without, over a memory bandwidth. As evidence.

The bytes come from `plan`, the bandwidth from a measurement in the same run or a data sheet; the source says which.
"""

from __future__ import annotations

from alula.core.shape import ModelShape
from alula.plan.shapes import HeadShape
from alula.plan.work import Work, cycle, floor_ms, target_forward
from alula.profile.evidence import Evidence, Scope
from alula.profile.quantities import Quantity


def floors(
    shape: ModelShape,
    head: HeadShape | None,
    *,
    steps: int,
    kv_tokens: int,
    memory_bytes_per_s: float,
    source: str,
    batch: int = 1,
    tp: int = 1,
    dtype: str = "bfloat16",
) -> tuple[Evidence, ...]:
    """FLOOR_MS of a plain step (phase decode) and, with a head, of draft, verify and extend.

    tp: bytes are taken as spread evenly over that many devices. source: where the bandwidth is from, such as
    "experiment memory_bandwidth".
    """
    plain = target_forward(shape, kv_tokens=kv_tokens, batch=batch, dtype=dtype)
    phases: dict[str, Work] = {"decode": plain}
    if head is not None and steps:
        work = cycle(shape, head, steps=steps, kv_tokens=kv_tokens, batch=batch, dtype=dtype)
        phases |= {"draft": work.draft, "verify": work.verify, "extend": work.extend}
    return tuple(
        Evidence(
            quantity=Quantity.FLOOR_MS,
            value=floor_ms(round(work.num_bytes / tp), memory_bytes_per_s),
            scope=Scope(phase=phase, batch=batch),
            source=source,
            text=f"{work.num_bytes / tp / 1e9:.3f} GB a device / {memory_bytes_per_s / 1e12:.3g} TB/s",
        )
        for phase, work in phases.items()
    )
