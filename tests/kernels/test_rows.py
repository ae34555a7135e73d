"""Native row operations against the reference: shapes, dtypes, strides, hostile values, rows that must not mix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from alula.kernels.cpu import native
from alula.kernels.cpu.native import BuildRefused
from alula.kernels.cpu.rows import Rows as NativeRows
from alula.kernels.reference.rows import Rows as ReferenceRows
from alula.kernels.reference.rows import rows_equal_enough
from alula.layers.kernels import choose_kernels

DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-5


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(scope="module")
def native_rows(dtype: torch.dtype) -> NativeRows:
    try:
        return NativeRows(dtype)
    except BuildRefused as refusal:
        pytest.skip(f"not run: {refusal}")


def made(dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


SHAPES = [(1, 1), (1, 64), (2, 33), (5, 576), (17, 100), (64, 1536)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_norms_equal_the_reference(
    native_rows: NativeRows, dtype: torch.dtype, shape: tuple[int, int], scale: float
) -> None:
    reference = ReferenceRows()
    x, delta, weight = made(dtype, *shape, scale=scale), made(dtype, *shape), made(dtype, shape[1])
    assert rows_equal_enough(native_rows.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))
    found, expected = (rows.add_rms_norm(x, delta, weight, EPS) for rows in (native_rows, reference))
    assert torch.equal(found[0], expected[0]), "the sum is one rounded addition on either side"
    assert rows_equal_enough(found[1], expected[1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_silu_equals_the_reference(
    native_rows: NativeRows, dtype: torch.dtype, shape: tuple[int, int], scale: float
) -> None:
    gate_up = made(dtype, shape[0], 2 * shape[1], scale=scale)
    found, expected = native_rows.silu_and_multiply(gate_up), ReferenceRows().silu_and_multiply(gate_up)
    assert rows_equal_enough(found / scale, expected / scale)


@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (2, 1, 6), (32, 8, 128)])
@pytest.mark.parametrize("num_rows", [1, 4, 37])
@pytest.mark.parametrize("adjacent", [True, False])
def test_rotation_and_write_equal_the_reference(
    native_rows: NativeRows, dtype: torch.dtype, heads: tuple[int, int, int], num_rows: int, adjacent: bool
) -> None:
    num_heads, num_kv_heads, size = heads
    qkv = made(dtype, num_rows, num_heads + 2 * num_kv_heads, size)
    rotary = made(dtype, num_rows, size), made(dtype, num_rows, size)
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:num_rows]
    slots = slice(7, 7 + num_rows) if adjacent else shuffled
    results = []
    for rows in (native_rows, ReferenceRows()):
        k, v = (torch.zeros(64, num_kv_heads, size, dtype=dtype) for _ in range(2))
        results.append((rows.rotate_and_write(qkv, rotary, k, v, slots), k, v))
    for found, expected in zip(*results, strict=True):
        assert rows_equal_enough(found, expected)
    assert torch.equal(results[0][2], results[1][2]), "values are copied, not computed"


@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (2, 1, 6), (32, 8, 128)])
@pytest.mark.parametrize("num_rows", [1, 4, 9])
@pytest.mark.parametrize("padding", [0, 5])
def test_folding_and_unfolding_equal_the_reference(
    native_rows: NativeRows, dtype: torch.dtype, heads: tuple[int, int, int], num_rows: int, padding: int
) -> None:
    num_heads, num_kv_heads, size = heads
    folded_rows = num_rows * (num_heads // num_kv_heads) + padding
    qkv = made(dtype, num_rows, num_heads + 2 * num_kv_heads, size)
    rotary = made(dtype, num_rows, size), made(dtype, num_rows, size)
    k, v = (torch.zeros(16, num_kv_heads, size, dtype=dtype) for _ in range(2))
    flat = native_rows.rotate_and_write(qkv, rotary, k, v, slice(0, num_rows))
    for rows in (native_rows, ReferenceRows()):
        folded = rows.rotate_and_write(qkv, rotary, k, v, slice(0, num_rows), folded_rows)
        assert folded.shape == (1, num_kv_heads, folded_rows, size)
        assert not padding or not folded[:, :, -padding:].any()
        assert rows_equal_enough(rows.unfold(folded, num_rows, num_heads), flat.flatten(1))
        turned = folded.transpose(1, 2).contiguous().transpose(1, 2)  # as attention may give its result
        assert torch.equal(rows.unfold(turned, num_rows, num_heads), rows.unfold(folded, num_rows, num_heads))


def test_strided_inputs_are_read_rightly(native_rows: NativeRows, dtype: torch.dtype) -> None:
    x, weight = made(dtype, 4, 128)[:, ::2], made(dtype, 64)
    assert torch.equal(native_rows.rms_norm(x, weight, EPS), native_rows.rms_norm(x.contiguous(), weight, EPS))
    turned = made(dtype, 64, 4).T
    assert torch.equal(native_rows.silu_and_multiply(turned), native_rows.silu_and_multiply(turned.contiguous()))


def test_a_row_does_not_depend_on_the_others(native_rows: NativeRows, dtype: torch.dtype) -> None:
    x, delta, weight = made(dtype, 33, 576), made(dtype, 33, 576), made(dtype, 576)
    block = native_rows.add_rms_norm(x, delta, weight, EPS)[1]
    for row in (0, 1, 16, 32):
        alone = native_rows.add_rms_norm(x[row : row + 1], delta[row : row + 1], weight, EPS)[1]
        assert torch.equal(alone[0], block[row])


def test_nan_and_infinity_come_through(native_rows: NativeRows, dtype: torch.dtype) -> None:
    """A faulty row must stay visible to the check of the logits, and leave its neighbours alone."""
    x, weight = made(dtype, 3, 64), made(dtype, 64)
    x[1, 5] = float("nan")
    out = native_rows.rms_norm(x, weight, EPS)
    assert out[1].isnan().all() and out[0].isfinite().all() and out[2].isfinite().all()
    gate_up = made(dtype, 2, 64)
    gate_up[0, 3], gate_up[1, 40] = float("nan"), float("inf")
    activated = native_rows.silu_and_multiply(gate_up)
    assert activated[0, 3].isnan() and not activated[1, 8].isfinite()


def test_slots_outside_the_cache_are_refused(native_rows: NativeRows, dtype: torch.dtype) -> None:
    qkv, rotary = made(dtype, 2, 4, 8), (made(dtype, 2, 8), made(dtype, 2, 8))
    k, v = torch.zeros(4, 1, 8, dtype=dtype), torch.zeros(4, 1, 8, dtype=dtype)
    with pytest.raises(IndexError, match="outside the cache"):
        native_rows.rotate_and_write(qkv, rotary, k, v, slice(3, 5))


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_bf16_rounding_is_torchs(values: list[float]) -> None:
    """x + 0 through the native addition only rounds nothing; x + y rounds as torch does."""
    try:
        rows = NativeRows(torch.bfloat16)
    except BuildRefused as refusal:
        pytest.skip(f"not run: {refusal}")
    x = torch.tensor([values]).to(torch.bfloat16)
    delta = x.flip(1) * 0.37
    found, _ = rows.add_rms_norm(x, delta, torch.ones_like(x[0]), EPS)
    assert torch.equal(found, x + delta)


def test_no_compiler_is_a_recorded_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    kernels = choose_kernels(torch.device("cpu"), torch.float32)
    assert kernels.rows.name == "torch"
    assert kernels.facts()["rows"] == {
        "kernel": "torch",
        "refusal": "no C compiler (no-such-compiler) on PATH",
    }


def test_a_failing_compiler_is_a_recorded_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "broken-cc"
    script.write_text("#!/bin/sh\necho 'broken-cc: no output today' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BuildRefused, match="no output today"):
        native.load_library("BF16")


def test_an_unwritable_cache_is_a_refusal_not_a_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildRefused, match="cannot build or load"):
        native.load_library("BF16")
