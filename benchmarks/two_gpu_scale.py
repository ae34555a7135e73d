"""How much the two-GPU suite does: the real run, and a dry one that goes the same ways on a CPU."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_scale import _DRY_SHAPE

from alula.core.config import EngineConfig, GraphConfig, ParallelConfig, SpeculationConfig
from alula.models.source import ModelSource, resolve_shape

# Peer-to-peer off: what peers cannot read goes through the host's memory, as on a box whose GPUs hang on PCIe alone.
PEER_BACKENDS = ("peer_push", "symmetric_one_shot", "symmetric_two_shot", "symmetric_gather")
LINKS: dict[str, dict[str, Any]] = {
    "nvlink": {},
    "pcie_like": {"nccl": {"NCCL_P2P_DISABLE": "1"}, "without": PEER_BACKENDS},
}
LOW_LATENCY = {"NCCL_PROTO": "LL"}


@dataclass(frozen=True)
class Scale:
    """Counts of one run."""

    profiles: str = ""  # a folder
    dry: bool = False
    share_gpus: bool = False
    device: str = "cuda"
    dtype: str = "bfloat16"
    rows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    sizes: tuple[int, ...] = (4096, 7168)
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 9)
    kv: int = 512
    repeats: int = 25
    cycles: int = 100
    exact_prompts: int = 32
    exact_tokens: int = 256
    exact_batch: int = 16
    deadline_s: float = 10.0

    def told(self) -> dict[str, Any]:
        return asdict(self)

    def source(self, name: str, folder: Path) -> ModelSource:
        """The shape of that name; in a dry run a tiny one."""
        if not self.dry:
            return resolve_shape(name)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(_DRY_SHAPE), encoding="utf-8")
        return resolve_shape(str(path))

    def parallel(self, link: str, **others: Any) -> ParallelConfig:
        """Two ranks over one kind of link. On a CPU there is one kind, and nothing of a GPU's to leave out."""
        fields = {**LINKS[link], **others}
        variables = "-".join(f"{name}={value}" for name, value in sorted(fields.get("nccl", {}).items()))
        fields.setdefault("comm_profile", str(Path(self.profiles) / f"collectives-{variables or 'default'}.json"))
        if self.dry:
            fields = {name: value for name, value in fields.items() if name not in ("nccl", "without")}
        return ParallelConfig(tp=2, share_gpus=self.share_gpus, rank_deadline_s=self.deadline_s, **fields)

    def config(self, parallel: ParallelConfig, steps: int, batch: int = 1, graphs: bool = True) -> EngineConfig:
        """Of as few graphs as a run needs. Context and cache are as small as its prompts."""
        return EngineConfig(
            dtype=self.dtype,
            device=self.device,
            max_batch=batch,
            context_tokens=None if self.dry else 1024,
            kv_memory_bytes=(64 << 20) if self.dry else (6 << 30),
            chunk_tokens=64 if self.dry else 512,
            parallel=parallel,
            speculation=SpeculationConfig(steps=steps, speculate="always"),
            graphs=GraphConfig(enabled=graphs, batches=(1, batch) if batch > 1 else (1,)),
        )


DRY = Scale(
    dry=True,
    device="cpu",
    dtype="float32",
    rows=(1, 3),
    sizes=(64,),
    widths=(1, 3),
    kv=24,
    repeats=2,
    cycles=6,
    exact_prompts=4,
    exact_tokens=12,
    exact_batch=2,
)
