"""How much the GPU suite does: the real run, and a dry one that goes the same ways in seconds on a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from alula.core.config import EngineConfig, GraphConfig, SpeculationConfig
from alula.models.source import ModelSource, resolve_shape

STEPS = 3
FORCED = 2.8
NOMINAL_BANDWIDTH = 4.3e12  # bytes a second: what DESIGN section 7 counts floors with
LARGE, SMALL = "llama-3.1-8b", "smollm2-135m"
_DRY_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Scale:
    """Counts of one run. kv: tokens that attention reads, the first of them also for the sweep by width."""

    dry: bool = False
    device: str = "cuda"
    dtype: str = "bfloat16"
    kv: tuple[int, ...] = (512, 8192)
    batches: tuple[int, ...] = (1, 4, 16)
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    repeats: int = 25
    cycles: int = 210
    long_cycles: int = (
        64  # where the cache is long and the batch above 1: reading the prompts takes most of the time
    )
    context: int = 9216  # of the large shape
    chunk_tokens: int = 2048
    read_bytes: int = 4 << 30
    bits_batches: tuple[int, ...] = (1, 4, 7)
    bits_cached: tuple[int, ...] = (130, 511, 2047, 64, 1023, 3000, 17)
    twelve: int = 12
    ks: tuple[int, ...] = (2, 3, 4, 5)
    answer_tokens: int = 256
    built_in_prompts: int = 24
    random_prompts: int = 28
    random_lengths: tuple[int, int] = (20, 200)
    served_batch: int = 16
    auto_answers: int = 24
    auto_large_answers: int = 4

    def source(self, name: str, folder: Path) -> ModelSource:
        """The shape of that name; in a dry run a tiny one, whose config is written to `folder`."""
        if not self.dry:
            return resolve_shape(name)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(_DRY_SHAPE), encoding="utf-8")
        return resolve_shape(str(path))

    def config(
        self,
        speculation: SpeculationConfig,
        *,
        kv_gib: float,
        max_batch: int = 32,
        context: int | None = None,
        chunk_tokens: int = 512,
    ) -> EngineConfig:
        """As a user would have it, but for what a run must fix."""
        return EngineConfig(
            dtype=self.dtype,
            device=self.device,
            max_batch=min(max_batch, 8) if self.dry else max_batch,
            context_tokens=None if self.dry else context,
            kv_memory_bytes=(64 << 20) if self.dry else int(kv_gib * 2**30),
            chunk_tokens=64 if self.dry else chunk_tokens,
            threads=1 if self.dry else None,
            speculation=speculation,
            graphs=GraphConfig(),
        )


DRY = Scale(
    dry=True,
    device="cpu",
    dtype="float32",
    kv=(24, 160),
    batches=(1, 2),
    widths=(1, 2, 4),
    repeats=2,
    cycles=8,
    long_cycles=4,
    read_bytes=1 << 16,
    bits_batches=(1, 2),
    bits_cached=(9, 33),
    twelve=2,
    ks=(2, 3),
    answer_tokens=10,
    built_in_prompts=1,
    random_prompts=3,
    random_lengths=(3, 9),
    served_batch=2,
    auto_answers=2,
    auto_large_answers=2,
)
