"""Configs of the engine: frozen, keyword-only, checked once. "auto" is resolved by returning a new config."""

from __future__ import annotations

import msgspec

from alula.core.errors import InvalidOption

MAX_STEPS = 8
SPECULATE = ("auto", "always", "never")
DTYPES = ("auto", "bfloat16", "float16", "float32")
_LARGEST_GRAPH_BATCH = 512
GRAPH_PHASES = ("draft", "verify", "extend")
PLACEMENTS = ("auto", "sharded", "replicated")
COMM_PROOFS = ("strict", "warn", "off")


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor parallelism of one engine.

    tp: number of ranks. collectives: "auto", "fastest" or the name of one backend. draft: whether the head is sharded
    over the ranks or held whole by each ("auto" shards where its heads divide by tp). rank_deadline_s: how long a rank
    may be silent, or keep others waiting, before the run ends (docs/ranks.md). nccl: variables of NCCL that every rank
    is started with. comm_profile: file of a measured table. comm_proof: what a rank whose environment is not the
    planned one does. share_gpus: ranks may share a GPU, for correctness only. without: backends of collectives to
    leave out.
    """

    tp: int = 1
    collectives: str = "auto"
    draft: str = "auto"
    rank_deadline_s: float = 10.0
    nccl: dict[str, str] = {}
    comm_profile: str | None = None
    comm_proof: str = "strict"
    share_gpus: bool = False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise InvalidOption(f"--tp is {self.tp}; expected 1 or more")
        if not 0 < self.rank_deadline_s < float("inf"):
            raise InvalidOption(f"--rank-deadline is {self.rank_deadline_s}; expected seconds above 0")
        if self.draft not in PLACEMENTS:
            raise InvalidOption(f"--draft-tp is {self.draft!r}; expected one of {', '.join(PLACEMENTS)}")
        if self.comm_proof not in COMM_PROOFS:
            raise InvalidOption(f"--comm-proof is {self.comm_proof!r}; expected one of {', '.join(COMM_PROOFS)}")


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafting: `steps` drafts a cycle (k). head: "trained", "random" or "adversarial" weights of the draft.

    speculate: "auto" drafts while that is measured to be the faster way (docs/speculation.md), or "always", or "never".
    aux_boundaries and feedback override what the head's config says (see docs/heads.md). forced_tokens_per_cycle
    decides beforehand how many drafts count, whatever the target says of them: for costs, the text is meaningless.
    """

    steps: int = 3
    speculate: str = "auto"
    head: str = "trained"
    aux_boundaries: tuple[int, ...] | None = None
    feedback: str | None = None  # "pre" or "post" the final norm
    forced_tokens_per_cycle: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise InvalidOption(f"--steps is {self.steps}; expected 1 to {MAX_STEPS}")
        if self.speculate not in SPECULATE:
            raise InvalidOption(f"--speculate is {self.speculate!r}; expected one of {', '.join(SPECULATE)}")
        if self.head not in ("trained", "random", "adversarial"):
            raise InvalidOption(f"--draft-head is {self.head!r}; expected 'trained', 'random' or 'adversarial'")
        if self.speculate == "never" and self.forced_tokens_per_cycle is not None:
            raise InvalidOption(
                f"--tokens-per-cycle {self.forced_tokens_per_cycle} forces how many drafts count and --speculate never "
                "drafts nothing; drop one of them"
            )
        if self.feedback not in (None, "pre", "post"):
            raise InvalidOption(f"feedback is {self.feedback!r}; expected 'pre' or 'post'")
        if self.forced_tokens_per_cycle is not None:
            check_forced(self.forced_tokens_per_cycle, self.steps)


def check_forced(tokens_per_cycle: float, steps: int) -> None:
    """Raises InvalidOption for a mean that no cycles of `steps` drafts can have."""
    if not 1.0 <= tokens_per_cycle <= steps + 1:
        raise InvalidOption(
            f"--tokens-per-cycle is {tokens_per_cycle}; with {steps} drafts a cycle, expected 1 to {steps + 1}"
        )


class GraphConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CUDA graphs. batches: the sizes that graphs are captured for; a batch is padded to the next of them, and one
    beyond the largest runs eagerly. widths: rows a request that are captured at start besides 1 and k+1; others are at
    their first use. eager: phases that are to run without a graph, for experiments.
    """

    enabled: bool = True
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    widths: tuple[int, ...] = ()
    eager: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.batches or sorted(set(self.batches)) != list(self.batches) or self.batches[0] < 1:
            raise InvalidOption(
                f"--graph-batches is {_listed(self.batches)!r}; expected rising sizes from 1, such as 1,2,4,8"
            )
        if self.batches[-1] > _LARGEST_GRAPH_BATCH:
            raise InvalidOption(
                f"--graph-batches holds {self.batches[-1]}; expected sizes up to {_LARGEST_GRAPH_BATCH}: a batch is "
                "padded to the next size and costs what that costs"
            )
        if any(not 1 <= width <= MAX_STEPS + 1 for width in self.widths):
            raise InvalidOption(
                f"--graph-widths is {_listed(self.widths)!r}; expected widths from 1 to {MAX_STEPS + 1}"
            )
        for phase in self.eager:
            if phase not in GRAPH_PHASES:
                raise InvalidOption(f"--eager is {phase!r}; expected one of {', '.join(GRAPH_PHASES)}")

    def padded(self, num_requests: int) -> int:
        """The size that a batch is padded to: the next that is captured, or its own beyond the largest."""
        return next((size for size in self.batches if size >= num_requests), num_requests)

    def sizes_up_to(self, max_batch: int) -> tuple[int, ...]:
        """The sizes that batches of at most max_batch requests are padded to."""
        return tuple(size for size in self.batches if size <= self.padded(max_batch))


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. `dtype` and `device` may be "auto" until engine/setup.py has settled them in a new config.

    kv_memory_bytes: budget of the paged KV cache, target and draft together; None sizes it from free memory.
    context_tokens: longest sequence served; None takes the model's own limit (or less, where memory is short).
    """

    dtype: str = "auto"
    device: str = "auto"
    exact: bool = False
    page_tokens: int = 16
    kv_memory_bytes: int | None = None
    context_tokens: int | None = None
    max_batch: int = 32
    chunk_tokens: int = 512
    threads: int | None = None
    seed: int = 0
    parallel: ParallelConfig = ParallelConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    graphs: GraphConfig = GraphConfig()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidOption(f"--dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        for name in ("page_tokens", "max_batch", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("kv_memory_bytes", "context_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOption(f"{name} is {value}; expected 1 or more, or none")
