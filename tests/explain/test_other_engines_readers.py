"""TensorRT-LLM, llama.cpp, profiler lines and Prometheus text."""

from __future__ import annotations

import json

import pytest
from reading import only_run, runs, values

from alula.profile.quantities import Quantity as Q


def test_llama_cpp_example_counters() -> None:
    run = only_run(
        "encoded   10 tokens in    1.945 seconds, speed:    5.141 t/s\ndecoded  136 tokens in   28.931 seconds, speed:    4.701 t/s\n\n"
        "n_draft   = 8\nn_predict = 136\nn_drafted = 112\nn_accept  = 36\naccept    = 32.143%\n"
    )
    assert (run.number(Q.STEPS), run.number(Q.NUM_DRAFTED), run.number(Q.NUM_ACCEPTED)) == (8, 112, 36)
    assert run.number(Q.NUM_CYCLES) == 100, "steps are what was predicted minus what was accepted"
    assert run.number(Q.TOKENS_PER_CYCLE) == 1.36
    assert run.number(Q.CYCLE_MS) == pytest.approx(289.31)
    assert run.number(Q.TOKENS_PER_S) == 4.701, "the speed of the prompt is not the speed of decoding"


@pytest.mark.parametrize("prefix", ["", "0.06.895.980 I ", "[53409] 7.02.255.324 I "])
def test_llama_cpp_server_of_2026(prefix: str) -> None:
    slot = f"{prefix}slot print_timing: id  1 | task 0 | "
    run = only_run(
        f"{slot}prompt eval time =     100.00 ms /    50 tokens (    2.00 ms per token,   500.00 tokens per second)\n"
        f"{slot}       eval time =    2296.72 ms /   256 tokens (    8.97 ms per token,   111.46 tokens per second)\n"
        f"{slot}draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, acceptance rate per position = "
        "(0.805, 0.632, 0.483)\n"
        f"{prefix}statistics     draft-eagle3: #calls(b,g,a) = 1 87 87, #gen drafts = 87, #acc drafts = 80, #gen tokens = 259, #acc tokens = 167, "
        "#mean acc len = 2.92, #acc rate/pos = (0.805, 0.632, 0.483), dur(b,g,a) = 0.005, 325.555, 0.114 ms\n"
    )
    assert run.number(Q.TOKENS_PER_S) == 111.46
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.92
    assert run.number(Q.CYCLE_MS, batch=1) == pytest.approx(2296.72 / (256 - 167))
    assert run.number(Q.DRAFT_MS) == pytest.approx(325.555 / 87)
    assert run.number(Q.ACCEPTANCE, position=2) == 0.483
    assert run.text(Q.ALGORITHM) == "eagle3"


def test_llama_cpp_server_of_may_2026() -> None:
    run = only_run(
        "draft acceptance rate = 0.69811 (  111 accepted /   159 generated)\nstatistics draft-mtp: #calls(b,g,a) = 18 1308 1308, #gen drafts = 1308, "
        "#acc drafts = 1134, #gen tokens = 2602, #acc tokens = 2031, dur(b,g,a) = 0.016, 54825.426, 2.174 ms\n"
    )
    assert run.number(Q.NUM_CYCLES) == 1308
    assert run.number(Q.DRAFT_MS) == pytest.approx(54825.426 / 1308)
    assert 2031 in values(run, Q.NUM_ACCEPTED)


def test_tensorrt_iteration_statistics_of_a_log_and_of_a_file() -> None:
    stats = {
        "iterLatencyMS": 14.0, "gpuForwardTimeMS": 12.5, "numActiveRequests": 2,
        "specDecodingStats": {"numDraftTokens": 6, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2, "acceptanceLength": 2.5,
                              "iterLatencyMS": 14.0, "draftOverhead": 0.2},
    }  # fmt: skip
    for text in (json.dumps(stats) + "\n", json.dumps([stats] * 3, indent=1), f"[TRT-LLM] [I] {stats}\n"):
        run = only_run(text)
        assert run.number(Q.TOKENS_PER_CYCLE) == 2.5, text
        assert run.number(Q.STEPS) == 3
        assert run.number(Q.CYCLE_MS, batch=2) == 12.5
        assert run.number(Q.DRAFT_MS) == pytest.approx(2.8)


def test_tensorrt_lines() -> None:
    run = only_run(
        "[TensorRT-LLM] TensorRT-LLM version: 1.2.0rc5\n[WARN] CUDA IPC is unavailable, falling back from AUTO to NCCL allreduce.\n"
        "[AR] MINIMUM: 1.2\n[AR] AVERAGE: 2.31\n[SpeculationGate] Speculative decoding disabled: rolling acceptance avg 1.1 < 1.5\n"
    )
    assert run.text(Q.ENGINE_VERSION) == "1.2.0rc5"
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.31
    assert "rolling acceptance" in str(run.text(Q.ERROR_LINE))
    assert "NCCL" in str(run.text(Q.ALLREDUCE_REFUSED, name="custom"))


@pytest.mark.parametrize(
    ("line", "quantity", "expected"),
    [
        ("Target verify: 28.96 ms/cyc", Q.VERIFY_MS, 28.96),
        ("  target_verify   | 18,700 us/cycle", Q.VERIFY_MS, 18.7),
        ("Draft extend (eager): 1.20 ms / step", Q.EXTEND_MS, 1.2),
        ("draft: 0.74ms per cycle", Q.DRAFT_MS, 0.74),
        ("plain decode step = 12.2 ms/step", Q.PLAIN_STEP_MS, 12.2),
        ("Full cycle total: 33.4 ms/cyc", Q.CYCLE_MS, 33.4),
        ("the target verify takes 29 ms per cycle", Q.VERIFY_MS, 29.0),
        ("all-reduce: 4.5 ms/cyc", Q.COLLECTIVE_MS, 4.5),
    ],
)
def test_profiler_lines(line: str, quantity: Q, expected: float) -> None:
    assert only_run(line + "\n").number(quantity) == pytest.approx(expected)


def test_a_profiler_line_may_tell_of_graphs() -> None:
    run = only_run("Target verify: 28.96 ms/cyc (cuda graph: no)\nDraft: 3.0 ms/cyc (graph)\n")
    assert run.yes(Q.GRAPH_REPLAYED, phase="verify") is False
    assert run.yes(Q.GRAPH_REPLAYED, phase="draft") is True


def test_vllm_counters() -> None:
    labels = 'engine="0",model_name="org/m"'
    run = only_run(
        f"# HELP vllm:spec_decode_num_drafts_total Number\n# TYPE vllm:spec_decode_num_drafts_total counter\nvllm:spec_decode_num_drafts_total{{{labels}}} 100.0\n"
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} 300.0\nvllm:spec_decode_num_accepted_tokens_total{{{labels}}} 150.0\n"
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="0"}} 80.0\n'
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="1"}} 50.0\nvllm:num_requests_running{{{labels}}} 2.0\n'
    )
    assert (run.number(Q.TOKENS_PER_CYCLE), run.number(Q.STEPS)) == (2.5, 3)
    assert [run.number(Q.ACCEPTANCE, position=at) for at in (0, 1)] == [0.8, 0.5]
    assert (run.text(Q.MODEL), run.text(Q.ENGINE)) == ("org/m", "vllm")


def test_counters_of_several_engine_processes_are_added() -> None:
    text = "".join(
        f'vllm:spec_decode_num_drafts_total{{engine="{at}"}} 100.0\nvllm:spec_decode_num_accepted_tokens_total{{engine="{at}"}} {50 * at}.0\n'
        for at in (1, 2)
    )
    assert only_run(text).number(Q.TOKENS_PER_CYCLE) == 1.75


def test_sglang_gauges_and_the_device_timer() -> None:
    run = only_run(
        'sglang:spec_accept_length{model_name="m"} 2.4\nsglang:spec_accept_length{model_name="m",idle="1"} 0.0\nsglang:spec_verify_calls_total{model_name="m"} 1000\n'
        'sglang:forward_execution_seconds_total{category="target_verify"} 29.0\nsglang:num_running_reqs{model_name="m"} 1\n'
    )
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.4, "0 means that nothing ran yet"
    assert run.number(Q.VERIFY_MS) == pytest.approx(29.0)
    assert run.text(Q.ENGINE) == "sglang"


def test_numbers_of_a_metric_may_be_nonsense() -> None:
    assert not runs(
        "vllm:num_requests_running NaN\nvllm:num_requests_running 1e999\nvllm:num_requests_running{ 3\n"
    )


def test_means_of_latency_histograms() -> None:
    run = only_run(
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\nvllm:time_to_first_token_seconds_sum{engine="0"} 2.0\nvllm:time_to_first_token_seconds_count{engine="0"} 10\n'
        'vllm:inter_token_latency_seconds_sum{engine="0"} 1.2\nvllm:inter_token_latency_seconds_count{engine="0"} 100\n'
    )
    assert (run.number(Q.TTFT_MS), run.number(Q.CHUNK_MS)) == (pytest.approx(200.0), pytest.approx(12.0))
