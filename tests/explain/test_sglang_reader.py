"""SGLang logs of all versions of log-formats.md, with the hazards named there."""

from __future__ import annotations

import pytest
from reading import only_run, runs, values

from alula.profile.quantities import Quantity as Q

ARGUMENTS = (
    "[2026-02-26 05:19:58] server_args=ServerArgs(model_path='org/model-x', tokenizer_path='org/model-x', tp_size=4, dp_size=1, "
    "decode=PhaseConfig(backend='full', max_bs=512, bs=[1, 2, 4], tc_compiler='eager'), speculative_algorithm={algorithm}, "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4, cuda_graph_max_bs_decode=16, "
    "disable_custom_all_reduce=True, triton_attention_num_kv_splits=8, max_running_requests=48, kv_cache_dtype='fp8_e5m2')\n"
)


def decode(
    rate: float,
    *,
    tag: str = "2025-10-22 10:27:57 TP0",
    running: int = 1,
    accept: float | None = 2.0,
    graph: str = "True",
) -> str:
    spec = f"accept len: {accept:.2f}, accept rate: 0.49, " if accept else ""
    return (
        f"[{tag}] Decode batch. #running-req: {running}, #token: 186, token usage: 0.02, {spec}cuda graph: {graph}, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 0, \n"
    )


def prefill(running: int) -> str:
    return f"[2025-10-22 10:27:56 TP0] Prefill batch. #new-seq: 1, #new-token: 28, token usage: 0.00, #running-req: {running}, #queue-req: 0, \n"


PLAIN_LINES = [
    "[2024-11-30 05:10:04 TP0] Decode batch. #running-req: 1, #token: 234, token usage: 0.00, gen throughput (token/s): 147.64, #queue-req: 0",
    "[2025-07-18 15:32:54 TP0] Decode batch. #running-req: 1, #token: 2266, token usage: 0.00, cuda graph: True, gen throughput (token/s): "
    "147.64, #queue-req: 0, timestamp: 2025-07-18T15:32:54.159394",
    "[2026-05-23 07:41:12] Decode batch, #running-req: 1, #token: 84, token usage: 0.00, cuda graph: False, gen throughput (token/s): 147.64, #queue-req: 1",
    "[2026-09-14 20:13:56] Decode batch, #running-req: 1, #full token: 2496, full token usage: 0.00, mamba num: 4, mamba usage: 0.13, cuda "
    "graph: False, gen throughput (token/s): 147.64, #queue-req: 0",
    "[2026-09-14 20:13:56] Decode batch [123], #running-req: 1, #token: 1, token usage: 0.00, cuda graph: True, gen throughput (token/s): 147.64, "
    "#queue-req: 0, fwd occupancy: nan%",
]
SPEC_LINES = [
    "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 2, #token: 186, token usage: 0.00, accept len: 1.95, accept rate: 0.49, cuda graph: True, "
    "gen throughput (token/s): 178.86, #queue-req: 0, ",
    "2025-12-04 20:35:53 INFO 151972 [scheduler_metrics_mixin.py:287] Decode batch. #running-req: 2, #token: 3894, token usage: 0.00, accept len: 1.95, "
    "accept rate: 0.11, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0, ",
    "[2026-08-19 00:02:25] Decode batch, #running-req: 2, #full token: 1, full token usage: 0.00, mamba num: 1, mamba usage: 0.1, accept len: 1.95, accept "
    "rate: 0.19, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0",
]


@pytest.mark.parametrize("line", PLAIN_LINES)
def test_a_plain_line_of_every_version(line: str) -> None:
    run = only_run(line + "\n")
    assert run.number(Q.TOKENS_PER_S, batch=1) == 147.64
    assert run.number(Q.STEP_MS, batch=1) == pytest.approx(1000 / 147.64)
    assert not run.all(Q.TOKENS_PER_CYCLE)
    assert run.text(Q.ALGORITHM) == "none"


@pytest.mark.parametrize("line", SPEC_LINES)
def test_a_speculative_line_of_every_version(line: str) -> None:
    run = only_run(line + "\n")
    assert run.number(Q.TOKENS_PER_CYCLE) == 1.95
    assert run.number(Q.CYCLE_MS, batch=2) == pytest.approx(1000 * 2 * 1.95 / 178.86)
    assert run.yes(Q.GRAPH_REPLAYED, phase="verify") is True
    assert not run.all(Q.ACCEPTED_PER_DRAFTED), "the rate's meaning changed between versions"


def test_a_shortened_line_gives_what_it_has() -> None:
    run = only_run("[DP0 TP0] Decode batch, accept len: 1.52, accept rate: 0.51, cuda graph: False\n")
    assert (run.number(Q.TOKENS_PER_CYCLE), run.yes(Q.GRAPH_REPLAYED, phase="verify")) == (1.52, False)


def test_the_first_line_after_idle_is_dropped_whatever_comes_later() -> None:
    text = prefill(0) + decode(0.39) + decode(180.0) + decode(182.0) + prefill(0) + decode(3.13) + decode(181.0)
    run = only_run(text)
    found = run.first(Q.TOKENS_PER_S, batch=1)
    assert found is not None
    assert (found.value, found.num_samples) == (181.0, 3)
    accepted = run.first(Q.TOKENS_PER_CYCLE)
    assert accepted is not None
    assert accepted.num_samples == 5, "acceptance does not depend on idle time"


def test_a_lone_slow_line_is_no_speed() -> None:
    assert not only_run(decode(1.88)).all(Q.CYCLE_MS)
    assert only_run(prefill(0) + decode(180.0)).all(Q.CYCLE_MS) == ()


def test_windows_with_prompts_count_only_where_there_are_no_others() -> None:
    mixed = (prefill(3) + decode(90.0, running=4)) * 3
    assert only_run(mixed).number(Q.TOKENS_PER_S, batch=4) == 90.0
    assert only_run(mixed + decode(200.0, running=4) * 3).number(Q.TOKENS_PER_S, batch=4) == 200.0


def test_data_parallel_workers_have_their_own_idle_times() -> None:
    one = {"tag": "2026-05-01 10:00:00 DP0 TP0"}
    two = {"tag": "2026-05-01 10:00:00 DP1 TP4"}
    text = (
        decode(2.0, **one) + decode(100.0, **one) + decode(3.0, **two) + decode(100.0, **two) + decode(100.0, **one)
    )
    assert values(only_run(text), Q.TOKENS_PER_S) == [100.0]


@pytest.mark.parametrize("at", range(45, 190, 11))
def test_a_line_that_a_terminal_wrapped_is_one_line(at: int) -> None:
    line = decode(180.0)
    run = only_run(line + line[:at] + "\n" + line[at:] + line)
    found = run.first(Q.CYCLE_MS, batch=1)
    assert found is not None
    assert (found.num_samples, found.value) == (3, pytest.approx(1000 * 2 / 180))


def test_server_arguments_with_nested_brackets() -> None:
    run = only_run(ARGUMENTS.format(algorithm="'EAGLE3'"))
    assert run.text(Q.MODEL) == "org/model-x"
    assert (run.number(Q.TP), run.number(Q.STEPS), run.number(Q.TOPK), run.number(Q.NUM_DRAFT_TOKENS)) == (
        4,
        3,
        1,
        4,
    )
    assert (run.number(Q.GRAPH_MAX_REQUESTS), run.number(Q.MAX_RUNNING)) == (16, 48)
    assert run.yes(Q.CUSTOM_ALLREDUCE_DISABLED) is True
    assert run.text(Q.KV_DTYPE) == "fp8_e5m2"
    assert run.text(Q.ALGORITHM) == "EAGLE3"


def test_a_plain_server_says_none() -> None:
    run = only_run(ARGUMENTS.format(algorithm="None") + decode(100.0, accept=None) * 3)
    assert run.text(Q.ALGORITHM) == "none"
    assert run.number(Q.STEP_MS, batch=1) == pytest.approx(10.0)


@pytest.mark.parametrize("width", [40, 80, 119])
def test_server_arguments_wrapped_in_the_middle_of_words(width: int) -> None:
    text = ARGUMENTS.format(algorithm="'EAGLE3'").rstrip("\n")
    wrapped = "\n".join(text[at : at + width] for at in range(0, len(text), width))
    run = only_run(wrapped + "\n" + decode(180.0) * 2)
    assert (
        run.number(Q.TP),
        run.number(Q.MAX_RUNNING),
        run.number(Q.FLAG, name="triton_attention_num_kv_splits"),
    ) == (4, 48, 8)
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.0


def test_server_arguments_that_are_cut_off_give_what_there_is() -> None:
    text = ARGUMENTS.format(algorithm="'EAGLE3'")
    run = only_run(text[: text.find("cuda_graph_max")] + "\n" + decode(180.0) * 2)
    assert run.number(Q.STEPS) == 3
    assert run.number(Q.TOKENS_PER_CYCLE) == 2.0


def test_two_servers_in_one_file_are_two_runs() -> None:
    text = ARGUMENTS.format(algorithm="None") + decode(100.0, accept=None) * 3
    text += ARGUMENTS.format(algorithm="'EAGLE3'") + decode(80.0) * 3
    plain, spec = runs(text)
    assert (plain.text(Q.ALGORITHM), plain.number(Q.TOKENS_PER_S)) == ("none", 100.0)
    assert (spec.text(Q.ALGORITHM), spec.number(Q.TOKENS_PER_S)) == ("EAGLE3", 80.0)


def test_lines_of_both_kinds_without_a_banner_are_two_runs_in_any_order() -> None:
    plain, spec = decode(100.0, accept=None) * 4, decode(80.0) * 4
    for text in (plain + spec, spec + plain):
        found = {run.text(Q.ALGORITHM): run.number(Q.TOKENS_PER_S) for run in runs(text)}
        assert found == {"none": 100.0, None: 80.0}


def test_captures_are_named_by_what_the_run_does() -> None:
    captures = (
        "[2026-05-08 14:34:34 TP0] Capture cuda graph bs [1, 2, 4, 8]\n"
        "[2025-09-05 20:48:29 TP0] Capture cuda graph end. Time elapsed: 12.11 s. mem usage=0.54 GB. avail mem=16.74 GB.\n"
        "[2025-09-05 20:50:29 TP6] Capture draft cuda graph end. Time elapsed: 62.67 s. mem usage=0.21 GB. avail mem=15.31 GB.\n"
        "Capture draft extend cuda graph end. mem usage=0.24 GB. avail mem=5.13 GB.\n"
    )
    spec = only_run(ARGUMENTS.format(algorithm="'EAGLE3'") + captures)
    assert [one.scope.phase for one in spec.all(Q.GRAPH_CAPTURED)] == ["verify", "draft", "extend"]
    assert spec.number(Q.GRAPH_MAX_REQUESTS, phase="verify") == 8
    plain = only_run(ARGUMENTS.format(algorithm="None") + captures[: captures.find("[2025-09-05 20:50")])
    assert [one.scope.phase for one in plain.all(Q.GRAPH_CAPTURED)] == ["decode"]
    assert only_run(captures).yes(Q.GRAPH_CAPTURED, phase="target") is True


def test_start_up_lines() -> None:
    run = only_run(
        "[2026-06-28 13:34:12 TP7] CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs. To silence this "
        "warning, specify disable_custom_all_reduce=True explicitly.\n[2025-07-22 06:18:33 TP5] Registering 4947 cuda graph addresses\n"
        "INFO server_args.py:2233: Attention backend not specified. Use fa3 backend by default.\n"
        "Setup Custom allreduce failed with rendezvous: detected allocations from overlapping devices\n"
        "[2026-02-02 10:10:10] The server is fired up and ready to roll!\n"
    )
    assert run.text(Q.ALLREDUCE_REFUSED, name="custom_v2") == "it's not supported on more than two PCIe-only GPUs"
    assert run.yes(Q.ALLREDUCE_ENGAGED, name="custom", rank=5) is True
    assert run.text(Q.ATTENTION_BACKEND) == "fa3"
    assert "overlapping devices" in str(run.text(Q.ALLREDUCE_REFUSED, name="custom"))
    assert run.yes(Q.GRAPH_LOG_COMPLETE) is True


def test_evidence_says_where_it_stood() -> None:
    found = only_run("noise\n" + decode(180.0) * 2).first(Q.TOKENS_PER_CYCLE)
    assert found is not None
    assert (found.line, found.source) == (2, "input.txt")
    assert "accept len: 2.00" in found.text
