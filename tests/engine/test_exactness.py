"""Row independence (DESIGN 4.5): a token's logits have the same bits alone, in a block, and in a batch.

Always in fp32 on a CPU; in bf16 under `exact`, where this machine's kernels allow it (the engine probes that).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import engine_spy
import tiny_models
from alula.core.sampling import SamplingParams
from alula.engine.runner import EXACT_ROWS
from alula.engine.setup import Parts
from alula.layers.geometry import Segment, build_forward
from alula.layers.slot_table import SlotTable, as_tensor
from engine_spy import SpiedEngine, with_limits

# MHA, groups of 3 and 4, odd sizes, and Llama 3.1's head dimension.
FAMILIES = ["plain", "group3_tied", "group4_llama3", "linear_rope", "wide_heads"]
MAX_WIDTH = 9
# Blocks that lie in the first 512 keys, cross the border at every offset that matters, and lie behind it.
PREFIXES = [5, 507, 511, 512, 600]
PAGE_TOKENS = 4


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def exact_parts(family: str, dtype: str, head: str | None = None) -> Parts:
    parts = engine_spy.load(family, head, dtype, exact=True)
    if dtype == "bfloat16" and parts.exactness.off:
        pytest.skip(f"this machine's bf16 kernels are not row-independent: {parts.exactness.off}")
    assert parts.exactness.off is None
    return parts


class Text:
    """One request's tokens in the cache, and the logits of rows that are fed in blocks of any width."""

    def __init__(self, parts: Parts, first_page: int, num_tokens: int, seed: int) -> None:
        self.parts = parts
        self.ids = tiny_models.random_ids(num_tokens, seed)
        num_pages = -(-num_tokens // PAGE_TOKENS)
        self.table = SlotTable(PAGE_TOKENS, list(range(first_page, first_page + num_pages)))

    def segment(self, start: int, width: int) -> Segment:
        return Segment(self.table, start, width)

    def feed(self, start: int, width: int) -> Tensor:
        return run(self.parts, [(self, start, width)])[0]

    def kv(self, start: int, stop: int) -> Tensor:
        cache = self.parts.geometry.cache
        slots = as_tensor(self.table.slots(start, stop))
        return torch.stack((cache.k_LSKD[:, slots], cache.v_LSKD[:, slots]))


def run(parts: Parts, blocks: list[tuple[Text, int, int]]) -> list[Tensor]:
    """One forward over several blocks (text, first position, width); the logits of each."""
    ids = [token for text, start, width in blocks for token in text.ids[start : start + width]]
    segments = [text.segment(start, width) for text, start, width in blocks]
    output = parts.target(build_forward(parts.geometry, segments, ids, "verify"))
    widths = [width for _, _, width in blocks]
    return list(parts.target.logits(output.hidden_RH[: len(ids)], "verify").split(widths))


@pytest.mark.parametrize(("family", "threads"), [*((family, 1) for family in FAMILIES), ("wide_heads", 2)])
def test_alone_or_in_a_block(family: str, threads: int, dtype: str) -> None:
    parts = exact_parts(family, dtype)
    torch.set_num_threads(threads)
    text = Text(parts, 1, max(PREFIXES) + MAX_WIDTH, seed=1)
    for prefix in PREFIXES if threads == 1 else [511]:
        text.feed(0, prefix)
        alone_WV = torch.cat([text.feed(prefix + j, 1) for j in range(MAX_WIDTH)])
        kv_alone = text.kv(prefix, prefix + MAX_WIDTH)
        for width in range(2, MAX_WIDTH + 1):
            block_WV = text.feed(prefix, width)
            assert torch.equal(block_WV, alone_WV[:width]), f"after {prefix} tokens, {width} rows"
            assert torch.equal(text.kv(prefix, prefix + width), kv_alone[:, :, :width])


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_or_in_a_batch(family: str, dtype: str) -> None:
    """Beside single rows, blocks and chunks of other requests, with shorter and longer texts than its own."""
    parts = exact_parts(family, dtype)
    texts = [Text(parts, 1 + 170 * i, 600 + MAX_WIDTH, seed=i) for i in range(4)]
    for text in texts:
        text.feed(0, 600)
    alone = [torch.cat([text.feed(510 + j, 1) for j in range(5)]) for text in texts]
    batches = [
        [(text, 510, 1) for text in texts],
        [(text, 510, 5) for text in texts],
        [(texts[0], 510, 5), (texts[1], 510, 1), (texts[2], 510, 3), (texts[3], 40, 30)],
        [(texts[3], 30, 40), (texts[2], 510, 1), (texts[1], 510, 1), (texts[0], 510, 3)],
        [(texts[0], 510, 2), (texts[1], 20, 2), (texts[2], 580, 2)],
    ]
    for batch in batches:
        for (text, start, width), logits_WV in zip(batch, run(parts, batch), strict=True):
            if start == 510:
                assert torch.equal(logits_WV, alone[texts.index(text)][:width])


@pytest.mark.parametrize("head", ["bigram", "random"])
@pytest.mark.parametrize("family", ["plain", "group3_tied", "group4_llama3"])
def test_speculation_changes_no_bit(family: str, head: str, dtype: str) -> None:
    """Through the engine, across the border of 512 keys: the rows on the path have the bits of plain decoding."""
    parts = with_limits(exact_parts(family, dtype, head), chunk_tokens=300)
    prompts = [tiny_models.random_ids(num_prompt, seed) for seed, num_prompt in enumerate((505, 490, 20))]
    seen = []
    for steps in (0, 1, 4, 8):
        spied = SpiedEngine(parts)
        told = [spied.add(prompt, SamplingParams(max_tokens=24, ignore_eos=True), steps) for prompt in prompts]
        spied.run()
        assert all(cycle.exactness is None for cycle in spied.cycles)
        answers = [
            {row.position: row.logits_V for row in one.true_rows if row.position >= len(one.spec.prompt_ids)}
            for one in told
        ]
        seen.append(([one.token_ids for one in told], answers))
    (plain_tokens, plain_answers), *others = seen
    for tokens, answers in others:
        assert tokens == plain_tokens
        for answer, plain in zip(answers, plain_answers, strict=True):
            assert answer.keys() == plain.keys()
            assert all(torch.equal(answer[position], plain[position]) for position in plain)


def test_why_it_is_off_is_recorded() -> None:
    spied = SpiedEngine(engine_spy.load("plain", dtype="bfloat16"))
    spied.add([5, 6, 7])
    spied.run()
    assert {cycle.exactness for cycle in spied.cycles} == {"bfloat16_on_cpu_without_exact"}


def test_preemption_is_recorded() -> None:
    """A prompt's chunks and the rows of decoding may be summed in another order, so nothing is promised after it."""
    spied = SpiedEngine(with_limits(exact_parts("group3_tied", "float32"), num_pages=10))
    for seed in range(2):
        spied.add(tiny_models.random_ids(10, seed), SamplingParams(max_tokens=16, ignore_eos=True))
    spied.run()
    assert {cycle.exactness for cycle in spied.cycles} == {None, "kv_written_again_after_preemption"}


def test_an_exact_engine_reads_prompts_alone_and_splits_large_batches() -> None:
    """What a product computes for a row depends on many rows beside it: so they are never many."""
    parts = with_limits(exact_parts("plain", "float32", "random"), chunk_tokens=200, max_batch=16)
    spied = SpiedEngine(parts)
    for number in range(12):
        spied.add(tiny_models.random_ids(70 + number, number), SamplingParams(max_tokens=20, ignore_eos=True), 8)
    largest = 0
    while spied.engine.has_work:
        record = spied.step().record
        prompts = sorted(r.width for r in record.requests if r.num_prefill)
        sizes = spied.forward_sizes
        for size in prompts:
            assert size in sizes, "each prompt has a forward of its own"
            sizes.remove(size)
        assert all(size <= EXACT_ROWS for size in sizes)
        largest = max([largest, *sizes])
    assert largest > EXACT_ROWS // 2, "decoding requests still share forwards"


def test_where_a_prompt_is_cut_does_not_depend_on_what_is_beside_it() -> None:
    parts = with_limits(exact_parts("plain", "float32", "random"), chunk_tokens=32, max_batch=16)
    cuts = []
    for others in ((), (5, 40, 17)):
        spied = SpiedEngine(parts)
        for seed, length in enumerate(others):
            spied.add(tiny_models.random_ids(length, seed), SamplingParams(max_tokens=30, ignore_eos=True), 4)
        told = spied.add(tiny_models.random_ids(75, 9), SamplingParams(max_tokens=4, ignore_eos=True), 0)
        spied.run()
        cuts.append([len(block) for block in told.blocks if len(block) > 1])
    assert cuts[0] == cuts[1] == [32, 32, 11]
