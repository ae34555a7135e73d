"""Logs of healthy runs, in many formats: nothing wrong is found in them, and damage to them invents nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read

from alula.explain.finding import Status
from alula.explain.judge import explain
from alula.explain.sink import Sink
from alula.explain.verdict import Verdict
from alula.profile.evidence import Label

_SGLANG_START = (
    "[2026-03-21 03:31:50] server_args=ServerArgs(model_path='{model}', tokenizer_path='{model}', tp_size={tp}, "
    "attention_backend='{backend}', {speculation}max_running_requests=48, cuda_graph_max_bs=48, "
    "disable_cuda_graph=False, disable_custom_all_reduce=False)\n"
    "[2026-03-21 03:32:34 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=14.00 GB\n"
    "[2026-03-21 03:32:34 TP0] Capture cuda graph bs [1, 2, 4, 8, 16, 32, 48]\n"
    "[2026-03-21 03:32:48 TP0] Capture cuda graph end. Time elapsed: 12.11 s. mem usage=0.54 GB. avail "
    "mem=16.74 GB.\n"
)
_SGLANG_DRAFT = (
    "[2026-03-21 03:33:48 TP0] Capture draft cuda graph end. Time elapsed: 2.67 s. mem usage=0.21 GB. avail "
    "mem=15 GB.\n"
    "[2026-03-21 03:33:58 TP0] Capture draft extend cuda graph end. Time elapsed: 1.67 s. mem usage=0.21 GB.\n"
)
_SPECULATION = (
    "speculative_algorithm='EAGLE3', speculative_draft_model_path='org/head-eagle3', speculative_num_steps=3, "
    "speculative_eagle_topk=1, speculative_num_draft_tokens=4, "
)


def sglang(
    rate: float,
    tokens: float | None,
    *,
    comma: bool = True,
    tp: int = 1,
    backend: str = "flashinfer",
    running: int = 1,
) -> str:
    """tokens None: a plain run."""
    source = random.Random(round(rate))
    start = _SGLANG_START.format(
        model="org/Some-8B",
        tp=tp,
        backend=backend,
        speculation=_SPECULATION if tokens else "speculative_algorithm=None, ",
    )
    text = (
        start
        + (_SGLANG_DRAFT if tokens else "")
        + "[2026-03-21 03:34:00] The server is fired up and ready to roll!\n"
    )
    for index in range(40):
        accept = f"accept len: {tokens + source.uniform(-0.1, 0.1):.2f}, accept rate: 0.55, " if tokens else ""
        text += (
            f"[2026-03-21 03:35:{index:02d} TP0] Decode batch{',' if comma else '.'} #running-req: "
            f"{running}, #token: "
            f"{200 + 40 * index}, token usage: 0.01, {accept}cuda graph: True, gen throughput (token/s): "
            f"{rate * source.uniform(0.99, 1.01):.2f}, #queue-req: 0, \n"
        )
    return text


def vllm(version: str, rate: float, tokens: float | None, *, tp: int = 1, running: int = 1) -> str:
    source = random.Random(round(rate))
    head = "SpeculativeConfig(method='eagle3', model='org/head', num_spec_tokens=3)" if tokens else "None"
    text = (
        f"(EngineCore_DP0 pid=88) INFO 01-23 20:31:02 [core.py:93] Initializing a V1 LLM engine "
        f"(v{version}) with config: "
        f"model='org/Some-8B', speculative_config={head}, tokenizer='org/Some-8B', tensor_parallel_size={tp}, "
        "disable_custom_all_reduce=False, quantization=None, enforce_eager=False, "
        "compilation_config={'cudagraph_mode': "
        "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_capture_sizes': [1, 2, 4, 8, 16, 256], "
        "'max_cudagraph_capture_size': 256}\n"
        "INFO 01-23 20:32:40 [gpu_model_runner.py:6584] Capturing CUDA graphs (PIECEWISE): 100%|####| 6/6\n"
        "INFO 01-23 20:32:44 [gpu_model_runner.py:6584] Capturing CUDA graphs (FULL): 100%|####| 6/6\n"
    )
    if tokens:
        text += (
            "INFO 01-23 20:32:46 [gpu_model_runner.py:6584] Capturing eagle CUDA graphs (FULL): 100%|####| 6/6\n"
        )
    if tp > 1:
        text += (
            "(Worker_TP0 pid=425) INFO 01-23 20:32:47 [custom_all_reduce.py:669] Registering 634 cuda "
            "graph addresses\n"
        )
    text += "INFO 01-23 20:32:48 [gpu_model_runner.py:7232] Graph capturing finished in 41 secs, took 2.39 GiB\n"
    for index in range(20):
        now = f"01-23 20:{40 + index // 6}:{index % 6}0"
        text += (
            f"(APIServer pid=1) INFO {now} [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 "
            f"tokens/s, Avg generation "
            f"throughput: {rate * source.uniform(0.99, 1.01):.1f} tokens/s, Running: {running} reqs, "
            f"Waiting: 0 reqs, GPU KV "
            "cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
        )
        if tokens:
            drafts = 1000
            accepted = round(drafts * (tokens - 1))
            text += (
                f"(APIServer pid=1) INFO {now} [metrics.py:101] SpecDecoding metrics: Mean acceptance "
                f"length: {tokens:.2f}, "
                f"Accepted throughput: 50.79 tokens/s, Drafted throughput: 91.19 tokens/s, Accepted: "
                f"{accepted} tokens, "
                f"Drafted: {3 * drafts} tokens, Per-position acceptance rate: 0.809, 0.556, "
                f"{tokens - 1 - 0.809 - 0.556:.3f}, Avg Draft acceptance rate: {100 * (tokens - 1) / 3:.1f}%\n"
            )
    return text


LLAMA = (
    "slot print_timing: id  1 | task 0 | eval time =    2296.72 ms /   256 tokens (    8.97 ms per token,   "
    "111.46 tokens per "
    "second)\n"
    "slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), "
    "mean acceptance "
    "length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)\n"
)
BENCH = (
    "============ Serving Benchmark Result ============\n"
    "Successful requests:                     60        \n"
    "Maximum request concurrency:             1         \n"
    "Benchmark duration (s):                  48.40     \n"
    "Output token throughput (tok/s):         {rate:.2f}    \n"
    "Mean TTFT (ms):                          31.20      \n"
    "Mean TPOT (ms):                          {token:.2f}      \n"
    "{more}"
    "==================================================\n"
)
BENCH_PLAIN = BENCH.format(rate=150.0, token=6.6, more="")
BENCH_SPEC = BENCH.format(
    rate=260.0,
    token=3.8,
    more="---------------Speculative Decoding---------------\nAcceptance rate (%):                     51.79     \n"
    "Acceptance length:                       2.55      \n",
)

HEALTHY: dict[str, tuple[str, str | None]] = {
    "sglang": (sglang(130.0, 2.4), sglang(80.0, None)),
    "sglang without baseline": (sglang(130.0, 2.4), None),
    "sglang with a point": (sglang(131.0, 2.3, comma=False), sglang(81.0, None, comma=False)),
    "sglang triton": (sglang(135.0, 2.5, backend="triton"), sglang(82.0, None, backend="triton")),
    "sglang of eight requests": (sglang(900.0, 2.4, running=8), sglang(600.0, None, running=8)),
    "sglang plain": (sglang(80.0, None), None),
    "vllm 0.20": (vllm("0.20.0", 210.0, 2.67), vllm("0.20.0", 125.0, None)),
    "vllm 0.28": (vllm("0.28.1", 220.0, 2.7), vllm("0.28.1", 126.0, None)),
    "vllm without baseline": (vllm("0.20.0", 210.0, 2.67), None),
    "vllm on four ranks": (vllm("0.26.0", 230.0, 2.6, tp=4), vllm("0.26.0", 140.0, None, tp=4)),
    "vllm of sixteen requests": (vllm("0.26.0", 2300.0, 2.6, running=16), vllm("0.26.0", 1700.0, None, running=16)),
    "llama.cpp": (LLAMA, None),
    "benchmarks": (BENCH_SPEC, BENCH_PLAIN),
}


def _verdict(spec: str, plain: str | None) -> Verdict:
    sinks = [read(spec, "spec.log")]
    if plain is not None:
        baseline = read(plain, "plain.log")
        for run in baseline._runs:
            run.label = Label.BASELINE
        sinks.append(baseline)
    return explain(sinks)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_wrong_is_found(name: str) -> None:
    spec, plain = HEALTHY[name]
    verdict = _verdict(spec, plain)
    assert verdict.exit_code == 0
    assert [(one.id, one.text) for one in verdict.findings if one.suspect] == []
    if plain is not None:
        assert verdict.case.sums.pays is True and "Nothing wrong was found" in verdict.answer


def _confirmed(verdict: Verdict) -> dict[str, float]:
    return {one.id: one.confidence for one in verdict.findings if one.status is Status.CONFIRMED}


@given(
    st.sampled_from(sorted(HEALTHY)), st.integers(0, 2**32), st.sampled_from(["cut", "noise", "drop", "shuffle"])
)
def test_damage_invents_no_cause(name: str, seed: int, damage: str) -> None:
    source = random.Random(seed)
    spec = HEALTHY[name][0]
    lines = spec.splitlines()
    if damage == "cut":
        spec = spec[: source.randrange(len(spec))]
    elif damage == "noise":
        data = bytearray(spec.encode())
        for _ in range(30):
            data[source.randrange(len(data))] = source.randrange(256)
        spec = data.decode("utf-8", "replace")
    elif damage == "drop":
        spec = "\n".join(line for line in lines if source.random() < 0.7)
    else:
        source.shuffle(lines)
        spec = "\n".join(lines)
    found = _confirmed(_verdict(spec, None))
    harmless = {"contradictory_evidence"}  # noise changes digits: two values where there was one
    assert set(found) <= harmless, found


@pytest.mark.parametrize(
    "text", ["", "\n\n", "Dear all,\nthe meeting is at 12:30, bring 3 drafts.\n", "\x00\x01\x02" * 99]
)
def test_unrelated_text_is_not_recognised(text: str) -> None:
    verdict = explain([read(text)])
    assert "Nothing was recognised" in verdict.answer and verdict.exit_code == 0
    assert isinstance(read(text), Sink)
