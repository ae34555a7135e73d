"""What an engine's settings are called, in its flags, configs and dumps, and which quantity each is.

One table an engine; a name is matched without dashes and case. Knows names and the forms of their values, not where
they were printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from alula.explain.readers.found import Place
from alula.explain.readers.literal import parse_literal, word_value
from alula.profile.quantities import Quantity

Q = Quantity
_MAX_FLAG = 200  # characters of a flag's value that are kept
_MODES = {0: "none", 1: "piecewise", 2: "full"}

# Settings that hold one number or word, under every name that the engines give them.
_COMMON: dict[str, Quantity] = {
    "model": Q.MODEL,
    "model_path": Q.MODEL,
    "model_tag": Q.MODEL,
    "tp": Q.TP,
    "tp_size": Q.TP,
    "tensor_parallel_size": Q.TP,
    "dp": Q.DP,
    "dp_size": Q.DP,
    "data_parallel_size": Q.DP,
    "ep": Q.EP,
    "ep_size": Q.EP,
    "expert_parallel_size": Q.EP,
    "moe_expert_parallel_size": Q.EP,
    "dtype": Q.DTYPE,
    "quantization": Q.QUANTIZATION,
    "kv_cache_dtype": Q.KV_DTYPE,
    "attention_backend": Q.ATTENTION_BACKEND,
    "attn_backend": Q.ATTENTION_BACKEND,
    "disable_custom_all_reduce": Q.CUSTOM_ALLREDUCE_DISABLED,
}
_SGLANG: dict[str, Quantity] = {
    "speculative_algorithm": Q.ALGORITHM,
    "speculative_algo": Q.ALGORITHM,
    "speculative_draft_model_path": Q.DRAFT_MODEL,
    "speculative_draft_model": Q.DRAFT_MODEL,
    "speculative_draft": Q.DRAFT_MODEL,
    "speculative_num_steps": Q.STEPS,
    "speculative_eagle_topk": Q.TOPK,
    "speculative_num_draft_tokens": Q.NUM_DRAFT_TOKENS,
    "speculative_attention_mode": Q.ATTENTION_MODE,
    "speculative_draft_model_quantization": Q.DRAFT_QUANTIZATION,
    "max_running_requests": Q.MAX_RUNNING,
    "cuda_graph_max_bs": Q.GRAPH_MAX_REQUESTS,
    "cuda_graph_max_bs_decode": Q.GRAPH_MAX_REQUESTS,
    "disable_cuda_graph": Q.GRAPHS_DISABLED,
    "disable_decode_cuda_graph": Q.GRAPHS_DISABLED,
}
_VLLM: dict[str, Quantity] = {
    "speculative_model": Q.DRAFT_MODEL,
    "num_speculative_tokens": Q.STEPS,
    "num_spec_tokens": Q.STEPS,
    "speculative_draft_tensor_parallel_size": Q.DRAFT_TP,
    "max_num_seqs": Q.MAX_RUNNING,
    "enforce_eager": Q.GRAPHS_DISABLED,
    "max_seq_len_to_capture": Q.FLAG,
}
_TENSORRT: dict[str, Quantity] = {
    "backend": Q.FLAG,
    "max_batch_size": Q.MAX_RUNNING,
    "max_draft_len": Q.STEPS,
    "speculative_model_dir": Q.DRAFT_MODEL,
    "speculative_model": Q.DRAFT_MODEL,
    "allreduce_strategy": Q.FLAG,
}
_LLAMA: dict[str, Quantity] = {
    "m": Q.MODEL,
    "md": Q.DRAFT_MODEL,
    "model_draft": Q.DRAFT_MODEL,
    "spec_draft_model": Q.DRAFT_MODEL,
    "draft": Q.STEPS,
    "draft_max": Q.STEPS,
    "draft_n": Q.STEPS,
    "spec_draft_n_max": Q.STEPS,
    "spec_type": Q.ALGORITHM,
    "np": Q.MAX_RUNNING,
    "parallel": Q.MAX_RUNNING,
}
TABLES: Mapping[str, dict[str, Quantity]] = {
    "sglang": _COMMON | _SGLANG,
    "vllm": _COMMON | _VLLM,
    "tensorrt-llm": _COMMON | _TENSORRT,
    "llama.cpp": _COMMON | _LLAMA,
}
_SPECULATIVE = {  # inside vLLM's and TensorRT-LLM's speculative_config
    "method": Q.ALGORITHM,
    "decoding_type": Q.ALGORITHM,
    "model": Q.DRAFT_MODEL,
    "speculative_model": Q.DRAFT_MODEL,
    "speculative_model_dir": Q.DRAFT_MODEL,
    "num_speculative_tokens": Q.STEPS,
    "num_spec_tokens": Q.STEPS,
    "max_draft_len": Q.STEPS,
    "num_nextn_predict_layers": Q.STEPS,
    "draft_tensor_parallel_size": Q.DRAFT_TP,
    "quantization": Q.DRAFT_QUANTIZATION,
}
_NESTED = ("speculative_config", "compilation_config")
_NUMBERS = {Q.TP, Q.DP, Q.EP, Q.STEPS, Q.TOPK, Q.NUM_DRAFT_TOKENS, Q.MAX_RUNNING, Q.GRAPH_MAX_REQUESTS, Q.DRAFT_TP}
_YES_OR_NO = {Q.GRAPHS_DISABLED, Q.CUSTOM_ALLREDUCE_DISABLED}
_PHASES_OF_BACKENDS = {
    "decode_attention_backend": "decode",
    "prefill_attention_backend": "prefill",
    "speculative_draft_attention_backend": "draft",
}
# Flags worth keeping although no quantity is theirs.
_INTEREST = re.compile(
    r"cuda_?graph|cudagraph|all_?reduce|specul|spec_|overlap|async_sched|determin|symm|mscclpp|nccl|nvls|attention"
    r"|moe|expert|page_size|block_size|schedule|log_interval|mem_frac|utilization|compil|eager|quant"
    r"|dtype|graph|pdmux"
    r"|batched_tokens|prefix_caching|radix|draft|split_mode|ngl|ubatch|batch_size|flash_attn|context|max_model_len"
    r"|ignore_eos|pipeline|nnodes|disagg|device|n_gpu_layers|no_kv_offload|tensor_split|main_gpu|spec\b"
)


def add_setting(place: Place, engine: str, name: str, value: Any) -> None:
    """One setting of an engine as evidence: its quantity, or a flag if it is of interest. `value` as parsed."""
    key = name.strip("-").replace("-", "_").lower()
    head, dot, inner = key.partition(".")
    if dot and head in _NESTED:  # --speculative-config.method eagle3
        _nested(place, engine, head, inner, value)
        return
    special = _SPECIAL.get((engine, key))
    if special is not None:
        special(place, engine, value)
        return
    quantity = TABLES.get(engine, _COMMON).get(key)
    if quantity is Q.ALGORITHM:
        _algorithm(place, value)
    elif quantity is not None and quantity is not Q.FLAG:
        _add(place, quantity, value)
    elif key in _PHASES_OF_BACKENDS and value is not None:
        place.add(Q.ATTENTION_BACKEND, str(value), phase=_PHASES_OF_BACKENDS[key])
    elif value is not None and (quantity is Q.FLAG or _INTEREST.search(key)):
        place.add(Q.FLAG, flag_value(value), name=name.strip("-"))


def add_settings(place: Place, engine: str, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        add_setting(place, engine, name, value)


def flag_value(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float) else str(value)[:_MAX_FLAG]


def _add(place: Place, quantity: Quantity, value: Any) -> None:
    if quantity in _NUMBERS:
        if isinstance(value, str):
            value = word_value(value.strip())
        if isinstance(value, int) and not isinstance(value, bool):
            place.add(quantity, value)
    elif quantity in _YES_OR_NO:
        if isinstance(value, bool):
            place.add(quantity, value)
    elif value is not None and not isinstance(value, dict | list):
        place.add(quantity, str(value))


def _algorithm(place: Place, value: Any) -> None:
    place.add(Q.ALGORITHM, "none" if value in (None, "", "none", "None") else str(value))


def _speculative_config(place: Place, engine: str, value: Any) -> None:
    """vLLM's and TensorRT-LLM's nested description: JSON text, a parsed dict, a call's keywords, or None."""
    config = parse_literal(value) if isinstance(value, str) else value
    if config is None:
        _algorithm(place, None)
        return
    if not isinstance(config, dict):
        return
    if not {"method", "decoding_type"} & config.keys() and (config.get("model") or config.get("speculative_model")):
        place.add(Q.ALGORITHM, "draft_model")  # what vLLM takes where no method is named
    for name, one in config.items():
        quantity = _SPECULATIVE.get(name)
        if quantity is Q.ALGORITHM:
            _algorithm(place, one)
        elif quantity is not None:
            _add(place, quantity, one)
        elif one is not None:
            place.add(Q.FLAG, flag_value(one), name=f"speculative_config.{name}")


def _nested(place: Place, engine: str, head: str, inner: str, value: Any) -> None:
    """One field of a nested config, given as a flag of its own."""
    quantity = _SPECULATIVE.get(inner) if head == "speculative_config" else None
    if head == "compilation_config":
        _compilation_config(place, engine, {inner: value})
    elif quantity is Q.ALGORITHM:
        _algorithm(place, value)
    elif quantity is not None:
        _add(place, quantity, value)
    elif value is not None:
        place.add(Q.FLAG, flag_value(value), name=f"{head}.{inner}")


def _compilation_config(place: Place, engine: str, value: Any) -> None:
    config = parse_literal(value) if isinstance(value, str) else value
    if not isinstance(config, dict):
        place.add(Q.FLAG, flag_value(value), name="compilation_config")
        return
    for name, one in config.items():
        key = str(name).replace("-", "_").lower()
        if (special := _SPECIAL.get(("vllm", key))) is not None:
            special(place, engine, one)
        elif key == "pass_config" and isinstance(one, dict):
            for switch, setting in one.items():
                if _INTEREST.search(str(switch)):
                    place.add(Q.FLAG, flag_value(setting), name=f"pass_config.{switch}")


def graph_mode(value: Any) -> str | None:
    """vLLM's cudagraph_mode in any of its forms: a name, an enum's repr, a code, a pair of codes."""
    if isinstance(value, list) and len(value) == 2:
        decode, mixed = value
        if decode == 2 and mixed == 1:
            return "full_and_piecewise"
        return _MODES.get(decode) if isinstance(decode, int) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return _MODES.get(value)
    text = str(value).upper().replace("CUDAGRAPHMODE.", "").split(":")[0].strip()
    known = {
        "FULL_AND_PIECEWISE": "full_and_piecewise",
        "FULL_DECODE_ONLY": "full",
        "FULL": "full",
        "PIECEWISE": "piecewise",
        "NONE": "none",
    }
    return known.get(text)


def _graph_mode(place: Place, engine: str, value: Any) -> None:
    if value is not None and (mode := graph_mode(value)) is not None:
        place.add(Q.GRAPH_MODE, mode, phase="target")


def largest(value: Any) -> int | None:
    """The largest whole number of a list, of a text that lists some, or the number itself."""
    if isinstance(value, str):
        value = [int(found) for found in re.findall(r"\d{1,9}", value)]
    if isinstance(value, list):
        sizes = [one for one in value if isinstance(one, int) and not isinstance(one, bool)]
        return max(sizes) if sizes else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _graph_tokens(place: Place, engine: str, value: Any) -> None:
    place.add(Q.GRAPH_MAX_TOKENS, largest(value) or None)  # 0: switched off, which is no size


def _graph_requests(place: Place, engine: str, value: Any) -> None:
    place.add(Q.GRAPH_MAX_REQUESTS, largest(value) or None)


def _graph_config(place: Place, engine: str, value: Any) -> None:
    """TensorRT-LLM's cuda_graph_config."""
    config = parse_literal(value) if isinstance(value, str) else value
    if config is None:
        place.add(Q.GRAPHS_DISABLED, True)
    elif isinstance(config, dict):
        place.add(Q.GRAPH_MAX_REQUESTS, largest(config.get("max_batch_size")) or largest(config.get("batch_sizes")))


_SPECIAL: dict[tuple[str, str], Callable[[Place, str, Any], None]] = {
    ("vllm", "speculative_config"): _speculative_config,
    ("tensorrt-llm", "speculative_config"): _speculative_config,
    ("vllm", "compilation_config"): _compilation_config,
    ("vllm", "o"): _compilation_config,
    ("vllm", "cudagraph_mode"): _graph_mode,
    ("vllm", "cudagraph_capture_sizes"): _graph_tokens,
    ("vllm", "cuda_graph_sizes"): _graph_tokens,
    ("vllm", "max_cudagraph_capture_size"): _graph_tokens,
    ("vllm", "max_capture_size"): _graph_tokens,
    ("sglang", "cuda_graph_bs"): _graph_requests,
    ("sglang", "cuda_graph_bs_decode"): _graph_requests,
    ("tensorrt-llm", "cuda_graph_config"): _graph_config,
}
