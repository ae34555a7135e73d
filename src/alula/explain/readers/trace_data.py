"""What is kept of a trace: kernels, launches and marked spans of one rank, as plain arrays, and how names mark phases.

Knows the spans that SGLang and vLLM mark; adds nothing up.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec

from alula.explain.readers.trace_events import Event
from alula.explain.readers.trace_kernels import Family, family_of

MAX_KERNELS = 2_000_000  # of one rank; 29 bytes each, and as much again while they are sorted
MAX_LAUNCHES = 1_000_000
MAX_SPANS = 500_000
_GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "Runtime"}
_SPAN_CATS = {"gpu_user_annotation": True, "user_annotation": False}  # whether it lies on the device's time line
_STEP = re.compile(r"^step\[([A-Z_]+)(?:[^\]]*?\bbs=(\d+))?")
_CONTEXT = re.compile(r"^execute_(?:\d+_)?context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_STEP_MODES = {
    "TARGET_VERIFY": "verify",
    "DECODE": "decode",
    "EXTEND": "prefill",
    "MIXED": "prefill",
    "DRAFT_EXTEND": "extend",
    "DRAFT_EXTEND_V2": "extend",
}
_NAMED = {
    "draft": "draft",
    "eagle_draft": "draft",
    "draft_extend": "extend",
    "eagle_draft_extend": "extend",
    "verify": "verify",
    "target_verify": "verify",
    "gpu_model_runner: forward": "target",
    "gpu_model_runner: draft": "draft",
    "gpu_model_runner: sample": "accept",
    "decode": "decode",
}


class _KernelArguments(msgspec.Struct):
    device: Any = 0
    correlation: Any = -1
    graph_node: Any = msgspec.field(default=0, name="graph node id")
    num_elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None


_kernel_arguments = msgspec.json.Decoder(_KernelArguments).decode


class Span(msgspec.Struct, frozen=True):
    """A marked stretch of time, in microseconds."""

    phase: str
    start: float
    end: float
    on_device: bool
    batch: int | None = None
    width: int | None = None
    name: str = ""


class Rank:
    """The work of one GPU."""

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.name = array("i")  # index into Trace.names
        self.correlation = array("q")
        self.in_graph = bytearray()
        self.message_bytes: dict[int, int] = {}  # kernel index -> bytes, where the trace says them
        self.num_left_out = 0

    def add(self, event: Event, name: int, arguments: _KernelArguments) -> None:
        if len(self.start) >= MAX_KERNELS:
            self.num_left_out += 1
            return
        size = _message_bytes(arguments)
        if size:
            self.message_bytes[len(self.start)] = size
        self.start.append(event.ts)
        self.end.append(event.ts + max(event.dur, 0.0))
        self.name.append(name)
        self.correlation.append(_whole(arguments.correlation))
        self.in_graph.append(1 if _whole(arguments.graph_node) > 0 else 0)


class TraceData:
    """All of one file: ranks by device, spans, graph launches, the calls that launched kernels."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.names: list[str] = []
        self.families: list[Family | None] = []
        self.spans: list[Span] = []
        self.graph_launches: dict[int, tuple[float, float]] = {}  # correlation -> start, milliseconds
        self.launches: dict[int, float] = {}  # correlation -> when the host called
        self.engine: str | None = None
        self._ids: dict[str, int] = {}
        self._contexts: list[Span] = []

    def add(self, event: Event) -> None:
        category = event.cat
        if category in _GPU_WORK:
            self._kernel(event)
        elif category in _RUNTIME:
            self._call(event)
        elif category in _SPAN_CATS:
            self._span(event, _SPAN_CATS[category])

    def _kernel(self, event: Event) -> None:
        try:
            arguments = _kernel_arguments(event.args)
        except (msgspec.DecodeError, RecursionError):
            arguments = _KernelArguments()
        name = self._ids.get(event.name)
        if name is None:
            if len(self.names) >= 100_000:
                return
            name = self._ids[event.name] = len(self.names)
            self.names.append(event.name)
            self.families.append(family_of(event.name))
        device = _whole(arguments.device)
        rank = self.ranks.get(device)
        if rank is None:
            if len(self.ranks) >= 1024:
                return
            rank = self.ranks[device] = Rank()
        rank.add(event, name, arguments)

    def _call(self, event: Event) -> None:
        is_graph = "GraphLaunch" in event.name
        if not is_graph and "LaunchKernel" not in event.name:
            return
        try:
            correlation = _whole(_kernel_arguments(event.args).correlation)
        except (msgspec.DecodeError, RecursionError):
            return
        if is_graph and len(self.graph_launches) < MAX_LAUNCHES:
            self.graph_launches[correlation] = (event.ts, event.dur / 1000.0)
        if len(self.launches) < MAX_LAUNCHES:
            self.launches[correlation] = event.ts

    def _span(self, event: Event, on_device: bool) -> None:
        if len(self.spans) >= MAX_SPANS:
            return
        start, end = event.ts, event.ts + max(event.dur, 0.0)
        if match := _CONTEXT.match(event.name):
            self.engine = self.engine or "vllm"
            _, prompt, requests, tokens = (int(part[:9]) for part in match.groups())
            width = tokens // requests if requests and tokens % requests == 0 else None
            phase = "prefill" if prompt or not requests else "verify" if width and width > 1 else "decode"
            self._contexts.append(Span(phase, start, end, on_device, requests, width, event.name))
        elif match := _STEP.match(event.name):
            self.engine = self.engine or "sglang"
            if (mode := _STEP_MODES.get(match[1])) is not None:
                batch = int(match[2][:9]) if match[2] else None
                self.spans.append(Span(mode, start, end, on_device, batch, None, event.name))
        elif (named := _NAMED.get(event.name)) is not None:
            if event.name.startswith("gpu_model_runner"):
                self.engine = self.engine or "vllm"
            self.spans.append(Span(named, start, end, on_device, None, None, event.name))

    def phases(self, on_device: bool) -> list[Span]:
        """Marked phases on one time line, in order, without those that lie inside another."""
        contexts = sorted((one for one in self._contexts if one.on_device == on_device), key=lambda one: one.start)
        spans = [_in_context(one, contexts) for one in self.spans if one.on_device == on_device]
        spans.sort(key=lambda one: (one.start, -one.end))
        kept: list[Span] = []
        for span in spans:
            last = kept[-1] if kept else None
            if last is None or span.start >= last.end:
                kept.append(span)
            elif span.phase == last.phase:  # the same mark on a second stream
                kept[-1] = msgspec.structs.replace(last, end=max(last.end, span.end))
            elif span.end > last.end:  # else inside: the draft model's own forward in "draft", say
                kept.append(span)
        return kept


def _in_context(span: Span, contexts: list[Span]) -> Span:
    """vLLM's forward span does not say what it does; the step around it does."""
    if span.phase != "target" or not contexts:
        return span
    low, high = 0, len(contexts)
    while low < high:
        middle = (low + high) // 2
        if contexts[middle].start <= span.start + 1.0:
            low = middle + 1
        else:
            high = middle
    around = contexts[low - 1] if low else None
    if around is None or span.start > around.end:
        return span
    return msgspec.structs.replace(span, phase=around.phase, batch=around.batch, width=around.width)


_DTYPE_BYTES = {"bfloat16": 2, "half": 2, "float16": 2, "float": 4, "float32": 4, "double": 8, "byte": 1, "int8": 1,
                "c10::bfloat16": 2, "c10::half": 2}  # fmt: skip


def _message_bytes(arguments: _KernelArguments) -> int:
    width = _DTYPE_BYTES.get(str(arguments.dtype).lower(), 0) if arguments.dtype is not None else 0
    return width * max(_whole(arguments.num_elements), 0) if width else 0


def _whole(value: Any) -> int:
    """A whole number from a trace's argument, -1 for what is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else -1
