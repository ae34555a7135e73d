"""The fused products against their reference: shapes, dtypes, every mode; rows keep their bits whatever is beside."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.kernels.gpu import linear as gpu
from alula.kernels.gpu import stream as gpu_stream
from alula.kernels.gpu.linear_plan import plan_linear
from alula.kernels.gpu.modes import ADDING, GATED, PLAIN, QKV
from alula.kernels.reference import fused as reference
from alula.kernels.reference.fused import Deferred, Norm, Rope
from alula.kernels.reference.rope import inverse_frequencies, rope_tables
from interpreter import DEVICE  # before triton

# inputs, outputs: resident and streamed kernels, ragged in either, split inputs on a GPU
SHAPES = [(64, 96), (72, 33)] + ([(2304, 200), (4096, 4096), (14336, 512)] if DEVICE.type == "cuda" else [])
# Triton's interpreter multiplies the bit patterns of bfloat16 as whole numbers: there it needs a GPU.
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float16]
ROWS = [1, 5, 17] if DEVICE.type == "cuda" else [5, 17]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}


def _random(*shape: int, dtype: torch.dtype, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def _deferred(rows: int, inputs: int, dtype: torch.dtype, parts: int = 3) -> Deferred:
    squares = torch.rand(rows, parts, generator=torch.Generator().manual_seed(rows)).to(DEVICE) * inputs / parts
    return Deferred(_random(rows, inputs, dtype=dtype), squares, 1e-5)


def _close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE.get(expected.dtype, 2e-5)
    scale = expected.float().abs().max().item() + 1e-6
    assert (found.float() - expected.float()).abs().max().item() <= tolerance * scale


@pytest.fixture(params=[False, True], ids=["chosen", "streamed"])
def streamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes choose the resident kernel; forbid it to test the other one on them too."""
    if request.param:
        monkeypatch.setattr("alula.kernels.gpu.linear_plan.RESIDENT_INPUT_BYTES", 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_every_mode_gives_what_the_reference_gives(
    streamed: None, rows: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs, outputs = shape
    weight, bias = _random(outputs, inputs, dtype=dtype, scale=inputs**-0.5), _random(outputs, dtype=dtype)
    x, plain = _deferred(rows, inputs, dtype), Deferred(_random(rows, inputs, dtype=dtype))
    _close(gpu.linear(x, weight), reference.linear(x, weight))
    _close(gpu.linear(plain, weight, bias), reference.linear(plain, weight, bias))
    twice = _random(2 * outputs, inputs, dtype=dtype, scale=inputs**-0.5)
    both = _random(2 * outputs, dtype=dtype)
    _close(gpu.gated_linear(x, twice), reference.gated_linear(x, twice))
    _close(gpu.gated_linear(x, twice, both), reference.gated_linear(x, twice, both))
    onto, norm = _random(rows, outputs, dtype=dtype, seed=9), Norm(_random(outputs, dtype=dtype), 1e-6)
    found = gpu.adding_linear(plain, weight, bias, onto, norm)
    expected = reference.adding_linear(plain, weight, bias, onto, norm)
    _close(found.x_RH, expected.x_RH)
    _close(found.normed.value_RI, expected.normed.value_RI)
    assert found.normed.squares_RC is not None and expected.normed.squares_RC is not None
    torch.testing.assert_close(
        found.normed.squares_RC.sum(-1), expected.normed.squares_RC.sum(-1), rtol=2e-2, atol=1e-3
    )
    _close(gpu_stream.finish(found), reference.finish(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2, 16), (3, 1, 10), (9, 3, 64)])
def test_queries_are_rotated_and_keys_and_values_written_to_their_slots(
    streamed: None, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    rows, inputs, slots = 5, 72, 40
    outputs = (num_heads + 2 * num_kv_heads) * head_dim
    weight, bias = _random(outputs, inputs, dtype=dtype, scale=inputs**-0.5), _random(outputs, dtype=dtype)
    cos, sin = rope_tables(64, inverse_frequencies(head_dim, 100.0, None), dtype)
    rope = Rope(cos.to(DEVICE), sin.to(DEVICE), torch.tensor([3, 4, 5, 60, 0], device=DEVICE))
    written = torch.tensor([7, 8, 31, 2, 0], device=DEVICE)
    caches = [_random(slots, num_kv_heads, head_dim, dtype=dtype, seed=i) for i in (1, 2)]
    expected_caches = [cache.clone() for cache in caches]
    x = _deferred(rows, inputs, dtype)
    found = gpu.qkv_linear(x, weight, bias, rope, caches[0], caches[1], written)
    expected = reference.qkv_linear(x, weight, bias, rope, expected_caches[0], expected_caches[1], written)
    _close(found, expected)
    for cache, expected_cache in zip(caches, expected_caches, strict=True):
        _close(cache, expected_cache)


@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_begin_and_end_as_the_reference_says(dtype: torch.dtype) -> None:
    table, norm = _random(50, 72, dtype=dtype), Norm(_random(72, dtype=dtype), 1e-5)
    ids = torch.tensor([3, 49, 0], device=DEVICE)
    for found, expected in (
        (gpu_stream.embed(ids, table, norm), reference.embed(ids, table, norm)),
        (gpu_stream.enter(table[:4], norm), reference.enter(table[:4], norm)),
    ):
        _close(found.x_RH, expected.x_RH)
        _close(found.normed.value_RI, expected.normed.value_RI)
        _close(gpu_stream.finish(found), reference.finish(expected))
    feature, other = _random(3, 72, dtype=dtype, seed=5), Norm(_random(72, dtype=dtype, seed=6), 1e-6)
    _close(
        gpu_stream.join_norms(ids, table, norm, feature, other),
        reference.join_norms(ids, table, norm, feature, other),
    )


@pytest.mark.gpu  # the interpreter multiplies with numpy, whose order of sums depends on the number of rows
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(
    streamed: None, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs, outputs = shape
    counts = [1, 2, 3, 9, 16, 17, 33, 64, 65]
    weight = _random(2 * outputs, inputs, dtype=dtype, scale=inputs**-0.5)
    x = _deferred(max(counts), inputs, dtype)
    assert x.squares_RC is not None
    onto, norm = _random(max(counts), 2 * outputs, dtype=dtype), Norm(_random(2 * outputs, dtype=dtype), 1e-6)
    whole = [gpu.linear(x, weight), gpu.gated_linear(x, weight)]
    whole.append(gpu.adding_linear(x, weight, None, onto, norm).x_RH)
    for count in counts:
        part = Deferred(x.value_RI[:count], x.squares_RC[:count], x.eps)
        pieces = [gpu.linear(part, weight), gpu.gated_linear(part, weight)]
        pieces.append(gpu.adding_linear(part, weight, None, onto[:count].contiguous(), norm).x_RH)
        for piece, all_rows in zip(pieces, whole, strict=True):
            assert torch.equal(piece, all_rows[:count])


@pytest.mark.parametrize("mode", [PLAIN, GATED, ADDING, QKV])
@pytest.mark.parametrize("inputs", [64, 576, 1536, 4096, 8192, 12288, 14336])
def test_what_decides_bits_does_not_depend_on_the_number_of_rows(mode: int, inputs: int) -> None:
    plans = [plan_linear(mode, rows, inputs, 4096, 128, 2) for rows in (1, 4, 16, 17, 64, 65, 512)]
    assert len({(plan.lanes, plan.lane_inputs, plan.splits) for plan in plans}) == 1
    ring_bytes = [
        plan.stages * plan.block_inputs * 2 * (plan.block_rows + plan.block_outputs * (2 if mode == GATED else 1))
        for plan in plans
    ]
    assert max(ring_bytes) <= 227 * 1024
