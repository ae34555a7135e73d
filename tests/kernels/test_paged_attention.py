"""Attention over paged KV: torch against a dense softmax in float64, the Triton twins against torch, and rows whose
bits must not depend on what stands beside them. Every slot that no row sees holds NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from alula.kernels.gpu import paged_attention as gpu_block
from alula.kernels.gpu import prefill_attention as gpu_prefill
from alula.kernels.gpu.launch import arrivals
from alula.kernels.reference import paged as reference
from alula.kernels.reference.paged import PagedRows
from alula.kernels.reference.rows import rows_equal_enough
from interpreter import DEVICE

Attention = Callable[[Tensor, Tensor, Tensor, PagedRows], Tensor]
TWINS: dict[str, Attention] = {
    "block": gpu_block.block_attention,
    "prefill": gpu_prefill.prefill_attention,
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALL = (2, 3, 16)  # kv heads, query heads of each, head dimension
# Lines of a tile that hold no row become NaN and are not stored; numpy, which interprets them, warns.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
EXAMPLES = 25 if DEVICE.type == "cpu" else 5  # each compiles, on a GPU
LLAMA_8B, SMOLLM2 = (8, 4, 128), (3, 3, 64)


@dataclass(frozen=True)
class Case:
    q_RND: Tensor
    k_SKD: Tensor
    v_SKD: Tensor
    rows: PagedRows

    def attended(self, attention: Attention) -> Tensor:
        return attention(self.q_RND, self.k_SKD, self.v_SKD, self.rows)


def make_case(
    firsts: Sequence[int],
    width: int,
    *,
    heads: tuple[int, int, int] = SMALL,
    dtype: torch.dtype = torch.float32,
    page_tokens: int = 16,
    padding: int = 0,
    seed: int = 0,
) -> Case:
    """One request for each first position, with its pages anywhere; then `padding` requests of seat 0. Only the slots
    of a position that some row sees are finite. q is a view into wider rows."""
    num_kv_heads, group, head_dim = heads
    generator = torch.Generator().manual_seed(seed)
    num_pages = (max(firsts) + width - 1) // page_tokens + 2
    free = (torch.randperm(len(firsts) * num_pages, generator=generator) + 1).int()
    tables_SP = torch.cat([torch.zeros(1, num_pages, dtype=torch.int32), free.view(-1, num_pages)])
    seats = [int(seat) + 1 for seat in torch.randperm(len(firsts), generator=generator)] + [0] * padding
    firsts = [*firsts, *[0] * padding]
    shape = (int(free.numel() + 1) * page_tokens, num_kv_heads, head_dim)
    k_SKD, v_SKD = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    for seat, first in zip(seats, firsts, strict=True):
        slots = slots_of(tables_SP[seat], first + width, page_tokens)
        k_SKD[slots] = torch.randn(len(slots), *shape[1:], generator=generator)
        v_SKD[slots] = torch.randn(len(slots), *shape[1:], generator=generator)
    wide = num_kv_heads * (group + 2)
    qkv_RAD = torch.randn(len(seats) * width, wide, head_dim, generator=generator).to(DEVICE, dtype)
    rows = PagedRows(
        tables_SP.to(DEVICE),
        torch.tensor(seats, dtype=torch.int32, device=DEVICE),
        torch.tensor(firsts, dtype=torch.int32, device=DEVICE),
        width,
        page_tokens,
    )
    q_RND = qkv_RAD[:, : num_kv_heads * group]
    return Case(q_RND, k_SKD.to(DEVICE, dtype), v_SKD.to(DEVICE, dtype), rows)


def slots_of(table_P: Tensor, length: int, page_tokens: int) -> Tensor:
    position_T = torch.arange(length, device=table_P.device)
    return table_P[position_T // page_tokens].long() * page_tokens + position_T % page_tokens


def part(case: Case, requests: slice, columns: slice) -> Case:
    """Some requests, and some of their rows, as a case of their own."""
    rows, width = case.rows, len(range(case.rows.width)[columns])
    q_BWND = case.q_RND.unflatten(0, (-1, rows.width))[requests, columns]
    firsts = rows.first_B[requests] + (columns.start or 0)
    moved = replace(rows, seats_B=rows.seats_B[requests], first_B=firsts, width=width)
    return replace(case, q_RND=q_BWND.flatten(0, 1), rows=moved)


def dense(case: Case) -> Tensor:
    """Row by row and head by head in float64."""
    num_rows, num_heads, head_dim = case.q_RND.shape
    rows, group = case.rows, num_heads // case.k_SKD.shape[1]
    out_RND = torch.empty(num_rows, num_heads, head_dim, dtype=torch.float64)
    for row in range(num_rows):
        request = row // rows.width
        length = int(rows.first_B[request]) + row % rows.width + 1
        slots = slots_of(rows.tables_SP[int(rows.seats_B[request])], length, rows.page_tokens)
        for head in range(num_heads):
            k_TD, v_TD = (cache[slots, head // group].double() for cache in (case.k_SKD, case.v_SKD))
            weights_T = torch.softmax(k_TD @ case.q_RND[row, head].double() / head_dim**0.5, 0)
            out_RND[row, head] = weights_T @ v_TD
    return out_RND.flatten(1)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    assert not found.isnan().any()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("firsts", [(0,), (5, 0, 31), (16, 15)])
def test_the_reference_is_a_dense_softmax(firsts: tuple[int, ...], dtype: torch.dtype) -> None:
    case = make_case(firsts, 3, dtype=dtype, page_tokens=4, padding=1)
    expected = dense(case).to(DEVICE, dtype)
    for attention in (reference.block_attention, reference.prefill_attention):
        assert rows_equal_enough(case.attended(attention), expected)


@pytest.mark.parametrize("twin", TWINS)
@given(data=st.data())
@settings(max_examples=EXAMPLES, phases=(Phase.generate,))  # shrinking would take minutes in the interpreter
def test_twins_agree_with_the_reference(twin: str, data: st.DataObject) -> None:
    lengths = st.one_of(st.integers(0, 200), st.sampled_from([0, 62, 63, 64, 127, 128]))
    heads = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from([2, 16, 24, 64])))
    case = make_case(
        data.draw(st.lists(lengths, min_size=1, max_size=2)),
        data.draw(st.integers(1, 9)),
        heads=heads,
        dtype=data.draw(st.sampled_from(DTYPES)),
        page_tokens=data.draw(st.sampled_from([3, 16, 64, 96])),
        padding=data.draw(st.integers(0, 1)),
        seed=data.draw(st.integers(0, 99)),
    )
    expected = case.attended(reference.block_attention)
    assert rows_equal_enough(case.attended(TWINS[twin]), expected)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("first", "width"), [(0, 100), (1000, 40), (1023, 2)])
def test_wide_and_long(twin: str, first: int, width: int) -> None:
    case = make_case([first], width, heads=(1, 4, 32))
    assert rows_equal_enough(case.attended(TWINS[twin]), case.attended(reference.block_attention))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("first", [0, 59, 1019])
def test_a_block_has_the_bits_of_single_steps(first: int, dtype: torch.dtype) -> None:
    """Over the first chunk's end (from one split, which is not combined, to two) and over the last split's."""
    block = make_case([first], 9, heads=(1, 4, 32), dtype=dtype)
    steps = [part(block, slice(None), slice(j, j + 1)).attended(gpu_block.block_attention) for j in range(9)]
    for width in range(2, 10):
        found = part(block, slice(None), slice(0, width)).attended(gpu_block.block_attention)
        assert_same_bits(found, torch.cat(steps[:width]))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("others", [(64, 3), (0, 200, 63, 7, 1, 130)])
def test_a_batch_has_the_bits_of_requests_alone(twin: str, others: tuple[int, ...]) -> None:
    batch = make_case([*others, 125], 4, dtype=torch.bfloat16, padding=1)
    found = batch.attended(TWINS[twin]).unflatten(0, (-1, 4))
    for request in range(len(others) + 1):
        alone = part(batch, slice(request, request + 1), slice(None))
        assert_same_bits(found[request], alone.attended(TWINS[twin]))


def test_a_prompt_cut_into_chunks_agrees() -> None:
    whole = make_case([0], 70)
    cut = [
        part(whole, slice(None), slice(a, b)).attended(gpu_prefill.prefill_attention)
        for a, b in ((0, 33), (33, 70))
    ]
    assert rows_equal_enough(torch.cat(cut), whole.attended(gpu_prefill.prefill_attention))


def test_arrivals_are_zero_again() -> None:
    case = make_case([300, 10], 5)
    first = case.attended(gpu_block.block_attention)
    assert_same_bits(case.attended(gpu_block.block_attention), first)
    assert not arrivals(case.q_RND.device, 1).any()


@pytest.mark.parametrize("twin", TWINS)
def test_rows_behind_a_full_table_see_the_table(twin: str) -> None:
    case = make_case([40], 2)
    full = replace(case.rows, tables_SP=case.rows.tables_SP[:, :2], first_B=case.rows.first_B - 9)
    case = replace(case, rows=full)  # positions 31 and 32 of 32
    assert rows_equal_enough(case.attended(TWINS[twin]), case.attended(reference.block_attention))


def test_no_rows() -> None:
    case = part(make_case([3], 1), slice(0, 0), slice(None))
    for attention in (*TWINS.values(), reference.block_attention):
        assert case.attended(attention).shape == (0, 6 * 16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("heads", [LLAMA_8B, SMOLLM2, (1, 16, 256), (2, 7, 80)], ids=str)
def test_bits_of_real_shapes(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Widths 1..16, alone and in batches, over borders of pages, chunks and rounds of splits."""
    firsts = [0, 1, 50, 511, 1020, 2040, 5000]
    batch = make_case(firsts, 16, heads=heads, dtype=dtype, padding=1)
    widest = batch.attended(gpu_block.block_attention).unflatten(0, (-1, 16))
    assert rows_equal_enough(widest.flatten(0, 1), batch.attended(reference.block_attention))
    assert rows_equal_enough(batch.attended(gpu_prefill.prefill_attention), widest.flatten(0, 1))
    for width in range(1, 16):
        for start in range(0, 16 - width + 1, width):
            narrow = part(batch, slice(None), slice(start, start + width))
            expected = widest[:, start : start + width].flatten(0, 1)
            assert_same_bits(narrow.attended(gpu_block.block_attention), expected)
    for request in range(len(firsts)):
        alone = part(batch, slice(request, request + 1), slice(3, 7))
        assert_same_bits(alone.attended(gpu_block.block_attention), widest[request, 3:7])


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [LLAMA_8B, SMOLLM2], ids=str)
def test_long_prompts(heads: tuple[int, int, int]) -> None:
    case = make_case([6000], 512, heads=heads, dtype=torch.bfloat16)
    expected = case.attended(reference.block_attention)
    assert rows_equal_enough(case.attended(gpu_prefill.prefill_attention), expected)
    assert rows_equal_enough(case.attended(gpu_block.block_attention), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("twin", TWINS)
def test_a_graph_reads_positions_and_tables_anew(twin: str) -> None:
    cases = [
        make_case(firsts, 4, heads=LLAMA_8B, dtype=torch.bfloat16) for firsts in ([700, 30], [1, 1500], [90, 64])
    ]
    kept = make_case([1, 1500], 4, heads=LLAMA_8B, dtype=torch.bfloat16)
    kept.attended(TWINS[twin])  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kept.attended(TWINS[twin])
    for case in [*cases, *cases]:
        kept.q_RND.copy_(case.q_RND)
        kept.k_SKD[: len(case.k_SKD)].copy_(case.k_SKD)
        kept.v_SKD[: len(case.v_SKD)].copy_(case.v_SKD)
        kept.rows.tables_SP.zero_()[:, : case.rows.tables_SP.shape[1]].copy_(case.rows.tables_SP)
        kept.rows.seats_B.copy_(case.rows.seats_B)
        kept.rows.first_B.copy_(case.rows.first_B)
        graph.replay()
        assert_same_bits(out, kept.attended(TWINS[twin]))
        assert rows_equal_enough(out, kept.attended(reference.block_attention))
