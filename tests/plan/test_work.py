"""The arithmetic of a forward's bytes and operations: published floors, hand counts, and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InvalidOption
from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import ModelShape, parse_shape
from alula.plan.shapes import HeadShape, head_like
from alula.plan.work import Work, cycle, draft_forward, extend_forward, floor_ms, target_forward

H200_BYTES_PER_S = 4.3e12
TINY = ModelShape(
    architecture="LlamaForCausalLM",
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=50,
    max_position=64,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)
TINY_HEAD = HeadShape(
    hidden_size=8,
    intermediate_size=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    draft_vocab_size=20,
    num_features=24,
)


def named(name: str) -> ModelShape:
    return parse_shape(NAMED_SHAPES[name])


def milliseconds(work: Work) -> float:
    return floor_ms(work.num_bytes, H200_BYTES_PER_S)


def test_floors_that_the_design_names() -> None:
    """DESIGN section 7 and measurements.md, to the digits given there."""
    shape = named("llama-3.1-8b")
    plain = milliseconds(target_forward(shape, kv_tokens=512))
    whole = cycle(shape, head_like(shape), steps=3, kv_tokens=512)
    assert plain == pytest.approx(3.506, abs=0.0005)
    assert milliseconds(whole.total) / plain == pytest.approx(1.156, abs=0.0005)
    assert 1000 * 2.8 / milliseconds(whole.total) == pytest.approx(691, abs=0.5)
    assert (whole.draft + whole.extend).weight_bytes == pytest.approx(2.35e9, abs=0.005e9)
    assert milliseconds(target_forward(named("smollm2-135m"), kv_tokens=512)) == pytest.approx(0.065, abs=0.0005)


def test_head_shapes() -> None:
    assert head_like(named("llama-3.1-8b")) == HeadShape(
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        draft_vocab_size=32000,
        num_features=12288,
    )
    assert head_like(named("smollm2-135m")).draft_vocab_size == 8192
    assert head_like(TINY).draft_vocab_size == 50


def test_a_target_counted_by_hand() -> None:
    # q 8x16, k and v 8x8 each, o 16x8; gate, up, down 8x12; two norms a layer, one more, the output head 50x8.
    matrices = 2 * (128 + 2 * 64 + 128 + 3 * 96) + 400
    work = target_forward(TINY, kv_tokens=10, batch=3, width=2, dtype="float32")
    assert work.weight_bytes == 4 * (matrices + 5 * 8)
    assert work.embedding_bytes == 4 * 6 * 8
    assert work.kv_read_bytes == 4 * 3 * 10 * 2 * 16  # of 2 layers, 8 keys and 8 values a token
    assert work.kv_written_bytes == 4 * 6 * 2 * 16
    # Row 0 of a request sees 11 positions, row 1 sees 12: scores and sums of 16 query elements, in 2 layers.
    assert work.flops == 2 * matrices * 6 + 2 * 3 * (11 + 12) * 2 * 2 * 16
    assert work.num_bytes == work.read_bytes + work.kv_written_bytes


def test_biases_are_weights() -> None:
    biased = ModelShape(
        **{name: getattr(TINY, name) for name in TINY.__struct_fields__}
        | {"attention_bias": True, "mlp_bias": True}
    )
    more = target_forward(biased, kv_tokens=1).weight_bytes - target_forward(TINY, kv_tokens=1).weight_bytes
    assert more == 2 * 2 * ((16 + 8 + 8 + 8) + (12 + 12 + 8))


def test_a_head_counted_by_hand() -> None:
    # q 16x16, k and v 16x8 each, o 16x8, gate, up, down 8x12; the output head 20x8; four norms; the fusion 24x8.
    layer = 256 + 2 * 128 + 128 + 3 * 96
    draft = draft_forward(TINY_HEAD, kv_tokens=5, batch=2)
    extend = extend_forward(TINY_HEAD, kv_tokens=5, batch=2, width=3)
    assert draft.weight_bytes == 2 * (layer + 160 + 32)
    assert extend.weight_bytes == draft.weight_bytes + 2 * 192
    assert draft.kv_read_bytes == extend.kv_read_bytes == 2 * 2 * 5 * 16
    assert (draft.kv_written_bytes, extend.kv_written_bytes) == (2 * 2 * 16, 2 * 6 * 16)
    assert draft.flops == 2 * 2 * (layer + 160) + 2 * 6 * 4 * 16
    # Every row passes the fusion and the layer, the last one of each request the output head.
    assert extend.flops == 2 * 6 * (layer + 192) + 2 * 2 * 160 + 2 * (6 + 7 + 8) * 4 * 16


def test_a_cycle_is_its_forwards() -> None:
    whole = cycle(TINY, TINY_HEAD, steps=3, kv_tokens=7, batch=2)
    assert whole.verify == target_forward(TINY, kv_tokens=7, batch=2, width=4)
    assert whole.draft == draft_forward(TINY_HEAD, kv_tokens=7, batch=2) + draft_forward(
        TINY_HEAD, kv_tokens=8, batch=2
    )
    assert whole.extend == extend_forward(TINY_HEAD, kv_tokens=7, batch=2, width=4)
    assert whole.total == whole.draft + whole.verify + whole.extend
    assert cycle(TINY, TINY_HEAD, steps=1, kv_tokens=7).draft == Work()  # the first draft is free


@given(st.integers(1, 64), st.integers(1, 9), st.integers(0, 4096), st.sampled_from(["bfloat16", "float32"]))
def test_more_is_never_cheaper(batch: int, width: int, kv_tokens: int, dtype: str) -> None:
    def costs(batch: int, width: int, kv_tokens: int) -> tuple[Work, Work]:
        target = target_forward(TINY, kv_tokens=kv_tokens, batch=batch, width=width, dtype=dtype)
        return target, extend_forward(TINY_HEAD, kv_tokens=kv_tokens, batch=batch, width=width, dtype=dtype)

    sizes = (batch, width, kv_tokens)
    for index in range(3):
        grown = tuple(size + (position == index) for position, size in enumerate(sizes))
        for less, more in zip(costs(*sizes), costs(*grown), strict=True):
            assert more.num_bytes > less.num_bytes and more.flops > less.flops
            assert more.weight_bytes == less.weight_bytes


@given(st.integers(0, 4096), st.integers(1, 64))
def test_half_the_bytes_in_half_the_precision(kv_tokens: int, batch: int) -> None:
    full = target_forward(TINY, kv_tokens=kv_tokens, batch=batch, dtype="float32")
    half = target_forward(TINY, kv_tokens=kv_tokens, batch=batch, dtype="float16")
    assert full.num_bytes == 2 * half.num_bytes and full.flops == half.flops
    assert half == target_forward(TINY, kv_tokens=kv_tokens, batch=batch, dtype="bfloat16")


@pytest.mark.parametrize(
    "wrong", [{"kv_tokens": -1}, {"kv_tokens": 1, "batch": 0}, {"kv_tokens": 1, "width": 0}], ids=str
)
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="expected"):
        target_forward(TINY, **wrong)
    with pytest.raises(InvalidOption, match="expected"):
        extend_forward(TINY_HEAD, **wrong)


def test_unknown_dtypes_and_bandwidths_are_refused() -> None:
    with pytest.raises(InvalidOption, match="int3"):
        target_forward(TINY, kv_tokens=1, dtype="int3")
    with pytest.raises(InvalidOption, match="steps is 0"):
        cycle(TINY, TINY_HEAD, steps=0, kv_tokens=1)
    with pytest.raises(InvalidOption, match="bandwidth"):
        floor_ms(1, 0.0)
