"""Environment variables in whatever shape they are shown: shell files, `env`, compose, Dockerfiles, Python, /proc.

What was set somewhere is *planned*; what stood in a process is *seen*. Only names that engines, NCCL and CUDA read are
taken: never keys, tokens or anything else of a user's environment.
"""

from __future__ import annotations

import re

import msgspec

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "environment variables"
PREFIXES = (
    "NCCL_",
    "RCCL_",
    "CUDA_",
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "TRTLLM_",
    "TLLM_",
    "FLASHINFER_",
    "GGML_",
    "LLAMA_",
    "OMP_",
    "UCX_",
    "GLOO_",
    "TOKENSPEED_",
    "MSCCLPP_",
    "TRITON_",
    "RAY_",
    "ALULA_",
)
NAME = re.compile(rf"(?:{'|'.join(PREFIXES)})[A-Z0-9_]{{1,80}}")
COLLECTED = "ALULA_COLLECT=1"  # stands first in an environment that `collect` took, which may hold nothing else
SECRET = re.compile(r"KEY|TOKEN(?!S|IZER)|SECRET|PASSW|CREDENTIAL|AUTH")
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s"'#;&|)]*)"""
_BARE = re.compile(rf"^({NAME.pattern})=(.*)$")
_PLANNED = (
    re.compile(
        r"(?:^|[\s;&])(?:export|ENV|-e|--env|setenv|declare -x"
        rf"|Environment)[ =]+[\"']?({NAME.pattern})[= ]{_VALUE}"
    ),
    re.compile(rf"^\s*-\s+[\"']?({NAME.pattern})\s*=\s*{_VALUE}"),  # a YAML list
    re.compile(rf"^\s*({NAME.pattern}):\s+{_VALUE}\s*(?:#.*)?$"),  # a YAML map
    re.compile(rf"environ\[[\"']({NAME.pattern})[\"']\]\s*=\s*(?:str\()?{_VALUE}"),
    re.compile(rf"(?:environ\.setdefault|putenv|setenv)\(\s*[\"']({NAME.pattern})[\"']\s*,\s*{_VALUE}"),
    re.compile(rf"\(({NAME.pattern})=([^\s,)]+)"),  # a launcher that says what it sets
    re.compile(rf"^\s+({NAME.pattern})={_VALUE}\s*\\?$"),  # in front of a command, one a line
    re.compile(rf"^({NAME.pattern})={_VALUE}\s*\\$"),
    re.compile(rf"[{{,]\s*[\"']({NAME.pattern})[\"']\s*:\s*{_VALUE}"),  # a dict or JSON
)
# Programs that launch or start something: a line that names one is a command.
OF_A_COMMAND = re.compile(
    r"\b(?:docker|podman|nerdctl) run\b|\bvllm serve\b|sglang\.launch_server|\bsglang serve\b"
    r"|trtllm-(?:serve|bench)\b"
    r"|\bllama-(?:server|cli|bench|speculative)|\b(?:mpirun|srun|torchrun)\s|vllm\.entrypoints|\bvllm bench\b"
)
_ASSIGNS = re.compile(r"[A-Za-z_][\w.%()]*=")
_OF_A_PROCESS = re.compile(r"^(?:PATH|HOME|PWD|HOSTNAME|SHLVL|LOGNAME|USER|OLDPWD)=")
_PID = re.compile(r"(?:proc/|pid[=_-]?)(\d{1,10})(?:/environ)?")
_MAX_HELD = 2000


class _Assignment(msgspec.Struct, frozen=True):
    line: int
    text: str
    name: str
    value: str


class Variables:
    """One source's variables. Bare `NAME=value` lines are seen where the source is a whole environment, else planned.

    What is planned is held until a run begins behind it: a script exports first and launches then.
    """

    name = READER
    markers: tuple[str, ...] = (*PREFIXES, "HOME=", "PATH=", "HOSTNAME=")

    def __init__(self) -> None:
        self._planned: list[_Assignment] = []
        self._bare: list[_Assignment] = []
        self._of_a_process: set[str] = set()  # names that every environment has, and a script seldom two of
        self._num_runs = 0

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if sink.num_runs > self._num_runs:
            self._give(sink)
        if "\n" in text:  # NUL bytes: /proc/PID/environ, or a log that was cut by rotation
            self._block(number, text, sink)
        elif (match := _OF_A_PROCESS.match(text)) and "$" not in text:
            self._of_a_process.add(match[0])
        elif text.rstrip().endswith("\\") or OF_A_COMMAND.search(text):
            return False  # part of a command, which reads its own variables
        elif match := _BARE.match(text):
            value = re.sub(r"\s+#.*$", "", match[2]).strip()
            if " " not in value.strip("\"'"):
                _hold(self._bare, _Assignment(number, text, match[1], value))
        else:
            for pattern in _PLANNED:
                for name, value in pattern.findall(text):
                    _hold(self._planned, _Assignment(number, text, name, value))
        return False

    def _block(self, number: int, text: str, sink: Sink) -> None:
        parts = [part for part in text.split("\n") if part]
        if sum(_ASSIGNS.match(part) is not None for part in parts) * 5 < len(parts) * 4:
            return
        worker = _worker(sink.source)
        Place(sink, READER, number, "a whole environment").add(Quantity.ENVIRONMENT_READ, True, worker=worker)
        for one in parts:
            if (found := _BARE.match(one)) and one != COLLECTED:
                place = Place(sink, READER, number, one)
                add_variable(place, Quantity.VARIABLE_SEEN, found[1], found[2], worker=worker)

    def _give(self, sink: Sink) -> None:
        self._num_runs = sink.num_runs
        for one in self._planned:
            add_variable(Place(sink, READER, one.line, one.text), Quantity.VARIABLE_PLANNED, one.name, one.value)
        self._planned.clear()

    def end(self, sink: Sink) -> None:
        is_process = len(self._of_a_process) > 1
        if not is_process:
            self._planned += self._bare
            self._bare.clear()
        self._give(sink)
        worker = _worker(sink.source)
        if is_process:
            Place(sink, READER, None, "a whole environment").add(Quantity.ENVIRONMENT_READ, True, worker=worker)
        for one in self._bare:
            place = Place(sink, READER, one.line, one.text)
            add_variable(place, Quantity.VARIABLE_SEEN, one.name, one.value, worker=worker)


def _hold(held: list[_Assignment], one: _Assignment) -> None:
    if len(held) < _MAX_HELD:
        held.append(one)


def _worker(source: str) -> str | None:
    match = _PID.search(source)
    return f"pid={match[1]}" if match else None


def add_variable(place: Place, quantity: Quantity, name: str, value: str, **scope: object) -> None:
    """One variable, unless it might be a secret or refers to another. Quotes around the value are taken away."""
    value = value.strip().rstrip("\\").strip().strip("\"'")
    if SECRET.search(name) or value.startswith("$"):
        return
    place.add(quantity, value, name=name, **scope)
