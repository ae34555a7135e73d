"""vLLM. Names of graph sizes changed with 0.12; the V0 engine ended with 0.10."""

from __future__ import annotations

from alula.explain.advice.entry import Advice, Table, always

_NEW_SIZES = (0, 12)
_FULL_GRAPH = (
    "an attention backend that supports uniform batches in graphs ({how}), or a release that captures this one"
)

VLLM: Table = {
    "verify_graph": (
        Advice(
            text="read `cudagraph_mode` in the start-up log and the `Capturing CUDA graphs (... FULL)` lines; "
            "--cudagraph-metrics prints the runtime mode of every target step",
            since=_NEW_SIZES,
        ),
        Advice(
            text="read `cudagraph_mode` in the config dump and the `Capturing CUDA graphs` lines; start with "
            "VLLM_LOGGING_LEVEL=DEBUG"
        ),
    ),
    "full_graph": (
        Advice(text=_FULL_GRAPH.replace("{how}", "--attention-backend FLASH_ATTN"), since=_NEW_SIZES),
        Advice(text=_FULL_GRAPH.replace("{how}", "VLLM_ATTENTION_BACKEND=FLASH_ATTN"), before=_NEW_SIZES),
    ),
    "draft_graph": always(
        "look for a capture line of the drafter ending in (FULL); --cudagraph-metrics does not count the drafter: "
        "take a trace (--profiler-config, or VLLM_TORCH_PROFILER_DIR in older releases)"
    ),
    "extend_graph": always("take a trace: vLLM prints nothing about the drafter's first forward"),
    "raise_graph_batch": (
        Advice(text="--max-cudagraph-capture-size {rows}", since=_NEW_SIZES),
        Advice(text="--cuda-graph-sizes {rows}", before=_NEW_SIZES),
    ),
    "phase_times": always(
        "take a torch profiler trace of a few decode steps on every rank (VLLM_TORCH_PROFILER_DIR or "
        "--profiler-config, "
        "then POST /start_profile and /stop_profile) and give it to --from"
    ),
    "allreduce_path": always(
        "the start-up list of all-reduce backends is not the order of the code: take a trace of decode and "
        "verify on "
        "every rank, and start with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
    ),
    "plain_rate": always("run the same command without --speculative-config and the same load"),
    "acceptance": always("read the `SpecDecoding metrics` lines: mean acceptance length and per-position rates"),
    "forced_acceptance": (
        Advice(
            text='"rejection_sample_method": "synthetic" in --speculative-config forces the acceptance to see '
            "what the "
            "cycle costs",
            since=(0, 20),
        ),
        Advice(
            text="compare two values of num_speculative_tokens: the line through their cycle times separates costs"
        ),
    ),
    "max_running": always("--max-num-seqs {size}"),
    "draft_tp": always(
        '"draft_tensor_parallel_size": 1 in --speculative-config, and check in the log that it took effect'
    ),
    "steps": always('"num_speculative_tokens": {steps} in --speculative-config'),
    "algorithm": always('"method": "eagle3" in --speculative-config'),
    "attention": (
        Advice(text="--attention-backend FLASH_ATTN, and compare", since=_NEW_SIZES),
        Advice(text="VLLM_ATTENTION_BACKEND=FLASH_ATTN, and compare", before=_NEW_SIZES),
    ),
    "custom_allreduce": (
        Advice(
            text="VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 (FlashInfer's PCIe kernel; off by default)",
            since=(0, 33),
        ),
        Advice(
            before=(0, 33),
            text="this release has none for such a box: a release from 0.33 on has one "
            "(VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1); until then compare NCCL_PROTO=LL, set for every rank",
        ),
    ),
    "queue": always("read `Running:` and `Waiting:` of the Engine lines and --max-num-seqs"),
    "trace": always(
        "VLLM_TORCH_PROFILER_DIR=DIR (or --profiler-config), POST /start_profile and /stop_profile, every rank"
    ),
}
