"""vLLM logs of V0 and V1 in all versions of log-formats.md, with the hazards named there."""

from __future__ import annotations

import pytest
from case_texts import DOWNGRADE, vllm_dump, vllm_ticks
from reading import only_run, runs, values

from alula.profile.quantities import Quantity as Q

TICK = (
    "INFO 05-15 03:22:11 [loggers.py:271] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {rate} tokens/s, Running: "
    "{running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)


def tick(rate: float, prompt: float = 0.0, running: int = 1) -> str:
    return TICK.format(rate=rate, prompt=prompt, running=running)


def test_a_cycle_is_the_tokens_of_one_over_the_rate() -> None:
    run = only_run(vllm_ticks(80.0, 2.5, 3))
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.5
    assert run.number(Q.CYCLE_MS, batch=1) == pytest.approx(1000 * 2.5 / 80)
    assert [run.number(Q.ACCEPTANCE, position=at) for at in range(3)] == [0.9, 0.7, 0.5]
    assert run.number(Q.STEPS) == 3
    drafted, cycles = run.number(Q.NUM_DRAFTED), run.number(Q.NUM_CYCLES)
    assert drafted is not None
    assert cycles == pytest.approx(drafted / 3, abs=1)


def test_only_clean_windows_are_decode_speed() -> None:
    text = tick(30.0, prompt=500.0) + tick(100.0) + tick(100.0) + tick(60.0, running=2) + tick(180.0, running=2)
    run = only_run(text)
    assert values(run, Q.TOKENS_PER_S, batch=1) == [100.0]
    assert run.first(Q.TOKENS_PER_S, batch=1).num_samples == 2  # type: ignore[union-attr]
    assert values(run, Q.TOKENS_PER_S, batch=2) == [180.0], "the window in which the number changed does not count"
    assert run.number(Q.STEP_MS, batch=2) == pytest.approx(1000 * 2 / 180)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Speculative metrics: Draft acceptance rate: 1.000, Number of accepted tokens: 66, Number of draft tokens: 66, ",
            {},
        ),
        (
            "INFO 07-24 04:00:31 metrics.py:316] Speculative metrics: Draft acceptance rate: 0.000, System efficiency: 0.059, Number of speculative "
            "tokens: 16, Number of accepted tokens: 0, Number of draft tokens tokens: 42272, Number of emitted tokens tokens: 2642.",
            {Q.STEPS: 16, Q.NUM_DRAFTED: 42272, Q.TOKENS_PER_CYCLE: 1.0},
        ),
        (
            "INFO 02-06 03:05:53 metrics.py:475] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative "
            "tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.",
            {Q.STEPS: 3, Q.TOKENS_PER_CYCLE: 0.598 * 4},
        ),
        (
            "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens",
            {Q.NUM_DRAFTED: 66, Q.NUM_ACCEPTED: 66},
        ),
        (
            "(APIServer pid=1) INFO 04-09 11:17:53 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.97, Accepted throughput: "
            "63.00tokens/s, Drafted throughput: 65.20 tokens/s, Accepted: 630 tokens, Drafted: 652 tokens, Per-position acceptance rate: 0.966, Avg "
            "Draft acceptance rate: 96.6%",
            {Q.TOKENS_PER_CYCLE: 1.97, Q.STEPS: 1, Q.NUM_CYCLES: 652},
        ),
    ],
)
def test_speculative_lines_of_every_version(line: str, expected: dict[Q, float]) -> None:
    found = only_run(line + "\n")
    for quantity, value in expected.items():
        assert found.number(quantity) == pytest.approx(value, rel=0.01), quantity


def test_of_cumulative_counters_the_last_line_counts() -> None:
    line = (
        "metrics.py:1] Speculative metrics: Draft acceptance rate: 0.6, System efficiency: 0.5, Number of speculative tokens: 2, Number of accepted "
        "tokens: {0}, Number of draft tokens: {1}, Number of emitted tokens: {2}.\n"
    )
    run = only_run(line.format(10, 20, 15) + line.format(100, 200, 150))
    assert values(run, Q.NUM_DRAFTED) == [200]
    assert run.number(Q.TOKENS_PER_CYCLE) == pytest.approx(1.5)


def test_the_config_as_json_and_as_a_python_text() -> None:
    run = only_run(vllm_dump(steps=4, tp=8, sizes=[1, 128], largest=128))
    assert (run.number(Q.STEPS), run.number(Q.TP), run.number(Q.GRAPH_MAX_TOKENS)) == (4, 8, 128)
    assert run.text(Q.GRAPH_MODE, phase="target") == "full_and_piecewise"
    assert run.text(Q.ENGINE_VERSION) == "0.23.1"
    old = (
        "(EngineCore_DP0 pid=7) INFO 10-30 14:20:52 [core.py:93] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', "
        "speculative_config=None, tensor_parallel_size=1, enforce_eager=True, padding='"
        + "x"
        * 300
        + "', compilation_config="
        '{"level":3,"cudagraph_mode":[2,1],"use_cudagraph":true,"cudagraph_capture_sizes":[512,504,8,4,2,1],"max_capture_size":512}\n'
    )
    run = only_run(old)
    assert (run.text(Q.ALGORITHM), run.yes(Q.GRAPHS_DISABLED), run.number(Q.GRAPH_MAX_TOKENS)) == (
        "none",
        True,
        512,
    )
    assert run.text(Q.GRAPH_MODE, phase="target") == "full_and_piecewise"


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_config_that_a_terminal_wrapped(width: int) -> None:
    text = vllm_dump(steps=4, tp=8).rstrip("\n")
    run = only_run(
        "\n".join(text[at : at + width] for at in range(0, len(text), width)) + "\n" + vllm_ticks(80.0, 2.5, 4)
    )
    assert (run.number(Q.STEPS), run.number(Q.TP), run.number(Q.TOKENS_PER_CYCLE)) == (4, 8, 2.5)


def test_arguments_and_config_of_one_start_are_one_run_and_a_restart_is_another() -> None:
    arguments = (
        "(APIServer pid=1) INFO 05-15 03:14:55 [utils.py:240] non-default args: {'model_tag': 'org/m', 'tensor_parallel_size': 8, "
        "'speculative_config': {'model': 'org/h', 'method': 'eagle3', 'num_speculative_tokens': 3}}\n"
    )
    start = arguments + vllm_dump(steps=3) + vllm_dump(steps=3)  # two data-parallel engines print the same
    assert len(runs(start)) == 1
    assert len(runs(start + vllm_ticks(80.0, 2.0, 3) + start + vllm_ticks(90.0, 2.0, 3))) == 2


def test_a_downgraded_mode_is_kept_with_its_reason() -> None:
    run = only_run(vllm_dump() + DOWNGRADE)
    assert run.text(Q.GRAPH_MODE, phase="verify") == "piecewise"
    assert "FlashInferBackend" in str(run.text(Q.GRAPH_REASON, phase="verify"))


def test_captures_need_an_end() -> None:
    begun = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/49 [00:00<?, ?it/s]\n"
    assert not only_run(vllm_dump() + begun).all(Q.GRAPH_CAPTURED)
    bar = (
        begun.rstrip("\n")
        + "\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 49/49 [00:05<00:00]\n"
    )
    assert only_run(bar).yes(Q.GRAPH_CAPTURED, phase="target", variant="piecewise") is True
    ended = begun + "INFO [gpu_model_runner.py:1] Graph capturing finished in 41 secs, took 2.39 GiB\n"
    assert only_run(ended).yes(Q.GRAPH_CAPTURED, phase="target", variant="piecewise") is True


@pytest.mark.parametrize(
    ("line", "phase", "variant"),
    [
        ("Capturing CUDA graphs (FULL): 31/31", "target", "full"),
        ("Capturing CUDA graphs (decode, FULL): 100%|##| 31/31", "target", "full"),
        ("Capturing <drafter> CUDA graphs (FULL): 31/31", "draft", "full"),
        ("Capturing dflash CUDA graphs (FULL): 31/31", "draft", "full"),
        ("Capturing CUDA graph shapes: 100%|##| 35/35", "target", "full"),
    ],
)
def test_captures_of_target_and_drafter(line: str, phase: str, variant: str) -> None:
    run = only_run(line + "\n")
    assert [(one.scope.phase, one.scope.variant) for one in run.all(Q.GRAPH_CAPTURED)] == [(phase, variant)]


def test_workers_interleave_and_lose_their_prefixes() -> None:
    run = only_run(
        "(Worker pid=422) (Worker pid=421) WARNING 05-15 03:15:44 [x.py:1] something\nCustom allreduce is disabled because it's not supported on more "
        "than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
        "(Worker pid=420) INFO 05-15 03:15:46 [pynccl.py:113] vLLM is using nccl==2.30.3\n"
        "(Worker_TP7 pid=427) INFO 05-15 03:15:46 [cuda.py:313] Using AttentionBackendEnum.B12X_MLA_SPARSE backend.\n"
        "(Worker_TP5 pid=425) INFO 05-15 03:15:46 [custom_all_reduce.py:669] Registering 0 cuda graph addresses\n"
        "WARNING 05-15 03:15:46 [symm_mem.py:66] SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available.\n"
        "WARNING 05-15 03:14:55 [envs.py:1908] Unknown vLLM environment variable detected: VLLM_ALLREDUCE_FAST\n"
    )
    assert run.text(Q.ALLREDUCE_REFUSED, name="custom") == "it's not supported on more than two PCIe-only GPUs"
    assert run.text(Q.NCCL_VERSION) == "2.30.3"
    assert run.text(Q.ATTENTION_BACKEND) == "B12X_MLA_SPARSE"
    assert not run.all(Q.ALLREDUCE_ENGAGED), "0 addresses are registered while memory is profiled"
    assert run.all(Q.ALLREDUCE_REFUSED, name="symm_mem")
    assert run.text(Q.VARIABLE_IGNORED) == "VLLM_ALLREDUCE_FAST"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("because your platform lacks GPU P2P capability or P2P test failed. To silence", "P2P test failed"),
        ("due to an unsupported world size: 16. Supported world sizes: [2, 4, 6, 8]. To silence", "world size: 16"),
        ("because of missing custom allreduce library", "missing custom allreduce library"),
        ("because this process group spans across nodes.", "spans across nodes"),
    ],
)
def test_every_reason_against_custom_all_reduce(reason: str, expected: str) -> None:
    run = only_run(f"WARNING 02-22 22:09:01 custom_all_reduce.py:136] Custom allreduce is disabled {reason}\n")
    assert expected in str(run.text(Q.ALLREDUCE_REFUSED, name="custom"))


def test_two_engines_logs_at_once_are_two_runs() -> None:
    sglang = (
        "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 186, token usage: 0.02, accept len: 1.50, accept rate: 0.49, cuda graph: "
        "True, gen throughput (token/s): 50.00, #queue-req: 0, \n"
    )
    ticks = vllm_ticks(80.0, 2.5, 3).splitlines(keepends=True)
    text = "".join(line + sglang for line in ticks)
    found = {run.text(Q.ENGINE): (run.number(Q.TOKENS_PER_CYCLE), run.number(Q.TOKENS_PER_S)) for run in runs(text)}
    assert found == {"vllm": (2.5, 80.0), "sglang": (1.5, 50.0)}
