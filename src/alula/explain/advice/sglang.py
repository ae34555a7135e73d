"""SGLang. Flag names moved: `--cuda-graph-max-bs` became `--cuda-graph-max-bs-decode` during 2026 (read in 0.5.23)."""

from __future__ import annotations

from alula.explain.advice.entry import Advice, Table, always

_OLD_GRAPHS, _NEW_GRAPHS = (0, 5, 10), (0, 5, 23)
_BETWEEN = (
    "--cuda-graph-max-bs {size}, or --cuda-graph-max-bs-decode {size} where the server_args line has "
    "cuda_graph_max_bs_decode"
)

SGLANG: Table = {
    "verify_graph": (
        Advice(
            text="read `cuda graph:` in the Decode lines (it tells of the target verify alone), or start with "
            "SGLANG_LOG_DECODE_GRAPH_KEY=1, which logs every replay with its key",
            since=(0, 5, 10),
        ),
        Advice(text="read `cuda graph:` in the Decode lines and the `Capture cuda graph` lines of the start-up"),
    ),
    "draft_graph": always(
        "look for `Capture draft cuda graph end` in the start-up log; the Decode line's `cuda graph:` says "
        "nothing of "
        "the draft"
    ),
    "extend_graph": always(
        "look for `Capture draft extend cuda graph end` in the start-up log; try --attention-backend triton or "
        "flashinfer, whose extend is captured"
    ),
    "raise_graph_batch": (
        Advice(text="--cuda-graph-max-bs-decode {size}", since=_NEW_GRAPHS),
        Advice(text=_BETWEEN, since=_OLD_GRAPHS, before=_NEW_GRAPHS),
        Advice(text="--cuda-graph-max-bs {size}", before=_OLD_GRAPHS),
    ),
    "phase_times": (
        Advice(
            text="start with SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 --enable-metrics and read "
            "sglang:forward_execution_seconds_total by category (target_verify, eagle_draft, eagle_draft_extend)",
            since=(0, 5, 10),
        ),
        Advice(text="POST /start_profile and /stop_profile on every rank and give the traces to --from"),
    ),
    "allreduce_path": always(
        "SGLang logs no path per call: take a trace of decode and of verify on every rank (POST "
        "/start_profile), and "
        "start with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
    ),
    "plain_rate": always(
        "run the same server without the --speculative-* flags and the same load; a server with speculation "
        "captures "
        "verify graphs only and cannot show its own plain step"
    ),
    "acceptance": always("read `accept len` of the Decode lines (bonus token included); ignore `accept rate`"),
    "forced_acceptance": always(
        "start with SGLANG_SIMULATE_ACC_LEN={tokens} to see what the cycle costs whatever the head proposes"
    ),
    "max_running": always("--max-running-requests {size} (with speculation SGLang sets 48 by itself, earlier 32)"),
    "draft_tp": always(
        "SGLang runs the draft in the target's tensor-parallel group; compare a run with --tp-size 1, if the "
        "model fits"
    ),
    "steps": always("--speculative-num-steps {steps} --speculative-eagle-topk 1"),
    "algorithm": always("--speculative-algorithm EAGLE3"),
    "attention": always("--speculative-attention-mode decode, and compare with prefill"),
    "custom_allreduce": (
        Advice(
            text="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 (FlashInfer's PCIe kernel, bf16, 2, 4 or 8 ranks; off by "
            "default)",
            since=(0, 5, 23),
        ),
        Advice(
            before=(0, 5, 23),
            text="this release has none for such a box: a release from 0.5.23 on has one "
            "(SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1); until then compare NCCL_PROTO=LL, set for every rank",
        ),
    ),
    "queue": always("read `#queue-req` in the Decode lines and max_running_requests in server_args"),
    "trace": always("POST /start_profile on every rank for a few decode steps, then give the traces to --from"),
}
