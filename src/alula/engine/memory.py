"""Memory that a device-resident cycle needs beside weights and KV cache, and allocations that fail: what was refused,
and which setting to change.

Knows sizes, not tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from alula.core.config import EngineConfig
from alula.core.errors import AlulaError, OutOfMemory

# Features kept of a request that decodes plainly and may draft again; when they are full, the draft reads them.
KEPT_POSITIONS = 512
# Of each logit of the largest batch, while filters look for their cut.
_DRAWING_BYTES = 8
# Loaded kernels, the nodes of graphs, libraries' workspaces, a chunk of a prompt.
_UNCOUNTED_BYTES = 256 << 20

WEIGHTS = "use a smaller --dtype or more ranks (--tp)"
KV_CACHE = "give it less (--kv-memory) or shorten the context (--context)"
CYCLE = (
    "give the KV cache less (--kv-memory), shorten the context (--context), capture fewer graphs (--graph-batches) or "
    "none (--no-graphs)"
)


def cycle_bytes(config: EngineConfig, vocab_size: int, num_features: int, dtype: torch.dtype) -> int:
    """About what the state of all seats and the graphs of a device-resident cycle take: kept features, the logits that
    each graph of a verify holds, and what drawing from the largest of them needs. Seat 0 is the dummy."""
    kept = (config.max_batch + 1) * KEPT_POSITIONS * num_features * dtype.itemsize
    # Of each batch size: plain steps that keep features and that do not, and drafted cycles.
    widths = (1, 1, config.speculation.steps + 1, *config.graphs.widths) if num_features else (1,)
    sizes = config.graphs.sizes_up_to(config.max_batch) if config.graphs.enabled else (config.max_batch,)
    rows = sum(sizes) * sum(widths)
    drawn_from = max(sizes) * max(widths)
    return kept + (rows * dtype.itemsize + drawn_from * _DRAWING_BYTES) * vocab_size + _UNCOUNTED_BYTES


def out_of_memory(error: BaseException) -> BaseException | None:
    """The refused allocation behind an error, or None where memory is not the reason. What fails behind it (a capture
    that has to be ended) hides it."""
    seen: BaseException | None = error
    while seen is not None:
        # torch's CPU allocator has no exception type of its own.
        if isinstance(seen, MemoryError | torch.OutOfMemoryError) or (
            isinstance(seen, RuntimeError) and "allocate memory" in str(seen)
        ):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def in_short(error: BaseException) -> str:
    """What an error says, without the advice that torch adds to it."""
    text = str(error).strip()
    return ". ".join(text.splitlines()[0].split(". ")[:3]).rstrip(".") if text else type(error).__name__


@contextmanager
def memory_errors(what: str, remedy: str) -> Iterator[None]:
    """Raises OutOfMemory in the place of a refused allocation."""
    try:
        yield
    except AlulaError:
        raise
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        refused = out_of_memory(error)
        if refused is None:
            raise
        raise OutOfMemory(f"out of memory for {what}: {in_short(refused)}; {remedy}") from error
