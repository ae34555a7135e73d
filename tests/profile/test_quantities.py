"""The vocabulary of evidence and what evidence says of itself; floors as evidence."""

from __future__ import annotations

import pytest

from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import parse_shape
from alula.plan.shapes import head_like
from alula.plan.work import target_forward
from alula.profile.evidence import Evidence, Scope
from alula.profile.quantities import Quantity, unit_of
from alula.profile.roofline import floors


@pytest.mark.parametrize(
    "quantity,unit",
    [
        (Quantity.VERIFY_MS, "ms"),
        (Quantity.ALLREDUCE_US, "us"),
        (Quantity.PLAIN_TOKENS_PER_S, "tokens/s"),
        (Quantity.MEMORY_BYTES_PER_S, "bytes/s"),
        (Quantity.ACCEPTANCE, "share"),
        (Quantity.CLOCK_MHZ, "MHz"),
        (Quantity.STEPS, ""),
        (Quantity.TOKENS_PER_CYCLE, ""),
    ],
)
def test_a_quantity_has_the_unit_of_its_name(quantity: Quantity, unit: str) -> None:
    assert unit_of(quantity) == unit


def test_evidence_tells_what_where_and_for_what() -> None:
    one = Evidence(quantity=Quantity.VERIFY_MS, value=29.0, scope=Scope(width=3, batch=1), source="a.log", line=12)
    assert one.words() == "verify_ms [batch 1, width 3] 29 ms (a.log:12)"
    assert one.number == 29.0
    assert Evidence(quantity=Quantity.FLAG, value=True).number is None
    assert Evidence(quantity=Quantity.FLAG, value=float("inf")).number is None
    assert one.scope.fits(width=3) and not one.scope.fits(width=3, batch=2)


def test_floors_are_bytes_over_bandwidth() -> None:
    shape = parse_shape(NAMED_SHAPES["llama-3.1-8b"])
    found = {
        one.scope.phase: one.number
        for one in floors(
            shape, head_like(shape), steps=3, kv_tokens=512, memory_bytes_per_s=4.3e12, source="experiment x"
        )
    }
    assert set(found) == {"decode", "draft", "verify", "extend"}
    plain = target_forward(shape, kv_tokens=512).num_bytes
    assert found["decode"] == pytest.approx(1000 * plain / 4.3e12, rel=1e-6)
    assert found["decode"] == pytest.approx(3.506, rel=0.01)  # as worked out for this shape elsewhere
    halved = floors(shape, None, steps=0, kv_tokens=512, memory_bytes_per_s=4.3e12, source="x", tp=2)
    assert [one.number for one in halved] == [pytest.approx((found["decode"] or 0) / 2, rel=1e-6)]
