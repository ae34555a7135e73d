"""Launch and client commands, as people paste them: several lines, prompts, environment in front, docker around.

A server's command begins a run; a load generator's belongs to the last run. Knows which programs and flags there are;
what a flag means for an engine is in `settings`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from alula.explain.readers.found import LOG_START, Place
from alula.explain.readers.literal import parse_literal, word_value
from alula.explain.readers.settings import add_setting, flag_value
from alula.explain.readers.variables import NAME, OF_A_COMMAND, PREFIXES, add_variable
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "commands"
Q = Quantity
MAX_COMMAND = 1 << 15
_MAX_LINES = 200
_TOKEN = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*'|["'])+""", re.S)
_SERVERS = (
    (re.compile(r"\bvllm serve\b|vllm\.entrypoints\.\S*api_server|\bvllm/vllm-openai\S*"), "vllm"),
    (re.compile(r"sglang\.launch_server|\bsglang serve\b|\bsgl\.Engine\b"), "sglang"),
    (re.compile(r"\btrtllm-serve\b|\btrtllm-bench\b"), "tensorrt-llm"),
    (re.compile(r"\bllama-(?:server|cli|speculative(?:-simple)?)\b"), "llama.cpp"),
    (re.compile(r"\btokenspeed serve\b|\bts serve\b"), "tokenspeed"),
)
_CLIENT = re.compile(
    r"\bvllm bench serve\b|sglang\.bench_serving|benchmark_serving\.py|bench_eagle3\.py"
    r"|\bevalscope perf\b|\bgenai-perf\b"
    r"|\baiperf\b|send_one\b|bench_one_batch_server|bench_speculative\.py|\bguidellm\b|\bllmperf\b"
)
_KNOWN_FLAG = re.compile(
    r"--(?:speculative-(?:algorithm|algo|config|num-steps|eagle-topk|num-draft-tokens"
    r"|draft-model-path)|cuda-graph-max-bs"
    r"|cuda-graph-sizes|enforce-eager|disable-cuda-graph|num-speculative-tokens|spec-type"
    r"|spec-draft-n-max|tensor-parallel-size"
    r"|disable-custom-all-reduce|max-cudagraph-capture-size|draft-max)\b"
)
_SPECULATIVE_FLAG = re.compile(
    r"-{1,2}(?:spec|draft|md\b|model-draft|num-speculative|O\.|enable-mtp|extra_llm_api)", re.I
)
_IN_FRONT = re.compile(r"(?:[A-Z][A-Z0-9_]*=\S*\s+)+\\$")  # variables on lines of their own, in front of a command
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d+[.)])\s+")
_VALUE = re.compile(r"-?(?:\d|\.\d)")
_CUT = re.compile(r"…|\.\.\.")
_NOISE = re.compile(r"key|token$|secret|password|api[-_]?key", re.I)
_ALIASES = {
    "vllm": {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "dp": "data_parallel_size",
        "q": "quantization",
        "sc": "speculative_config",
        "cc": "compilation_config",
    },
    "sglang": {"tp": "tp_size", "dp": "dp_size", "ep": "ep_size"},
    "llama.cpp": {
        "c": "context",
        "ngl": "n_gpu_layers",
        "fa": "flash_attn",
        "ub": "ubatch_size",
        "b": "batch_size",
    },
}
_CLIENT_FLAGS: dict[str, Quantity] = {
    "dataset_name": Q.DATASET,
    "dataset": Q.DATASET,
    "max_concurrency": Q.CONCURRENCY,
    "parallel": Q.CONCURRENCY,
    "concurrency": Q.CONCURRENCY,
    "num_parallel": Q.CONCURRENCY,
    "random_input_len": Q.INPUT_TOKENS,
    "random_input": Q.INPUT_TOKENS,
    "input_len": Q.INPUT_TOKENS,
    "random_output_len": Q.OUTPUT_TOKENS,
    "random_output": Q.OUTPUT_TOKENS,
    "output_len": Q.OUTPUT_TOKENS,
    "max_tokens": Q.OUTPUT_TOKENS,
    "temperature": Q.TEMPERATURE,
    "model": Q.MODEL,
}
_CLIENT_WORTH = (
    "request_rate",
    "ignore_eos",
    "tokenizer",
    "tokenizer_path",
    "num_prompts",
    "backend",
    "apply_chat_template",
)


class Commands:
    """One source's commands. A command goes on while its line ends in a backslash or the next begins with a flag."""

    name = READER
    markers: tuple[str, ...] = (
        "vllm",
        "sglang",
        "trtllm-",
        "llama-server",
        "llama-cli",
        "llama-spec",
        "tokenspeed",
        "benchmark_serving",
        "bench_",
        "evalscope perf",
        "genai-perf",
        "aiperf",
        "send_one",
        "guidellm",
        "llmperf",
        "--speculative-",
        "--cuda-graph-",
        "--enforce-eager",
        "--disable-cuda-graph",
        "--spec-",
        "--draft-max",
        "--num-speculative",
        "--tensor-parallel",
        "docker run",
        "podman run",
        "mpirun",
        "srun",
        *PREFIXES,
    )

    def __init__(self) -> None:
        self._held: list[str] = []
        self._line = 0
        self._closed = True  # the last held line did not end in a backslash

    def line(self, number: int, text: str, sink: Sink) -> bool:
        stripped = _BULLET.sub("", text.replace("`", " ")).strip()
        if self._held:
            if self._goes_on(stripped):
                self._hold(stripped)
                return True
            self._take(sink)
        if LOG_START.match(text) and not (_program(text) or _CLIENT.search(text)):
            return False
        begins = OF_A_COMMAND.search(stripped) or _IN_FRONT.match(stripped)
        if begins or _program(stripped) or _CLIENT.search(stripped) or _KNOWN_FLAG.search(stripped):
            self._line = number
            self._hold(stripped)
            return True
        return False

    def _goes_on(self, stripped: str) -> bool:
        if len(self._held) >= _MAX_LINES or sum(map(len, self._held)) > MAX_COMMAND:
            return False
        if not self._closed or " ".join(self._held).count("'") % 2:
            return True
        return re.match(r"-{1,2}[A-Za-z]", stripped) is not None and not re.match(r"-+\s", stripped)

    def _hold(self, stripped: str) -> None:
        self._closed = not stripped.endswith("\\")
        self._held.append(stripped.rstrip("\\").rstrip())

    def _take(self, sink: Sink) -> None:
        text, self._held = " ".join(self._held), []
        add_command(sink, self._line, text)

    def end(self, sink: Sink) -> None:
        if self._held:
            self._take(sink)


def _program(text: str) -> str | None:
    for pattern, engine in _SERVERS:
        if pattern.search(text):
            return engine
    return None


def add_command(sink: Sink, line: int | None, text: str, engine: str | None = None) -> None:
    """One whole command as evidence. `engine`: for arguments that stand alone, as in a compose file."""
    place = Place(sink, READER, line, text[:MAX_COMMAND], None)
    tokens = [_unquoted(token) for token in _TOKEN.findall(text[:MAX_COMMAND])]
    if client := _CLIENT.search(text):
        _variables(place, tokens)
        _client(place, tokens, client[0])
        return
    engine = engine or _program(text)
    flags = list(_flags(tokens))
    known = [flag for flag in flags if flag[0].strip("`").lstrip("-") not in ("help", "h", "version")]
    if engine is None:
        engine = _engine_of_flags(text)
        if engine is None or not known:
            _variables(place, tokens)
            return
        _server(Place(sink, READER, line, place.text, engine), engine, known, None)
        return
    model = _positional_model(tokens)
    if not known and model is None:
        return  # prose that names the program
    sink.begin_run(engine)
    place = Place(sink, READER, line, place.text, engine)
    _variables(place, tokens)
    place.add(Q.COMMAND, _bounded(tokens))
    _server(place, engine, known, model)
    if (
        not any(_SPECULATIVE_FLAG.match(name) for name, _ in known)
        and not _CUT.search(text)
        and engine != "tensorrt-llm"
    ):
        place.add(Q.ALGORITHM, "none")


def _server(place: Place, engine: str, flags: Iterable[tuple[str, Any]], model: str | None) -> None:
    place.add(Q.ENGINE, engine)
    place.add(Q.MODEL, model)
    aliases = _ALIASES.get(engine, {})
    for name, value in flags:
        key = name.lstrip("-")
        if _NOISE.search(key):
            continue
        if engine == "vllm" and key.startswith(("O.", "cc.")):
            key = key.split(".", 1)[1]
        add_setting(place, engine, aliases.get(key, key), value)


def _client(place: Place, tokens: Sequence[str], program: str) -> None:
    place.add(Q.FLAG, program, name="client")
    for name, value in _flags(tokens):
        key = name.lstrip("-").replace("-", "_").lower()
        quantity = _CLIENT_FLAGS.get(key)
        if (quantity in (Q.DATASET, Q.MODEL) and isinstance(value, str)) or (
            quantity is not None and isinstance(value, int | float) and not isinstance(value, bool)
        ):
            place.add(quantity, value)
        elif key in _CLIENT_WORTH:
            place.add(Q.FLAG, flag_value(value), name=key)


def _variables(place: Place, tokens: Sequence[str]) -> None:
    """`NAME=value` in front of a command or behind docker's -e; `$NAME` and foreign variables are left out."""
    exported = [part for token in tokens if token.startswith("--export=") for part in token[9:].split(",")]
    for token in (*tokens, *exported):
        name, equals, value = token.partition("=")
        if equals and NAME.fullmatch(name):
            add_variable(place, Q.VARIABLE_PLANNED, name, value)


def _flags(tokens: Sequence[str]) -> Iterable[tuple[str, Any]]:
    """Flags with their values: `--a b`, `--a=b`, `--a` (True), `--a 1 2 4` (a list of numbers)."""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not re.match(r"-{1,2}[A-Za-z]", token):
            continue
        name, equals, inline = token.partition("=")
        if equals:
            yield name, _value(inline)
            continue
        values: list[str] = []
        while index < len(tokens) and _is_value(tokens[index], values):
            values.append(tokens[index])
            index += 1
        parsed = [_value(value) for value in values]
        yield name, True if not parsed else parsed[0] if len(parsed) == 1 else parsed


def _is_value(token: str, before: Sequence[str]) -> bool:
    if before:  # further values of one flag: numbers only, since words are the next argument
        return bool(_VALUE.match(before[0]) and token.isdecimal())
    return token not in ("|", "&&", "&", ";", ">", "2>&1") and (
        not token.startswith("-") or _VALUE.match(token) is not None
    )


def _value(text: str) -> Any:
    return parse_literal(text) if text[:1] in "{[" and text else word_value(text)


def _unquoted(token: str) -> str:
    """A shell word without its quotes."""
    if len(token) >= 2 and token[0] == token[-1] and token[0] in "\"'":
        inner = token[1:-1]
        return inner.replace('\\"', '"') if token[0] == '"' else inner
    return re.sub(r"""=(["'])(.*)\1$""", r"=\2", token.strip(","), flags=re.S)


def _positional_model(tokens: Sequence[str]) -> str | None:
    for before, token in itertools.pairwise(tokens):
        if before in ("serve", "trtllm-serve") and not token.startswith("-"):
            return token if re.search(r"[/\d]", token) and not token.startswith("$") else None
    return None


def _engine_of_flags(text: str) -> str | None:
    if re.search(
        r"--speculative-(?:algorithm|algo|num-steps|eagle-topk|num-draft-tokens|draft-model-path)"
        r"|--cuda-graph-max-bs",
        text,
    ):
        return "sglang"
    if re.search(
        r"--speculative-config|--enforce-eager|--cuda-graph-sizes|--num-speculative-tokens|--max-cudagraph", text
    ):
        return "vllm"
    return "llama.cpp" if re.search(r"--spec-type|--spec-draft|--draft-max", text) else None


def _bounded(tokens: Sequence[str]) -> str:
    """The command without the values of keys and passwords."""
    shown: list[str] = []
    for token in tokens:
        hidden = bool(shown) and shown[-1].startswith("-") and _NOISE.search(shown[-1]) and "=" not in shown[-1]
        name, equals, _ = token.partition("=")
        shown.append("***" if hidden else f"{name}=***" if equals and _NOISE.search(name) else token)
    return " ".join(shown)
