"""TensorRT-LLM, llama.cpp, alula itself, and what holds for any engine."""

from __future__ import annotations

from alula.explain.advice.entry import Table, always

TENSORRT_LLM: Table = {
    "verify_graph": always("check cuda_graph_config (batch_sizes, enable_padding) and take an nsys profile"),
    "phase_times": always("enable_iter_perf_stats, then read specDecodingStats (iterLatencyMS, draftOverhead)"),
    "allreduce_path": always(
        "TLLM_LOG_LEVEL=DEBUG shows which all-reduce strategy falls back; nsys shows the kernels"
    ),
    "acceptance": always("read specDecodingStats.acceptanceLength of the iteration stats"),
    "steps": always("max_draft_len: {steps} in speculative_config"),
    "raise_graph_batch": always("cuda_graph_config.batch_sizes up to {size}"),
    "trace": always("nsys with TLLM_PROFILE_START_STOP=A-B"),
}
LLAMA_CPP: Table = {
    "verify_graph": always("llama-bench -p 256 -ub 1,2,3,4,8 shows what a verify of that many rows costs"),
    "phase_times": always("read dur(b,g,a) of the `statistics` lines: g is the draft's time; -v prints them"),
    "acceptance": always("read `draft acceptance` and `statistics` of the server log"),
    "steps": always("--spec-draft-n-max {steps} (older releases: --draft-max {steps})"),
    "forced_acceptance": always(
        "compare several --spec-draft-n-max: the line through their cycle times separates costs"
    ),
    "trace": always("GGML_CUDA_DISABLE_GRAPHS=1 against 0 shows what graphs are worth; nsys shows gaps"),
    "expert_rows": always("llama-bench -p 256 -ub 1,2,3,4,8 shows what a verify of that many rows costs"),
}
ALULA: Table = {
    "verify_graph": always(
        "alula explain MODEL --draft HEAD compares eager and graph; facts.graphs has the reasons"
    ),
    "phase_times": always("alula bench MODEL --draft HEAD --json FILE"),
    "allreduce_path": always("the dispatch records of --record FILE show decode's and verify's backends"),
    "steps": always("--steps {steps}"),
    "raise_graph_batch": always("--graph-batches 1,2,4,...,{size}"),
    "plain_rate": always("alula bench measures plain and EAGLE-3 in the same run"),
}
GENERAL: Table = {
    "nccl_environment": always(
        "start with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV and count `NAME set by environment to` per rank; "
        "`tr '\\0' '\\n' < /proc/PID/environ` shows what a worker was started with"
    ),
    "nccl_tuning": always(
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING: rank 0 prints algorithm and protocol for each size "
        "(kernel names prove neither)"
    ),
    "transport": always(
        "NCCL_DEBUG=INFO: `via P2P`, `via SHM` or `via NET` of the Channel lines; nvidia-smi topo -p2p r"
    ),
    "clocks": always(
        "nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,power.draw,utilization.gpu,clocks_throttle_reasons.active "
        "--format=csv -l 1, while it decodes"
    ),
    "verify_graph": always(
        "SGLang: `cuda graph:` in the Decode lines and SGLANG_LOG_DECODE_GRAPH_KEY=1. vLLM: `cudagraph_mode` "
        "and the "
        "`Capturing CUDA graphs (... FULL)` lines. Any engine: cudaGraphLaunch in a trace of verify"
    ),
    "allreduce_path": always(
        "SGLang and vLLM: `Custom allreduce is disabled` and `Registering N cuda graph addresses` in the "
        "start-up log; "
        "any engine: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING, and a trace of decode and of verify "
        "on every rank"
    ),
    "phase_times": always("take a profiler trace of a few cycles on every rank and give it to --from"),
    "trace": always("take a profiler trace of a few cycles on every rank and give it to --from"),
    "plain_rate": always(
        "measure the same prompts at the same load without speculation (--plain-tps, or --baseline FILE)"
    ),
    "acceptance": always("tokens per verify step (accepted drafts + 1) and the acceptance of each draft position"),
    "forced_acceptance": always(
        "measure two draft lengths: the line through their cycle times separates the costs"
    ),
    "draft_graph": always("cudaGraphLaunch against cudaLaunchKernel in a trace of the draft phase"),
    "extend_graph": always("cudaGraphLaunch against cudaLaunchKernel in a trace of the draft's extend"),
    "raise_graph_batch": always("capture graphs for {size} requests ({rows} rows)"),
    "full_graph": always("an attention backend whose verify can be captured as a full graph"),
    "draft_tp": always("run the draft on one rank, if the engine can"),
    "steps": always("{steps} drafts a cycle"),
    "algorithm": always("the EAGLE-3 mode of the engine"),
    "attention": always("compare a decode-shaped with a prefill-shaped attention kernel for verify"),
    "custom_allreduce": always("an all-reduce over peer memory that works without NVLink"),
    "max_running": always("raise the cap on running requests to {size}"),
    "queue": always("the number of waiting requests beside the running ones"),
    "expert_rows": always("measure a target forward of 1, 2, 3 and 4 rows, everything else equal"),
}
