"""Inputs for every public report in the formats that its reporter would have pasted.

Facts are the report's; where it gives none, values and surrounding lines are ours. Used by the readers' tests.
"""

from __future__ import annotations

_VLLM_DUMP = (
    "(EngineCore_DP0 pid=88) INFO 01-23 20:31:02 [core.py:93] Initializing a V1 LLM engine (v{version}) with config: "
    "model='{model}', speculative_config=SpeculativeConfig(method='{method}', model='{head}', num_spec_tokens={steps}), "
    "tokenizer='{model}', skip_tokenizer_init=False, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size={tp}, "
    "pipeline_parallel_size=1, disable_custom_all_reduce=False, quantization=None, enforce_eager=False, seed=0, "
    "compilation_config={{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: "
    "(2, 1)>, 'cudagraph_capture_sizes': {sizes}, 'max_cudagraph_capture_size': {largest}}}\n"
)


def vllm_dump(**values: object) -> str:
    """vLLM's config line of a speculative run."""
    defaults: dict[str, object] = {
        "version": "0.23.1", "model": "org/model-122b", "method": "mtp", "head": "org/model-122b", "steps": 2, "tp": 1,
        "sizes": [1, 2, 4, 8, 16, 32, 64], "largest": 64,
    }  # fmt: skip
    return _VLLM_DUMP.format(**(defaults | values))


def vllm_ticks(rate: float, length: float, steps: int, running: int = 1, num_ticks: int = 4) -> str:
    """Windows of ten seconds with their speculative lines; the first begins while a prompt is read."""
    text = ""
    for tick in range(num_ticks):
        prompt = 412.3 if tick == 0 else 0.0
        drafts = round(rate * 10 / length)
        accepted = round(drafts * (length - 1))
        rates = ", ".join(f"{max(0.0, 0.9 - 0.2 * position):.3f}" for position in range(steps))
        text += (
            f"(APIServer pid=1) INFO 01-23 20:4{tick}:11 [loggers.py:271] Engine 000: Avg prompt throughput: {prompt} tokens/s, "
            f"Avg generation throughput: {rate} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, "
            "Prefix cache hit rate: 0.0%\n"
            f"(APIServer pid=1) INFO 01-23 20:4{tick}:11 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
            f"{length}, Accepted throughput: {accepted / 10:.2f} tokens/s, Drafted throughput: {drafts * steps / 10:.2f} "
            f"tokens/s, Accepted: {accepted} tokens, Drafted: {drafts * steps} tokens, Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * accepted / (drafts * steps):.1f}%\n"
        )
    return text


DOWNGRADE = (
    "WARNING 01-23 20:32:46 [compilation.py:1148] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for "
    "attention backend FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
    "cudagraph_mode=PIECEWISE\n"
)

CASES: dict[str, str] = {
    "01": vllm_dump()
    + DOWNGRADE
    + "Capturing CUDA graphs (PIECEWISE): 49/49\n"
    + "(Worker pid=1) INFO 01-23 20:34:00 [gpu_model_runner.py:6000] Graph capturing finished in 21 secs, took 0.55 GiB\n"
    + vllm_ticks(47.5, 2.1, 2),
    "02": vllm_dump(version="0.27.1", tp=2, steps=7, method="draft_model")
    + DOWNGRADE.replace(":1148", ":1458")
    + "Capturing CUDA graphs (PIECEWISE):   0%|          | 0/49\rCapturing CUDA graphs (PIECEWISE): 100%|####| 49/49\n"
    + "INFO 09-01 10:00:00 [gpu_model_runner.py:7232] Graph capturing finished in 41 secs, took 2.39 GiB\n",
    "04": vllm_dump(version="0.11.0", steps=2, sizes=[64, 32, 16, 8, 4, 2, 1], largest=64)
    + vllm_ticks(900.0, 2.0, 2, 40),
    "05": (
        "# without MTP\n```bash\nvllm serve /models/DeepSeek-R1 -tp 8 --cuda-graph-sizes=32 --max-model-len 8192\n```\n# MTP\n"
        "```bash\nvllm serve /models/DeepSeek-R1 -tp 8 --cuda-graph-sizes=32 --max-model-len 8192 \\\n  --speculative-config "
        '\'{"num_speculative_tokens": 1,"method": "deepseek_mtp"}\' -O.cudagraph_mode=PIECEWISE\n'
        "vllm bench serve --model DeepSeek-R1 --dataset-name random --random-input-len 2048 --random-output-len 1024 "
        "--max-concurrency 32 --ignore-eos\n```\n"
    ),
    "07": "| MTP n | tok/s | mean acceptance length |\n|---|---|---|\n| 0 | 57.0 | - |\n| 1 | 40.6 | 1.87 |\n| 2 | 36.0 | ~2.50 |\n"
    "| 3 | 32.7 | ~3.06 |\n",
    "10": "python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 \\\n"
    "    --speculative-draft-model-path org/EAGLE3-8B --speculative-num-steps 6 --speculative-eagle-topk 10 \\\n"
    "    --speculative-num-draft-tokens 32 --mem-fraction 0.9 --cuda-graph-max-bs 2 --dtype float16\n"
    "evalscope perf --parallel 20 --number 100 --dataset random --tokenizer-path Qwen/Qwen2.5-0.5B-Instruct\n"
    "| Time taken for tests (s) | 77.861 |\n| Number of concurrency | 20 |\n| Total requests | 100 |\n",
    "11": "WARNING 10-06 15:56:46 [custom_all_reduce.py:144] Custom allreduce is disabled because it's not supported on more than "
    "two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n",
    "12": "# nThread 1 nGpus 4 minBytes 4096 maxBytes 393216 step: 2(factor) graph: 1\n"
    "#  Rank  0 Group  0 Pid  39155 on HOST device  0 [0x01] Tesla V100-SXM2-32GB\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "        4096          2048  bfloat16     sum      -1    19.40    0.21    0.32      0    19.30    0.21    0.32      0\n"
    "      131072         65536  bfloat16     sum      -1    51.80    2.53    3.80      0    51.60    2.54    3.81      0\n"
    "      393216        196608  bfloat16     sum      -1    83.50    4.71    7.06      0    83.40    4.71    7.07      0\n"
    "# Avg bus bandwidth    : 3.7\n",
    "16": "| setting | C32 tok/s |\n|---|---|\n| default NCCL | 1003.5 |\n| NCCL_PROTO=LL | 998.1 |\n| NCCL_PROTO=LL128 | 1131.6 |\n"
    "| NCCL_PROTO=LL,LL128,Simple | 1127.6 |\n"
    "node1:77:99 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
    "node1:77:99 [0] NCCL INFO AllReduce: 1835008 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}\n",
    "19": "| | auto | force_off |\n|---|---|---|\n| P2P status | GRANTED (patched driver) | DISABLED (NCCL_P2P_DISABLE=1) |\n"
    "[nvlink] 4 GPUs — no NVLink, but nvidia-smi reports P2P=OK — auto-enabling PCIe P2P (NCCL_P2P_LEVEL=PHB, custom all-reduce ON)\n"
    "WARNING 08-04 15:56:46 [custom_all_reduce.py:144] Custom allreduce is disabled because it's not supported on more than two "
    "PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n",
    "24": "box:50292:50300 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
    "box:50292:50300 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
    "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
    "iommu: Default domain type: Translated\n"
    "b12x PCIe oneshot allreduce backend ready, first dispatch: shape=(1, 4096) dtype=bf16 bytes=8192\n",
    "28": "NCCL_PROTO=LL VLLM_NCCL_SO_PATH=/opt/libnccl.so vllm serve org/model-70b -tp 4 --distributed-executor-backend ray\n"
    "INFO 03-30 18:45:35 [ray_distributed_executor.py:354] Copying the following environment variables to workers: "
    "['VLLM_USE_MODELSCOPE', 'LD_LIBRARY_PATH', 'VLLM_USAGE_SOURCE', 'VLLM_USE_V1']\n"
    "(Worker pid=423) INFO 05-15 03:15:46 [nccl.py:24] Found nccl from environment variable VLLM_NCCL_SO_PATH=/opt/libnccl.so\n"
    "(Worker pid=420) INFO 05-15 03:15:46 [pynccl.py:113] vLLM is using nccl==2.30.3\n",
    "31": "[2026-03-21 03:31:56] server_args=ServerArgs(model_path='org/Kimi-K2.5', tokenizer_path='org/Kimi-K2.5', tp_size=8, "
    "speculative_algorithm='EAGLE', speculative_draft_model_path='org/kimi-k2.5-eagle3', speculative_num_steps=3, "
    "speculative_eagle_topk=1, speculative_num_draft_tokens=4, disable_cuda_graph=False)\n"
    + "".join(
        f"[2026-03-21 03:35:{second:02d} TP0] Decode batch, #running-req: 1, #token: {300 + second}, token usage: 0.00, accept len: "
        f"1.00, accept rate: 0.25, cuda graph: True, gen throughput (token/s): 61.{second}, #queue-req: 0\n"
        for second in range(10, 20)
    ),
    "32": '{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 1, '
    '"draft_vocab_size": 32000, "vocab_size": 128256}',
    "33": "(APIServer pid=1) INFO 05-15 03:22:11 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.11, Accepted "
    "throughput: 5.00 tokens/s, Drafted throughput: 150.00 tokens/s, Accepted: 55 tokens, Drafted: 1500 tokens, Per-position "
    "acceptance rate: 0.100, 0.008, 0.002, Avg Draft acceptance rate: 3.7%\n",
    "37": "| run | Acc Length | Speed (token/s) |\n|---|---|---|\n| random raw completion | 3.93 | 149.37 |\n| chat template | 1.94 | 74.74 |\n"
    "python -m sglang.bench_serving --dataset-name random-ids --num-prompts 50\n",
    "40": "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of "
    "speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.\n",
    "41": "| steps,topk,tokens | bs1 tok/s | accept length |\n|---|---|---|\n| baseline | 222.47 | |\n| 3,1,4 | 159.78 | 1.86 |\n"
    "| 3,3,8 | 172.99 | 2.20 |\n| 3,3,4 | 207.62 | 1.99 |\n| 7,4,16 | 191.90 | 2.52 |\n| 8,8,60 | 177.5 | 3.2 |\n",
    "43": "| model | n_ubatch | test | t/s |\n| --- | ---: | ---: | ---: |\n| glm4moe 106B.A12B | 1 | pp256 | 169.98 ± 0.10 |\n"
    "| glm4moe 106B.A12B | 2 | pp256 | 111.52 ± 0.20 |\n| glm4moe 106B.A12B | 4 | pp256 | 174.78 ± 0.31 |\n\n"
    "decoded  136 tokens in   28.931 seconds, speed:    4.701 t/s\nn_draft   = 8\nn_predict = 136\nn_drafted = 112\nn_accept  = 36\n"
    "accept    = 32.143%\n",
    "45": "364 / 216 / 166 / 129 tok/s for k=0/1/2/3, acceptance length 1.44 / 1.61 / 1.71\n",
    "46": "============ Serving Benchmark Result ============\nBackend:                                 sglang    \n"
    "Traffic request rate:                    inf       \nMax reqeuest concurrency:                not set   \n"
    "Successful requests:                     100       \nBenchmark duration (s):                  79.53     \n"
    "Output token throughput (tok/s):         160.95    \nTotal token throughput (tok/s):          321.90    \n"
    "Concurrency:                             47.54     \nAccept length:                           2.52      \n"
    "----------------End-to-End Latency----------------\nMean E2E Latency (ms):                   37812.10  \n"
    "---------------Time to First Token----------------\nMean TTFT (ms):                          20923.17  \n"
    "==================================================\n",
    "51": 'vllm serve facebook/opt-30b -tp 4 --speculative-config \'{"model": "facebook/opt-125m", "num_speculative_tokens": 5, '
    '"draft_tensor_parallel_size": 4}\'\n',
    "54": "",  # a trace: made by trace_samples
    "55": "26.51 tok/s base (37.7 ms)\nk=1 17.73 tok/s @1.75 (98.7 ms), k=7 12.20 tok/s @3.21 (263 ms)\n"
    "Capturing dflash CUDA graphs (FULL): 31/31\n",
    "57": "| draft depth | median t/s | tokens/step | ms/step |\n|---|---|---|---|\n| 0 | 66.93 | 1.00 | 14.94 |\n| 1 | 87.70 | 1.65 | 18.81 |\n"
    "| 2 | 100.64 | 2.08 | 20.67 |\n| 3 | 100.86 | 2.21 | 21.89 |\n| 6 | 74.46 | 2.35 | 31.55 |\n",
    "61": "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk\n# Idx      W      C      C      %      %      %      %    MHz    MHz\n"
    "    0     14     41      -     98     10      0      0   4266    611\n    0     14     41      -     97     10      0      0   4266    890\n",
}
