"""A little evidence for each hypothesis and verdict: what a reader would have found, and what must be said."""

from __future__ import annotations

from typing import NamedTuple

from evidence_builder import Found, found

from alula.explain.finding import Status
from alula.profile.quantities import Quantity as Q

C, R, U = Status.CONFIRMED, Status.REFUTED, Status.UNDECIDED


class Scenario(NamedTuple):
    id: str
    status: Status
    spec: list[Found]
    plain: list[Found] | None = None


def engine(name: str, version: str | None = None) -> list[Found]:
    return [found(Q.ENGINE, name), *([found(Q.ENGINE_VERSION, version)] if version else [])]


def rates(
    plain: float, spec: float, tokens: float | None, steps: int | None = 3
) -> tuple[list[Found], list[Found]]:
    """Two sides with these rates at batch 1."""
    own = [found(Q.TOKENS_PER_S, spec, batch=1)]
    own += [found(Q.TOKENS_PER_CYCLE, tokens)] if tokens else []
    own += [found(Q.STEPS, steps)] if steps else []
    return own, [found(Q.TOKENS_PER_S, plain, batch=1)]


LOSS, PLAIN = rates(100.0, 80.0, 2.0)  # 2.5 plain steps a cycle
WIN, _ = rates(100.0, 160.0, 2.4)
SLOW = [found(Q.PLAIN_STEP_MS, 10.0), found(Q.VERIFY_MS, 22.0), found(Q.STEPS, 2), found(Q.TP, 4)]
TABLE = [
    found(Q.ALLREDUCE_US, us, num_bytes=size * 1024, name=name)
    for size, nccl, fast in ((4, 19.0, 4.0), (16, 22.0, 7.0), (384, 83.0, 120.0))
    for name, us in (("nccl", nccl), ("custom", fast))
]
COLLECTIVES = (
    [
        *(found(Q.TP, 2), found(Q.STEPS, 3), found(Q.CYCLE_MS, 30.0), found(Q.TOKENS_PER_CYCLE, 2.0)),
        *(found(Q.COLLECTIVE_MS, ms, phase=phase) for phase, ms in (("verify", 11.0), ("draft", 4.5))),
        *(
            found(Q.COLLECTIVE_MS, ms, phase=phase, variant="alone")
            for phase, ms in (("verify", 1.0), ("draft", 0.5), ("decode", 1.0))
        ),
    ],
    [
        *(found(Q.PLAIN_STEP_MS, 20.0), found(Q.COLLECTIVE_MS, 10.0, phase="decode")),
        found(Q.COLLECTIVE_MS, 1.0, phase="decode", variant="alone"),
    ],
)
PLAIN_COLLECTIVES = [COLLECTIVES[1][0], COLLECTIVES[1][2]]
BUSY = [found(Q.UTILISATION, 1.0, rank=0), found(Q.POWER_W, 95.0, rank=0), found(Q.POWER_LIMIT_W, 600.0, rank=0)]
DOWNGRADE = [
    found(Q.GRAPH_MODE, "full_and_piecewise", phase="target"),
    found(Q.GRAPH_MODE, "piecewise", phase="verify"),
    found(Q.GRAPH_REASON, "not supported with this backend", phase="verify"),
    found(Q.GRAPH_LOG_COMPLETE, True),
]
EXPERTS = [found(Q.MODEL, "some/Qwen3-30B-A3B"), found(Q.GPU, "NVIDIA H100 80GB"), found(Q.TP, 1)]


def _sweep(*points: tuple[int, float, float]) -> list[Found]:
    made = [found(Q.PLAIN_TOKENS_PER_S, 50.0)]
    for steps, tokens_per_s, tokens in points:
        made += [found(Q.TOKENS_PER_S, tokens_per_s, steps=steps), found(Q.TOKENS_PER_CYCLE, tokens, steps=steps)]
    return made


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("break_even_above_ceiling", C, rates(364, 216, 1.44, 1)[0], rates(364, 216, 1.44, 1)[1]),
    Scenario("break_even_above_ceiling", R, LOSS, PLAIN),
    Scenario("break_even_above_ceiling", U, [found(Q.STEPS, 3)]),
    Scenario("head_broken", C, [found(Q.TOKENS_PER_CYCLE, 1.0, times=9), found(Q.STEPS, 3)]),
    Scenario("head_broken", C, [found(Q.ACCEPTANCE, 0.03, position=0), found(Q.ACCEPTANCE, 0.0, position=1)]),
    Scenario("head_broken", U, [found(Q.ACCEPTANCE, 0.11, position=0), found(Q.STEPS, 3)]),
    Scenario(
        "head_broken",
        C,
        [
            found(Q.ACCEPTANCE, 0.24, position=0),
            found(Q.ACCEPTANCE, 0.61, position=0, variant="boundaries 2,15,27"),
            found(Q.STEPS, 3),
        ],
    ),
    Scenario("head_broken", R, [found(Q.ACCEPTANCE, 0.64, position=0), found(Q.STEPS, 3)]),
    Scenario("head_broken", R, [found(Q.TOKENS_PER_CYCLE, 2.3), found(Q.STEPS, 3)]),
    Scenario("head_broken", U, [found(Q.STEPS, 3)]),
    Scenario(
        "acceptance_too_good",
        C,
        [found(Q.TOKENS_PER_CYCLE, 3.93), found(Q.STEPS, 3), found(Q.DATASET, "random-ids")],
    ),
    Scenario("acceptance_too_good", C, [found(Q.TOKENS_PER_CYCLE, 4.0), found(Q.STEPS, 3)]),
    Scenario("acceptance_too_good", U, [found(Q.TOKENS_PER_CYCLE, 3.9), found(Q.STEPS, 3)]),
    Scenario("acceptance_too_good", U, [found(Q.STEPS, 3)]),
    Scenario("acceptance_too_good", R, [found(Q.TOKENS_PER_CYCLE, 2.4), found(Q.STEPS, 3)]),
    Scenario("verify_without_graph", C, [found(Q.GRAPH_REPLAYED, False, phase="verify", times=9)]),
    Scenario("verify_without_graph", C, [found(Q.GRAPHS_DISABLED, True), found(Q.STEPS, 2)]),
    Scenario("verify_without_graph", C, DOWNGRADE),
    Scenario("verify_without_graph", R, [found(Q.GRAPH_REPLAYED, True, phase="verify", times=9)]),
    Scenario("verify_without_graph", R, [found(Q.GRAPH_CAPTURED, True, phase="target", variant="full")]),
    Scenario("verify_without_graph", U, SLOW),
    Scenario(
        "verify_without_graph",
        U,
        [
            found(Q.GRAPH_REPLAYED, True, phase="verify", times=9),
            found(Q.GRAPH_REPLAYED, False, phase="verify", times=2),
        ],
    ),
    Scenario(
        "batch_over_captured_graph",
        C,
        [found(Q.NUM_RUNNING, 200), found(Q.STEPS, 2), found(Q.GRAPH_MAX_TOKENS, 512)],
    ),
    Scenario("batch_over_captured_graph", C, [found(Q.CONCURRENCY, 20), found(Q.GRAPH_MAX_REQUESTS, 2)]),
    Scenario("batch_over_captured_graph", R, [found(Q.CONCURRENCY, 20), found(Q.GRAPH_MAX_REQUESTS, 32)]),
    Scenario("batch_over_captured_graph", U, [found(Q.CONCURRENCY, 20)]),
    Scenario("draft_without_graph", C, [*DOWNGRADE, found(Q.STEPS, 7)]),
    Scenario("draft_without_graph", C, [found(Q.GRAPH_REPLAYED, False, phase="draft", times=5)]),
    Scenario("draft_without_graph", R, [found(Q.GRAPH_CAPTURED, True, phase="draft", variant="full")]),
    Scenario("draft_without_graph", U, [found(Q.STEPS, 3)]),
    Scenario(
        "extend_without_graph",
        C,
        [
            *engine("sglang", "0.5.17"),
            found(Q.ATTENTION_BACKEND, "fa3"),
            found(Q.GRAPH_CAPTURED, True, phase="verify"),
            found(Q.GRAPH_LOG_COMPLETE, True),
        ],
    ),
    Scenario("extend_without_graph", C, [found(Q.GRAPH_REPLAYED, False, phase="extend", times=4)]),
    Scenario("extend_without_graph", R, [found(Q.GRAPH_CAPTURED, True, phase="extend")]),
    Scenario("extend_without_graph", U, engine("vllm")),
    Scenario(
        "allreduce_paths_differ",
        C,
        [
            found(Q.TP, 4),
            found(Q.ALLREDUCE_BACKEND, "custom", phase="decode"),
            found(Q.ALLREDUCE_BACKEND, "nccl", phase="verify"),
        ],
    ),
    Scenario(
        "allreduce_paths_differ",
        C,
        [*SLOW, found(Q.COLLECTIVE_MS, 9.0, phase="verify"), found(Q.COLLECTIVE_MS, 2.0, phase="decode")],
    ),
    Scenario(
        "allreduce_paths_differ",
        R,
        [
            found(Q.TP, 4),
            found(Q.ALLREDUCE_BACKEND, "nccl", phase="decode"),
            found(Q.ALLREDUCE_BACKEND, "nccl", phase="verify"),
        ],
    ),
    Scenario("collectives_slow", C, *COLLECTIVES),
    Scenario(
        "collectives_slow", R, COLLECTIVES[0], [*PLAIN_COLLECTIVES, found(Q.COLLECTIVE_MS, 1.1, phase="decode")]
    ),
    Scenario("collectives_slow", R, [found(Q.TP, 1)]),
    Scenario("collectives_slow", U, SLOW),
    Scenario("allreduce_paths_differ", R, [found(Q.TP, 1)]),
    Scenario("allreduce_paths_differ", U, SLOW),
    Scenario("allreduce_paths_differ", U, [*TABLE, found(Q.STEPS, 2)]),
    Scenario(
        "allreduce_paths_differ",
        C,
        [
            *SLOW,
            found(Q.HIDDEN_SIZE, 7168),
            found(Q.NUM_LAYERS, 61),
            *(found(Q.ALLREDUCE_US, us, num_bytes=at * 1024, name="nccl") for at, us in ((12, 205.0), (96, 585.0))),
        ],
    ),
    Scenario(
        "allreduce_paths_differ",
        R,
        [
            *SLOW,
            found(Q.HIDDEN_SIZE, 7168),
            found(Q.NUM_LAYERS, 61),
            *(found(Q.ALLREDUCE_US, us, num_bytes=at * 1024, name="nccl") for at, us in ((12, 20.0), (96, 22.0))),
        ],
    ),
    Scenario(
        "allreduce_backend_refused", C, [found(Q.TP, 4), found(Q.ALLREDUCE_REFUSED, "no NVLink", name="custom")]
    ),
    Scenario("allreduce_backend_refused", C, [found(Q.TP, 4), found(Q.CUSTOM_ALLREDUCE_DISABLED, True)]),
    Scenario("allreduce_backend_refused", R, [found(Q.TP, 4), found(Q.ALLREDUCE_ENGAGED, True, name="custom")]),
    Scenario("allreduce_backend_refused", R, [found(Q.TP, 1)]),
    Scenario(
        "allreduce_backend_refused",
        U,
        [*TABLE, found(Q.TP, 4), found(Q.HIDDEN_SIZE, 2048), found(Q.NUM_LAYERS, 50), found(Q.STEPS, 3)],
    ),
    Scenario("allreduce_backend_refused", U, [found(Q.TP, 4)]),
    Scenario("p2p_off", C, [found(Q.TP, 2), found(Q.VARIABLE_SEEN, "1", name="NCCL_P2P_DISABLE", rank=0)]),
    Scenario("p2p_off", C, [found(Q.TP, 2), found(Q.NCCL_TRANSPORT, "SHM", times=8)]),
    Scenario("p2p_off", R, [found(Q.TP, 2), found(Q.NCCL_TRANSPORT, "P2P", times=8)]),
    Scenario("p2p_off", U, [found(Q.TP, 2)]),
    Scenario("p2p_dead", C, [*BUSY, found(Q.LAST_LINE, "oneshot allreduce first dispatch")]),
    Scenario("p2p_dead", R, [*BUSY, found(Q.TOKENS_PER_S, 80.0)]),
    Scenario("p2p_dead", U, [found(Q.IOMMU, "on")]),
    Scenario(
        "variables_not_in_force",
        C,
        [
            found(Q.VARIABLE_SEEN, "LL", name="NCCL_PROTO", rank=0),
            found(Q.VARIABLE_SEEN, "Simple", name="NCCL_PROTO", rank=1),
        ],
    ),
    Scenario(
        "variables_not_in_force",
        C,
        [
            found(Q.VARIABLE_PLANNED, "LL", name="NCCL_PROTO"),
            found(Q.NCCL_ENV_LOGGED, True),
            *(found(Q.NCCL_RANK_LOGGED, True, rank=rank) for rank in range(4)),
        ],
    ),
    Scenario(
        "variables_not_in_force",
        C,
        [
            found(Q.VARIABLE_PLANNED, "LL", name="NCCL_PROTO"),
            found(Q.VARIABLES_COPIED, "LD_LIBRARY_PATH, VLLM_USE_V1"),
        ],
    ),
    Scenario(
        "variables_not_in_force",
        R,
        [
            found(Q.VARIABLE_PLANNED, "LL", name="NCCL_PROTO"),
            *(found(Q.VARIABLE_SEEN, "LL", name="NCCL_PROTO", rank=rank) for rank in range(4)),
        ],
    ),
    Scenario(
        "variables_not_in_force",
        C,
        [
            *(found(Q.ENVIRONMENT_READ, True, rank=rank) for rank in range(3)),
            *(found(Q.VARIABLE_SEEN, "1", name="ALULA_X", rank=rank) for rank in (0, 2)),
        ],
    ),
    Scenario("variables_not_in_force", U, [found(Q.VARIABLE_PLANNED, "LL", name="NCCL_PROTO")]),
    Scenario(
        "protocol_wrong_for_size",
        C,
        [
            found(Q.TP, 8),
            found(Q.HIDDEN_SIZE, 7168),
            found(Q.STEPS, 3),
            found(Q.CONCURRENCY, 32),
            found(Q.VARIABLE_PLANNED, "LL", name="NCCL_PROTO"),
        ],
    ),
    Scenario(
        "protocol_wrong_for_size",
        C,
        [
            found(Q.TP, 8),
            found(Q.HIDDEN_SIZE, 7168),
            found(Q.STEPS, 2),
            found(Q.NCCL_PROTOCOL, "Simple", num_bytes=43008),
        ],
    ),
    Scenario(
        "protocol_wrong_for_size",
        R,
        [
            found(Q.TP, 8),
            found(Q.HIDDEN_SIZE, 7168),
            found(Q.STEPS, 2),
            found(Q.VARIABLE_SEEN, "LL", name="NCCL_PROTO"),
        ],
    ),
    Scenario("protocol_wrong_for_size", U, [found(Q.TP, 8)]),
    Scenario("host_or_launch_bound", C, [found(Q.CYCLE_MS, 10.0), found(Q.HOST_MS, 2.5)]),
    Scenario("host_or_launch_bound", R, [found(Q.CYCLE_MS, 10.0), found(Q.HOST_MS, 0.2)]),
    Scenario("host_or_launch_bound", U, [found(Q.CYCLE_MS, 10.0)]),
    Scenario("fixed_or_per_draft_cost", C, _sweep((1, 30.0, 1.8), (2, 27.0, 2.4), (3, 25.0, 2.9))),
    Scenario("fixed_or_per_draft_cost", R, _sweep((1, 80.0, 1.7), (2, 95.0, 2.2), (3, 100.0, 2.5))),
    Scenario("fixed_or_per_draft_cost", U, LOSS, PLAIN),
    Scenario(
        "expert_union",
        C,
        [*EXPERTS, found(Q.STEPS, 3), found(Q.PLAIN_STEP_MS, 3.0), found(Q.VERIFY_MS, 7.0)],
    ),
    Scenario(
        "expert_union",
        C,
        [found(Q.MODEL, "x-106B-A12B"), *(found(Q.FORWARD_MS, 6.0 + 4 * n, width=n) for n in (1, 2, 4))],
    ),
    Scenario("expert_union", R, [found(Q.MODEL, "Llama-3.1-8B"), found(Q.STEPS, 3)]),
    Scenario(
        "expert_union",
        R,
        [
            found(Q.MODEL, "kimi-k2.5"),
            found(Q.GPU, "rtx-pro-6000"),
            found(Q.TP, 8),
            found(Q.STEPS, 2),
            found(Q.PLAIN_STEP_MS, 12.2),
            found(Q.VERIFY_MS, 29.0),
        ],
    ),
    Scenario("expert_union", U, [found(Q.MODEL, "my-own-model"), found(Q.STEPS, 2)]),
    Scenario("verify_rows_cost", C, [found(Q.FORWARD_MS, 6.0 + 3 * n, width=n) for n in (1, 2, 4)]),
    Scenario("verify_rows_cost", R, [found(Q.FORWARD_MS, 6.0 + 0.1 * n, width=n) for n in (1, 2, 4)]),
    Scenario("verify_rows_cost", U, [found(Q.STEPS, 2)]),
    Scenario(
        "attention_kernel_for_width",
        C,
        [
            found(Q.FORWARD_MS, 9.0, variant="prefill_attention", width=3),
            found(Q.FORWARD_MS, 6.0, variant="decode_attention", width=3),
        ],
    ),
    Scenario(
        "attention_kernel_for_width",
        R,
        [
            found(Q.FORWARD_MS, 6.1, variant="prefill_attention", width=3),
            found(Q.FORWARD_MS, 6.0, variant="decode_attention", width=3),
        ],
    ),
    Scenario("attention_kernel_for_width", U, [*SLOW, found(Q.ATTENTION_MODE, "prefill")]),
    Scenario("draft_too_slow", C, [found(Q.PLAIN_STEP_MS, 10.0), found(Q.DRAFT_MS, 6.0)]),
    Scenario("draft_too_slow", R, [found(Q.PLAIN_STEP_MS, 10.0), found(Q.DRAFT_MS, 1.0)]),
    Scenario("draft_too_slow", U, [found(Q.PLAIN_STEP_MS, 10.0)]),
    Scenario("draft_tensor_parallel", C, [found(Q.TP, 8), found(Q.DRAFT_TP, 1), found(Q.DRAFT_TP_IN_FORCE, 8)]),
    Scenario("draft_tensor_parallel", R, [found(Q.TP, 1)]),
    Scenario("draft_tensor_parallel", R, [found(Q.TP, 8), found(Q.DRAFT_TP, 1)]),
    Scenario("draft_tensor_parallel", U, [found(Q.TP, 4), found(Q.DRAFT_TP, 4)]),
    Scenario(
        "rank_skew",
        C,
        [found(Q.TP, 4), found(Q.CYCLE_MS, 10.0)]
        + [found(Q.COLLECTIVE_WAIT_MS, 0.1 if rank == 2 else 2.0, rank=rank) for rank in range(4)],
    ),
    Scenario(
        "rank_skew",
        R,
        [found(Q.TP, 2), found(Q.CYCLE_MS, 10.0)] + [found(Q.GPU_BUSY_MS, 8.0, rank=rank) for rank in range(2)],
    ),
    Scenario("rank_skew", U, [found(Q.TP, 4)]),
    Scenario(
        "clocks_held_down",
        C,
        [found(Q.CLOCK_MHZ, 700, rank=0), found(Q.CLOCK_MAX_MHZ, 2400, rank=0), found(Q.UTILISATION, 0.97, rank=0)],
    ),
    Scenario("clocks_held_down", C, [found(Q.THROTTLE, True, name="HW Thermal Slowdown", rank=0)]),
    Scenario("clocks_held_down", C, [found(Q.GEMM_TFLOPS, 27.0, rank=0), found(Q.GEMM_TFLOPS, 80.0, rank=1)]),
    Scenario("clocks_held_down", R, [found(Q.CLOCK_MHZ, 1950, rank=0), found(Q.CLOCK_MAX_MHZ, 1980, rank=0)]),
    Scenario("clocks_held_down", U, [found(Q.STEPS, 3)]),
    Scenario("acceptance_below_break_even", C, LOSS, PLAIN),
    Scenario("acceptance_below_break_even", R, WIN, PLAIN),
    Scenario("acceptance_below_break_even", U, [found(Q.TOKENS_PER_CYCLE, 2.0), found(Q.STEPS, 3)]),
    Scenario(
        "acceptance_decays",
        C,
        [found(Q.TOKENS_PER_CYCLE, 2.8, kv_tokens=1024), found(Q.TOKENS_PER_CYCLE, 1.9, kv_tokens=32768)],
    ),
    Scenario(
        "acceptance_decays",
        R,
        [found(Q.TOKENS_PER_CYCLE, 2.8, kv_tokens=1024), found(Q.TOKENS_PER_CYCLE, 2.75, kv_tokens=32768)],
    ),
    Scenario("acceptance_decays", U, LOSS, PLAIN),
    Scenario("random_prompts", C, [found(Q.DATASET, "random"), found(Q.STEPS, 3)]),
    Scenario("random_prompts", R, [found(Q.DATASET, "sharegpt"), found(Q.STEPS, 3)]),
    Scenario("random_prompts", U, [found(Q.STEPS, 3)]),
    Scenario(
        "batch_too_large",
        C,
        [found(Q.TOKENS_PER_S, 150.0, batch=1), found(Q.TOKENS_PER_S, 900.0, batch=32), found(Q.STEPS, 3)],
        [found(Q.TOKENS_PER_S, 100.0, batch=1), found(Q.TOKENS_PER_S, 1200.0, batch=32)],
    ),
    Scenario(
        "batch_too_large",
        C,
        [found(Q.NUM_DRAFT_TOKENS, 32), found(Q.TOPK, 10), found(Q.STEPS, 6), found(Q.CONCURRENCY, 20)],
    ),
    Scenario("batch_too_large", R, [found(Q.NUM_RUNNING, 2), found(Q.STEPS, 3)]),
    Scenario("batch_too_large", U, [found(Q.STEPS, 3)]),
    Scenario("queueing_or_pages", C, [found(Q.TTFT_MS, 21000.0), found(Q.REQUEST_MS, 38000.0), found(Q.STEPS, 3)]),
    Scenario("queueing_or_pages", C, [found(Q.MAX_RUNNING, 48), found(Q.CONCURRENCY, 200), found(Q.STEPS, 3)]),
    Scenario("queueing_or_pages", R, [found(Q.NUM_QUEUED, 0, times=9), found(Q.STEPS, 3)]),
    Scenario("queueing_or_pages", U, [found(Q.STEPS, 3)]),
    Scenario("draft_length", C, [*_sweep((1, 80.0, 1.6), (2, 95.0, 2.0), (4, 70.0, 2.2)), found(Q.STEPS, 4)]),
    Scenario("draft_length", R, [*_sweep((1, 80.0, 1.6), (2, 95.0, 2.0), (4, 70.0, 2.2)), found(Q.STEPS, 2)]),
    Scenario(
        "draft_length",
        C,
        [
            found(Q.STEPS, 3),
            found(Q.CYCLE_MS, 16.0),
            found(Q.DRAFT_MS, 6.0),
            *(found(Q.ACCEPTANCE, share, position=at) for at, share in enumerate((0.6, 0.1, 0.02))),
        ],
    ),
    Scenario("draft_length", U, [found(Q.STEPS, 3)]),
    Scenario(
        "not_like_for_like",
        C,
        [*LOSS, found(Q.ATTENTION_BACKEND, "FLASHINFER"), found(Q.TP, 2)],
        [*PLAIN, found(Q.ATTENTION_BACKEND, "FLASH_ATTN"), found(Q.TP, 2)],
    ),
    Scenario(
        "not_like_for_like",
        R,
        [*LOSS, found(Q.MODEL, "/models/Qwen3-8B"), found(Q.TP, 2)],
        [*PLAIN, found(Q.MODEL, "Qwen/Qwen3-8B"), found(Q.TP, 2)],
    ),
    Scenario("not_like_for_like", U, LOSS),
    Scenario("contradictory_evidence", C, [found(Q.STEPS, 3), found(Q.STEPS, 5)]),
    Scenario("contradictory_evidence", U, LOSS),
)
