"""The collectives that a model's forwards make, from its shape alone: what is worth measuring before a run.

Each layer sums whole rows of the hidden size, the output head gathers each rank's share of the vocabulary.
"""

from __future__ import annotations

from alula.comm.backends.protocol import SUM_ONTO
from alula.comm.tuning_plan import Message
from alula.core.config import EngineConfig
from alula.core.shape import ModelShape


def collective_messages(shape: ModelShape, config: EngineConfig, dtype: str, captured: bool) -> tuple[Message, ...]:
    """Of every batch size that is captured, at the widths that this engine uses, and of a chunk of a prompt.

    dtype: resolved ("bfloat16"). captured: whether decode and verify run as graphs; prompts never do."""
    item_bytes = {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
    share = -(-shape.vocab_size // config.parallel.tp)
    rows = sorted({batch * width for batch in _batches(config) for width in _widths(config)})
    kinds = [("all_reduce", shape.hidden_size), ("all_gather", share)]
    if captured:  # the device-resident cycle's layers
        kinds.append((SUM_ONTO, shape.hidden_size))
    found = [
        Message(op=op, num_bytes=count * size * item_bytes, dtype=dtype, num_rows=count, captured=captured)
        for op, size in kinds
        for count in rows
    ]
    count = config.chunk_tokens
    chunk = Message(op="all_reduce", num_bytes=count * shape.hidden_size * item_bytes, dtype=dtype, num_rows=count)
    return tuple(sorted({*found, chunk}))


def _widths(config: EngineConfig) -> tuple[int, ...]:
    speculation = config.speculation
    drafting = () if speculation.speculate == "never" else (speculation.steps + 1, *config.graphs.widths)
    return tuple(sorted({1, *drafting}))


def _batches(config: EngineConfig) -> tuple[int, ...]:
    """The smallest, the largest and every other one between: times in between are interpolated."""
    sizes = config.graphs.sizes_up_to(config.max_batch)
    return tuple(sorted({*sizes[::2], sizes[-1]}))
