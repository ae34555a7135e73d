"""Whether a row's logits depend on the rows beside it, measured on the engine's own target (DESIGN 4.5).

Exact decoding needs two things: each row's attention is computed over a length that depends on its position alone
(layers/geometry.py), and matrix products give a row the same bits however many rows come with it. The second differs
between machines and sizes, so it is probed: without padding, then with padding of the few query rows of attention
(a library may take another kernel for one to five rows than for more), then with padding of all rows.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from alula.core.config import MAX_STEPS
from alula.engine.probe import row_logits, scratch_geometry, scratch_table
from alula.layers.geometry import Geometry
from alula.models.llama import LlamaModel

# torch's CPU attention walks keys in blocks of 512: a length that is a multiple of it leaves no ragged block.
KV_MULTIPLE = 512
PADDED_ROWS, PADDED_QUERIES = 16, 8
_PREFIX_TOKENS = 19
_MAX_WIDTH = MAX_STEPS + 1
_BATCHES = (16, 32, 64)  # rows


class Exactness(msgspec.Struct, frozen=True, kw_only=True):
    """off: None where a row's bits are its own, else why they are not. The rest is the padding that this takes."""

    off: str | None
    kv_multiple: int = 0
    row_multiple: int = 1
    query_multiple: int = 1

    def apply(self, geometry: Geometry) -> Geometry:
        """The geometry with this padding."""
        return replace(
            geometry,
            kv_multiple=self.kv_multiple,
            row_multiple=self.row_multiple,
            query_multiple=self.query_multiple,
        )


def plan_exactness(
    wanted: bool,
    device: torch.device,
    dtype: torch.dtype,
    target: LlamaModel,
    geometry: Geometry,
    block_refusal: str | None = None,
) -> Exactness:
    """Probes the target, over a cache of its own, where exactness is wanted (always in fp32 on a CPU).

    On a GPU the kernels of the device-resident cycle keep rows apart by construction; without them (`block_refusal`
    says why) torch's own do not."""
    if device.type != "cpu":
        return Exactness(
            off=None if block_refusal is None else f"torch_kernels_not_row_independent: {block_refusal}"
        )
    if not wanted and dtype != torch.float32:
        return Exactness(off=f"{str(dtype).removeprefix('torch.')}_on_cpu_without_exact")
    scratch = scratch_geometry(geometry, KV_MULTIPLE)
    for rows, queries in ((1, 1), (1, PADDED_QUERIES), (PADDED_ROWS, PADDED_QUERIES)):
        found = Exactness(off=None, kv_multiple=KV_MULTIPLE, row_multiple=rows, query_multiple=queries)
        if _rows_keep_their_bits(target, found.apply(scratch)):
            return found
    return msgspec.structs.replace(found, off="matrix_products_depend_on_row_count")


def _rows_keep_their_bits(target: LlamaModel, geometry: Geometry) -> bool:
    """Feeds tokens one by one, then in blocks of every width that a cycle may have, then in larger ones."""
    table = scratch_table()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.shape.vocab_size, (_PREFIX_TOKENS + max(_BATCHES),), generator=generator)

    def feed(start: int, width: int) -> Tensor:
        return row_logits(target, geometry, table, ids[start : start + width], start)

    feed(0, _PREFIX_TOKENS)
    alone_WV = torch.cat([feed(_PREFIX_TOKENS + j, 1) for j in range(_MAX_WIDTH)])
    return all(
        torch.equal(feed(_PREFIX_TOKENS, width)[:_MAX_WIDTH], alone_WV[:width])
        for width in (*range(2, _MAX_WIDTH + 1), *_BATCHES)
    )
