"""Benchmark results: blocks of load generators, tables in Markdown, CSV, boxes and JSON, single lines and sentences."""

from __future__ import annotations

import json

import pytest
from case_texts import CASES
from reading import everything, only_run, runs, values

from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

VLLM_BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     60
Failed requests:                         0
Maximum request concurrency:             4
Benchmark duration (s):                  48.40
Output token throughput (tok/s):         371.88
Peak output token throughput (tok/s):    122.00
Total token throughput (tok/s):          700.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          2.38
P99 TPOT (ms):                           9.99
---------------Inter-token Latency----------------
Mean ITL (ms):                           8.23
---------------Speculative Decoding---------------
Acceptance rate (%):                     51.79
Acceptance length:                       2.55
Drafts:                                  20152
Draft tokens:                            60456
Accepted tokens:                         31308
Per-position acceptance (%):
  Position 0:                            73.41
  Position 1:                            49.00
==================================================
"""
VLLM_BLOCK = "".join(f"{line:<50}\n" for line in VLLM_BLOCK.splitlines())  # padded with spaces, as printed


def test_a_block_of_vllm() -> None:
    run = only_run(VLLM_BLOCK)
    assert run.number(Q.TOKENS_PER_S, batch=4) == 371.88
    assert len(run.all(Q.TOKENS_PER_S)) == 1, "peak counts chunks and total counts prompts"
    assert (run.number(Q.TOKEN_MS), run.number(Q.CHUNK_MS)) == (2.38, 8.23)
    assert (run.number(Q.TOKENS_PER_CYCLE), run.number(Q.NUM_CYCLES)) == (2.55, 20152)
    assert run.number(Q.ACCEPTED_PER_DRAFTED) == pytest.approx(0.5179)
    assert [run.number(Q.ACCEPTANCE, position=at) for at in (0, 1)] == [pytest.approx(0.7341), pytest.approx(0.49)]


def test_a_block_of_sglang_with_its_own_spelling() -> None:
    run = only_run(CASES["46"])
    assert (run.number(Q.TOKENS_PER_S), run.number(Q.TOKENS_PER_CYCLE), run.number(Q.CONCURRENCY)) == (
        160.95,
        2.52,
        47.54,
    )
    assert (run.number(Q.TTFT_MS), run.number(Q.REQUEST_MS)) == (20923.17, 37812.1)
    assert run.text(Q.FLAG, name="request_rate") == "inf"


def test_two_blocks_are_two_runs_and_a_cut_off_one_counts() -> None:
    first, second = runs(VLLM_BLOCK + VLLM_BLOCK.replace("371.88", "300.00")[: VLLM_BLOCK.find("-----Time")])
    assert (first.number(Q.TOKENS_PER_S), second.number(Q.TOKENS_PER_S)) == (371.88, 300.0)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_csv_files(separator: str) -> None:
    rows = [["k", "tok/s", "accept length"], ["0", "57.0", ""], ["1", "40.6", "1.87"], ["2", "36.0", "2.5"]]
    run = only_run("\n".join(separator.join(row) for row in rows) + "\n")
    assert run.number(Q.PLAIN_TOKENS_PER_S) == 57.0
    assert [run.number(Q.SPEC_TOKENS_PER_S, steps=k) for k in (1, 2)] == [40.6, 36.0]
    assert run.number(Q.TOKENS_PER_CYCLE, steps=2) == 2.5


def test_a_box_and_columns_of_both_sides() -> None:
    run = only_run(
        "┌─────────────┬────────────────┬───────────────┐\n│ concurrency │ baseline tok/s │ eagle3 tok/s  │\n├─────────────┼────────────────┼───────────────┤\n"
        "│ 1           │ 82.2           │ 60.5          │\n│ 8           │ 400.0          │ 310.5         │\n└─────────────┴────────────────┴───────────────┘\n"
    )
    assert (run.number(Q.PLAIN_TOKENS_PER_S, batch=1), run.number(Q.SPEC_TOKENS_PER_S, batch=8)) == (82.2, 310.5)


def test_rows_of_both_sides() -> None:
    run = only_run(
        "| config | TPS | Accept Len |\n|:--|--:|--:|\n| no speculation | **82.2** | 1.0 |\n| EAGLE-3 k=2 | 60.5 | 1.9 |\n"
    )
    assert run.number(Q.PLAIN_TOKENS_PER_S) == 82.2
    assert run.number(Q.SPEC_TOKENS_PER_S, steps=2) == 60.5
    assert values(run, Q.TOKENS_PER_CYCLE) == [1.9], "a baseline's 1.0 is no acceptance"


def test_trees_of_one_depth_stay_apart() -> None:
    run = only_run(CASES["41"])
    assert [one.scope.variant for one in run.all(Q.SPEC_TOKENS_PER_S, steps=3)] == ["3,1,4", "3,3,8", "3,3,4"]
    assert run.number(Q.PLAIN_TOKENS_PER_S, batch=1) == 222.47


def test_a_sweep_of_ubatch_is_the_cost_of_rows() -> None:
    run = only_run(CASES["43"].split("\n\n")[0] + "\n")
    assert run.number(Q.FORWARD_MS, width=1, phase="verify") == pytest.approx(1000 / 169.98)
    assert run.number(Q.FORWARD_MS, width=4, phase="verify") == pytest.approx(4000 / 174.78)


@pytest.mark.parametrize(
    "table",
    ["| a | b |\n|---|---|\n| 1 | 2 |\n", "| name | price |\n|---|---|\n| x | 3 |\n", "|  0 |             1.000 |            123.947 |\n",
     "a | b | c\n1 | 2 | 3\n", "ls -l | grep x | wc\n"],
)  # fmt: skip
def test_tables_of_other_things_are_nobodys(table: str) -> None:
    assert not everything(table)


@pytest.mark.parametrize(
    ("line", "quantity", "expected"),
    [
        ("acc_length=2.20", Q.TOKENS_PER_CYCLE, 2.2),
        ("speed=125.59 token/s", Q.TOKENS_PER_S, 125.59),
        ("#questions: 80, Throughput: 378.57 token/s, Acceptance length: 5.39", Q.TOKENS_PER_CYCLE, 5.39),
        ("#questions: 80, Throughput: 378.57 token/s, Acceptance length: 5.39", Q.TOKENS_PER_S, 378.57),
        ("Output throughput: 1103.382 token/s", Q.TOKENS_PER_S, 1103.382),
        ("Average Accept length: 1.037", Q.TOKENS_PER_CYCLE, 1.037),
        ("mean acceptance length: 3.53", Q.TOKENS_PER_CYCLE, 3.53),
        ("num_drafts: 4816", Q.NUM_CYCLES, 4816),
        ("num_accepted_tokens: 12208", Q.NUM_ACCEPTED, 12208),
        ("Decode 0. Batch size: 4, latency: 0.17757 s, throughput:     22.53 token/s", Q.STEP_MS, 177.57),
        ("57.0 tok/s without speculation", Q.PLAIN_TOKENS_PER_S, 57.0),
    ],
)
def test_single_lines(line: str, quantity: Q, expected: float) -> None:
    assert only_run(line + "\n").number(quantity) == pytest.approx(expected)


def test_a_table_of_send_one() -> None:
    run = only_run(
        "| Latency (s) | Tokens | Acc Length | Speed (token/s) |\n|---|---|---|---|\n| 4.06 | 512 | 2.20 | 125.59 |\n"
    )
    assert (run.number(Q.TOKENS_PER_CYCLE), run.number(Q.TOKENS_PER_S)) == (2.2, 125.59)


def test_evalscope_rows() -> None:
    assert only_run(CASES["10"].split("evalscope")[1].split("\n", 1)[1]).number(Q.CONCURRENCY) == 20


def test_the_table_of_speed_bench() -> None:
    run = only_run(
        "category base_avg_pred_t/s spec_avg_pred_t/s decode_speedup accept_rate\ncode 10.25 24.23 2.36 0.675\n"
    )
    assert (run.number(Q.PLAIN_TOKENS_PER_S), run.number(Q.SPEC_TOKENS_PER_S)) == (10.25, 24.23)


def test_result_files_of_load_generators() -> None:
    document = {
        "output_throughput": 160.95,
        "mean_tpot_ms": 5.0,
        "accept_length": 2.52,
        "max_concurrency": 4,
        "dataset_name": "random",
    }
    run = only_run(json.dumps(document))
    assert (run.number(Q.TOKENS_PER_S, batch=4), run.number(Q.TOKENS_PER_CYCLE), run.text(Q.DATASET)) == (
        160.95,
        2.52,
        "random",
    )
    assert len(runs(json.dumps(document) + "\n" + json.dumps(document | {"output_throughput": 99.0}) + "\n")) == 2


def test_numbers_that_somebody_wrote_down() -> None:
    run = only_run('{"baseline_tps": 82.2, "eagle3_tps": 60.5, "num_steps": 2, "verify_ms": 29.0}')
    assert (
        run.number(Q.PLAIN_TOKENS_PER_S),
        run.number(Q.SPEC_TOKENS_PER_S, steps=2),
        run.number(Q.VERIFY_MS),
    ) == (82.2, 60.5, 29.0)


def test_sentences_with_a_sweep() -> None:
    run = only_run(
        "57.0 tok/s without speculation; 40.6 / 36.0 / 32.7 with n=1/2/3 although mean acceptance is 1.87 / ~2.50 / ~3.06\n"
    )
    assert run.number(Q.PLAIN_TOKENS_PER_S) == 57.0
    assert [run.number(Q.SPEC_TOKENS_PER_S, steps=k) for k in (1, 2, 3)] == [40.6, 36.0, 32.7]
    assert [run.number(Q.TOKENS_PER_CYCLE, steps=k) for k in (1, 2, 3)] == [1.87, 2.5, 3.06]


@pytest.mark.parametrize(
    ("text", "plain", "spec", "steps"),
    [
        (
            "Without speculation I get 82.2 tok/s (12.2 ms a step). With EAGLE-3 (2 steps) only 60.5 tok/s.",
            82.2,
            60.5,
            2,
        ),
        ("baseline 222 tokens/s vs EAGLE3 159.8 tokens/s", 222.0, 159.8, None),
        ("No spec: 47 t/s -> MTP: 31 t/s", 47.0, 31.0, None),
        ("we see 26.51 tok/s base and 17.7 tok/s with MTP k=1", 26.51, 17.7, 1),
    ],
)
def test_sentences_with_both_sides(text: str, plain: float, spec: float, steps: int | None) -> None:
    run = only_run(text + "\n")
    assert values(run, Q.PLAIN_TOKENS_PER_S) == [plain]
    assert [(one.value, one.scope.steps) for one in run.all(Q.SPEC_TOKENS_PER_S)] == [(spec, steps)]


@pytest.mark.parametrize(
    "text",
    ["it runs at 60.5 tok/s\n", "INFO 05-15 03:22:11 [x.py:1] speculative module at 5 tok/s\n", "see issue 60 about tps without tests\n",
     "accept length 0.5\n", "the download took 29 ms\n"],
)  # fmt: skip
def test_sentences_without_a_side_say_nothing(text: str) -> None:
    assert not everything(text)


def test_a_sentence_about_verify_and_acceptance() -> None:
    run = only_run("Verify takes 29 ms, a plain step is 12.2 ms, and the acceptance length is 1.75.\n")
    assert (run.number(Q.VERIFY_MS), run.number(Q.PLAIN_STEP_MS), run.number(Q.TOKENS_PER_CYCLE)) == (
        29.0,
        12.2,
        1.75,
    )


def test_a_tree_in_the_words_of_a_row() -> None:
    run = only_run(
        "| Config | tokens/s |\n|---|---:|\n| base | 82.2 |\n| EAGLE3 (3,1,4) | 60.5 |\n| EAGLE3 (5,4,8) | 65.5 |\n"
    )
    assert {(one.scope.steps, one.scope.width): one.value for one in run.all(Q.SPEC_TOKENS_PER_S)} == {
        (3, 4): 60.5,
        (5, 8): 65.5,
    }


def test_latencies_by_side_are_runs() -> None:
    plain, spec = runs(
        "| setup | TPOT (ms) | acceptance length |\n|---|---|---|\n| no spec | 12.2 | - |\n| eagle3 k=2 | 16.5 | 1.75 |\n"
    )
    assert (plain.label, plain.number(Q.TOKEN_MS)) == (Label.BASELINE, 12.2)
    assert (spec.label, spec.number(Q.TOKEN_MS), spec.number(Q.TOKENS_PER_CYCLE)) == (Label.SPECULATIVE, 16.5, 1.75)


def test_llama_bench_tells_prompts_from_generation() -> None:
    run = only_run(
        "| model | size | backend | ngl | n_ubatch | test | t/s |\n| --- | ---: | --- | --: | ---: | ---: | ---: |\n| m 30B | 17 GiB | CUDA | 99 | 2 | pp512 | "
        "111.52 ± 0.52 |\n| m 30B | 17 GiB | CUDA | 99 | 512 | pp512 | 4000.0 ± 1 |\n| m 30B | 17 GiB | CUDA | 99 | 512 | tg128 | 160.98 ± 0.52 |\n"
    )
    assert {one.scope.width: one.value for one in run.all(Q.FORWARD_MS)} == {2: pytest.approx(2000 / 111.52)}
    assert run.number(Q.PLAIN_TOKENS_PER_S) == 160.98


def test_acceptance_by_position_in_words() -> None:
    run = only_run("mean length 1.036, per position 0.036 / 0.0006 / 0.000\n")
    assert [run.number(Q.ACCEPTANCE, position=at) for at in range(3)] == [0.036, 0.0006, 0.0]
    assert run.number(Q.TOKENS_PER_CYCLE) == 1.036
    assert only_run("Position-0 acceptance is 10 % here\n").number(Q.ACCEPTANCE, position=0) == pytest.approx(0.1)


def test_headings_say_which_side_a_block_is() -> None:
    block = VLLM_BLOCK.split("---------------Speculative")[0] + "=" * 50 + "\n"
    plain, spec = runs(
        f"## Without speculation:\n\n```\n{block}```\n\n### EAGLE-3, k = 2\n\n```\n{block.replace('371.88', '300.00')}```\n"
    )
    assert (plain.label, plain.number(Q.TOKENS_PER_S)) == (Label.BASELINE, 371.88)
    assert (spec.label, spec.number(Q.TOKENS_PER_S)) == (Label.SPECULATIVE, 300.0)
