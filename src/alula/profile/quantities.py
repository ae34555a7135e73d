"""The fixed vocabulary of evidence: what a number, a word or a yes-or-no is about, and its unit.

Knows names only. What a quantity means for speculation is the business of `explain`. The scope fields that a quantity
makes use of (phase, position, name, ...) stand behind it; `evidence.Scope` explains them.
"""

from __future__ import annotations

from enum import StrEnum


class Quantity(StrEnum):
    """What one piece of evidence is about. A name that ends in a unit is a number of that unit."""

    # --- rates and times of a run. Of a run that may be plain or speculative: step_ms, tokens_per_s.
    PLAIN_STEP_MS = "plain_step_ms"  # one plain decode step, known to be without speculation
    CYCLE_MS = "cycle_ms"  # one propose-verify-accept-commit cycle
    STEP_MS = "step_ms"  # a decode iteration of a run not known to be plain or speculative
    PLAIN_TOKENS_PER_S = "plain_tokens_per_s"
    SPEC_TOKENS_PER_S = "spec_tokens_per_s"
    TOKENS_PER_S = "tokens_per_s"  # of a run not known to be plain or speculative; all requests together
    VERIFY_MS = "verify_ms"  # one target forward over root and drafts (scope: width, batch)
    DRAFT_MS = "draft_ms"  # all draft forwards of a cycle, without the extend
    DRAFT_STEP_MS = "draft_step_ms"  # one draft forward
    EXTEND_MS = "extend_ms"  # the draft's pass over committed positions
    PHASE_MS = "phase_ms"  # another phase of a cycle (scope: phase)
    HOST_MS = "host_ms"  # part of a cycle in which the device idles and the host works
    FORWARD_MS = "forward_ms"  # a target or draft forward in an experiment (scope: phase, width, batch, variant)
    FLOOR_MS = "floor_ms"  # what no program can be faster than (scope: phase)
    EXPECTED_MS = "expected_ms"  # what a phase would take at the rate of the same machine's target (scope: phase)
    RANK_PHASE_MS = "rank_phase_ms"  # a phase of a cycle as one rank saw it (scope: phase, rank)
    MEMORY_BYTES_PER_S = "memory_bytes_per_s"  # measured ceiling of the device's memory
    GEMM_TFLOPS = "gemm_tflops"  # measured; of a clamped device far under its own kind
    TOKEN_MS = "token_ms"  # time per output token (TPOT)
    CHUNK_MS = "chunk_ms"  # time between streamed chunks (ITL); a chunk may hold several tokens
    TTFT_MS = "ttft_ms"
    REQUEST_MS = "request_ms"  # end to end, one request

    # --- acceptance
    TOKENS_PER_CYCLE = "tokens_per_cycle"  # accepted + 1: the bonus token is counted
    ACCEPTANCE = "acceptance"  # share of all cycles whose draft at `position` (0 first) was accepted
    ACCEPTANCE_GAIN = "acceptance_gain"  # of first drafts, over the reading in use on the same tokens (variant)
    ACCEPTED_PER_DRAFTED = "accepted_per_drafted"  # 0..1
    NUM_DRAFTED = "num_drafted"
    NUM_ACCEPTED = "num_accepted"
    NUM_CYCLES = "num_cycles"
    NUM_EMITTED = "num_emitted"
    UNIQUE_TOKEN_SHARE = "unique_token_share"  # of the output, 0..1; small for text that loops

    # --- load
    NUM_RUNNING = "num_running"
    NUM_QUEUED = "num_queued"
    CONCURRENCY = "concurrency"  # what the load generator asked for or saw
    MAX_RUNNING = "max_running"  # the engine's cap on running requests
    KV_USAGE = "kv_usage"  # 0..1
    NUM_PREEMPTIONS = "num_preemptions"

    # --- graphs (scope: phase = target | decode | verify | draft | extend | prefill)
    GRAPH_REPLAYED = "graph_replayed"  # bool: forwards of the phase ran as a (full) graph
    GRAPH_CAPTURED = "graph_captured"  # bool: a capture of the phase's full graph finished
    GRAPH_MODE = "graph_mode"  # full | piecewise | full_and_piecewise | none
    GRAPH_REASON = "graph_reason"  # the engine's own words why there is no graph
    GRAPH_MAX_REQUESTS = "graph_max_requests"  # largest captured batch, in requests
    GRAPH_MAX_TOKENS = "graph_max_tokens"  # largest captured batch, in rows
    GRAPH_SIZE_OPTION = "graph_size_option"  # what this release calls the option for the largest captured batch
    GRAPH_NODES = "graph_nodes"
    GRAPH_LAUNCH_MS = "graph_launch_ms"  # host time in the launch call, per launch
    GRAPH_LOG_COMPLETE = "graph_log_complete"  # bool: the log spans the end of start-up, so a missing line counts

    # --- device time from a trace (scope: phase)
    GPU_SPAN_MS = "gpu_span_ms"  # first kernel's start to last kernel's end
    GPU_BUSY_MS = "gpu_busy_ms"  # union of kernels
    KERNEL_MS = "kernel_ms"  # sum of kernels (scope: name = family)
    NUM_KERNELS = "num_kernels"

    # --- collectives (scope: phase, num_bytes, name = backend)
    ALLREDUCE_BACKEND = "allreduce_backend"  # which backend the calls of a phase took
    ALLREDUCE_REFUSED = "allreduce_refused"  # reason; name: the backend that will not run
    ALLREDUCE_ENGAGED = (
        "allreduce_engaged"  # bool; name: a backend shown to run (addresses registered, kernels seen)
    )
    ALLREDUCE_CLAIMED = "allreduce_claimed"  # what a launcher or a banner says; name: the backend
    ALLREDUCE_US = "allreduce_us"  # one call
    ALLREDUCE_BYTES = "allreduce_bytes"  # size of one message
    NUM_ALLREDUCES = "num_allreduces"  # calls in one forward
    COLLECTIVE_MS = "collective_ms"  # of a phase, transfer only (minimum over ranks), per cycle or step
    COLLECTIVE_WAIT_MS = "collective_wait_ms"  # of a phase, waiting for other ranks
    NCCL_PROTOCOL = "nccl_protocol"  # LL | LL128 | Simple, as NCCL's own TUNING line says it
    NCCL_ALGORITHM = "nccl_algorithm"
    NCCL_TRANSPORT = "nccl_transport"  # P2P | SHM | NET
    NCCL_CHANNELS = "nccl_channels"
    NCCL_VERSION = "nccl_version"
    NCCL_PLUGIN = "nccl_plugin"
    NCCL_CONFIG_FILE = "nccl_config_file"
    NCCL_RANK_LOGGED = "nccl_rank_logged"  # bool: this rank's NCCL lines were read, so a missing line counts
    NCCL_ENV_LOGGED = "nccl_env_logged"  # bool: ENV lines are in the log, so a missing one counts

    # --- links of the host
    LINK = "link"  # NV18, PIX, PXB, PHB, NODE, SYS (name: "0-1")
    P2P = "p2p"  # ok | off; name: "0-1" or "" for the whole box
    P2P_REASON = "p2p_reason"
    IOMMU = "iommu"  # on | pt | off
    ACS_REDIRECT = "acs_redirect"  # bool
    DRIVER = "driver"
    DRIVER_MODEL = "driver_model"  # WDDM | TCC
    CUDA = "cuda"

    # --- clocks (scope: rank = GPU index)
    CLOCK_MHZ = "clock_mhz"  # SM clock
    CLOCK_MAX_MHZ = "clock_max_mhz"
    POWER_W = "power_w"
    POWER_LIMIT_W = "power_limit_w"
    TEMPERATURE_C = "temperature_c"
    UTILISATION = "utilisation"  # 0..1
    THROTTLE = "throttle"  # bool; name: the reason as the driver calls it
    THROTTLE_US = "throttle_us"  # counter; name: the reason

    # --- environment (scope: name = the variable, rank or worker)
    VARIABLE_PLANNED = "variable_planned"  # set in a command, a compose file, a shell file
    VARIABLE_SEEN = "variable_seen"  # found in a rank's process, or said by NCCL in it
    ENVIRONMENT_READ = (
        "environment_read"  # bool: the whole environment of `worker` was read, so a missing name counts
    )
    VARIABLE_MISMATCH = "variable_mismatch"  # what a rank proved to be other than planned, in words (name, rank)
    VARIABLE_IGNORED = "variable_ignored"  # the engine says that it does not know it
    VARIABLES_COPIED = "variables_copied"  # comma-separated names that a launcher hands to its workers

    # --- facts of a run
    ENGINE = "engine"  # sglang | vllm | tensorrt-llm | llama.cpp | alula | another word
    ENGINE_VERSION = "engine_version"
    COMMAND = "command"  # a launch command, bounded
    MODEL = "model"
    DRAFT_MODEL = "draft_model"
    ARCHITECTURE = "architecture"  # the target's, from its config
    DRAFT_ARCHITECTURE = "draft_architecture"
    ALGORITHM = "algorithm"  # EAGLE, EAGLE3, eagle3, mtp, ngram, draft_model ... as written; "none" for a plain run
    STEPS = "steps"  # draft steps a cycle (k of a chain)
    NUM_DRAFT_TOKENS = "num_draft_tokens"  # rows a request in verify, where an engine counts that (SGLang)
    TOPK = "topk"  # branches of a draft tree; 1 is a chain
    TP = "tp"
    DP = "dp"
    EP = "ep"
    DRAFT_TP = "draft_tp"  # asked for
    DRAFT_TP_IN_FORCE = "draft_tp_in_force"
    GPU = "gpu"
    NUM_GPUS = "num_gpus"
    DTYPE = "dtype"
    QUANTIZATION = "quantization"
    DRAFT_QUANTIZATION = "draft_quantization"
    KV_DTYPE = "kv_dtype"
    ATTENTION_BACKEND = "attention_backend"  # scope: phase where it differs
    ATTENTION_MODE = "attention_mode"  # prefill | decode: kernels that serve verify
    GRAPHS_DISABLED = "graphs_disabled"  # bool; asked for (enforce_eager, disable_cuda_graph)
    CUSTOM_ALLREDUCE_DISABLED = "custom_allreduce_disabled"  # bool; asked for
    FLAG = "flag"  # any other launch flag (name: without dashes, as written)
    TEMPERATURE = "temperature"
    DATASET = "dataset"  # random, sharegpt, mtbench, ...
    BATCH = "batch"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CONTEXT_TOKENS = "context_tokens"
    HIDDEN_SIZE = "hidden_size"
    NUM_LAYERS = "num_layers"
    NUM_EXPERTS = "num_experts"
    EXPERTS_PER_TOKEN = "experts_per_token"
    VOCAB_SIZE = "vocab_size"
    DRAFT_VOCAB_SIZE = "draft_vocab_size"
    AUX_LAYERS = "aux_layers"  # target layers that the head reads, as written: "2,30,58"
    AUX_LAYERS_GUESSED = "aux_layers_guessed"  # bool: the head's config names none
    CHAT_TEMPLATE = "chat_template"  # bool: prompts went through it
    ERROR_LINE = "error_line"  # an engine's own error that ends or bends a run
    LAST_LINE = "last_line"  # of a log that stops without an end (a hang)


_UNITS = {
    "_ms": "ms",
    "_us": "us",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes/s",
    "tokens_per_s": "tokens/s",
    "_mhz": "MHz",
    "_w": "W",
    "_c": "°C",
    "_tflops": "TFLOPS",
}
_SHARES = {
    Quantity.ACCEPTANCE,
    Quantity.ACCEPTANCE_GAIN,
    Quantity.ACCEPTED_PER_DRAFTED,
    Quantity.KV_USAGE,
    Quantity.UTILISATION,
    Quantity.UNIQUE_TOKEN_SHARE,
}


def unit_of(quantity: Quantity) -> str:
    """The unit of a quantity's numbers; "" for counts, words and yes-or-no."""
    if quantity in _SHARES:
        return "share"
    fitting = [end for end in _UNITS if quantity.value.endswith(end)]
    return _UNITS[max(fitting, key=len)] if fitting else ""
