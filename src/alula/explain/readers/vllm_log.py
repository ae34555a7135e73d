"""vLLM's log: config dumps, captures of graphs, attention backend, what reaches the workers. Metrics: `vllm_metrics`.

Matches on text; the `[file.py:123]` in front changes with every release. All-reduce lines and NCCL's own are other
readers' business.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import LOG_START, Place, rank_of, worker_of
from alula.explain.readers.literal import is_closed, parse_call, parse_literal
from alula.explain.readers.settings import add_settings, graph_mode
from alula.explain.readers.vllm_metrics import ENGINE, MetricsLines
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "vLLM log"
Q = Quantity
_MAX_WRAPPED, _MAX_DUMP = 400, 1 << 17
_SHORTEST_DUMP = 400  # characters; a shorter line is not a whole config
_CONFIG, _ARGUMENTS = "with config:", "non-default args:"
_ENGINE_START = "LLM engine (v"  # stands in front of a config; a terminal may have broken the line between them
_VERSION = re.compile(r"LLM engine \(v([^)\s]+)\)|(?:vLLM API server version|vLLM Version\s*:) v?(\d[\w.+\-]*)")
_MODE = re.compile(r"CUDAGraphMode\.(\w+) is not (?:supported|compatible).*?setting cudagraph_mode=([\w.]+)")
_CAPTURING = re.compile(
    r"Capturing (?:(<?\w+>?) )?(?:CUDA graphs?|cudagraphs?)(?: shapes)?(?: \(([^)]*)\))?(?:[^:]*:\s*(.*))?"
)
_PROFILED = re.compile(r"\b(PIECEWISE|FULL)=(\d+) \(largest=(\d+)\)")
_PROGRESS = re.compile(r"\b(\d+)/(\d+)\b")
_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend\b"
    r"|Using (Flash Attention|FlashInfer|XFormers|"
    r"Triton|Triton Attention|FlashMLA|Cutlass MLA) backend"
)
_WORLD = re.compile(r"world_size=(\d{1,5}) rank=(\d{1,5})")
_NCCL = re.compile(r"using nccl==([\d.]+)")
_FOUND_NCCL = re.compile(r"Found nccl from environment variable (\w+)=(\S+)")
_UNKNOWN = re.compile(r"Unknown vLLM environment variable detected: (\w+)")
_COPIED = re.compile(r"Copying the following environment variables to workers: (\[[^\]]*\])")
_AUX = re.compile(r"(?:aux(?:iliary)?(?: hidden[ _]state)? layers?)[^\n]{0,80}?(\(?\[?\d+(?:, ?\d+)+\]?\)?)", re.I)
_DRAFT_TP = re.compile(r"draft_tensor_parallel_size\D{0,4}(\d+)")
_REASON = re.compile(
    r"Skipping CUDA graph capture[^\n]*|(?:cudagraph|CUDA graph)s? (?:is|are) (?:disabled|not supported)[^\n]*",
    re.I,
)
_ERROR = re.compile(
    r"EngineCore (?:encountered|failed|hit)[^\n]*|EngineDeadError[^\n]*|Watchdog caught collective[^\n]*"
)
_ENDS = ("Application startup complete", "Graph capturing finished", "init engine (profile")


class VllmLog:
    """One source's vLLM lines. A dump of arguments or of a config that was not seen yet begins a run."""

    name = READER
    markers: tuple[str, ...] = (
        _CONFIG,
        _ARGUMENTS,
        _ENGINE_START,
        "SpecDecoding metrics",
        "Speculative metrics",
        "Avg generation throughput",
        "CUDAGraphMode.",
        "Capturing ",
        "CUDA graph",
        "cudagraph",
        "Graph capturing",
        "backend",
        "world_size=",
        "nccl==",
        "Found nccl",
        "Unknown vLLM environment",
        "Copying the following environment",
        "vLLM API server version",
        "vLLM Version",
        "Application startup complete",
        "aux",
        "EngineCore ",
        "EngineDeadError",
    )

    def __init__(self) -> None:
        self._metrics = MetricsLines()
        self._speculates: bool | None = None
        self._seen: set[str] = set()  # configs of the run under way: every data-parallel engine prints its own
        self._dump: list[str] = []
        self._dump_line = 0
        self._captures: dict[tuple[str, str], tuple[int, str]] = {}  # begun and not known to be finished

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if self._dump:
            if not LOG_START.match(text) and len(self._dump) < _MAX_WRAPPED:
                self._dump.append(text)
                return self._dump_ends(sink)
            self._take_dump(sink)
        if "Avg generation throughput" in text:
            self._metrics.throughput(number, text)
        elif "SpecDecoding metrics" in text or "Mean acceptance length" in text:
            self._metrics.speculative(number, text)
        elif "Speculative metrics" in text:
            self._metrics.cumulative(number, text)
        elif _CONFIG in text or _ARGUMENTS in text or _ENGINE_START in text:
            self._dump, self._dump_line = [text], number
            return self._dump_ends(sink)
        else:
            place = Place(sink, READER, number, text, ENGINE)
            self._graphs(place)
            self._start_up(place)
        return False

    def _dump_ends(self, sink: Sink) -> bool:
        text = "".join(self._dump)
        first, last = len(self._dump[0]), len(self._dump[-1])
        is_wrapped = first < _SHORTEST_DUMP and last >= first  # by a terminal that wide: the end is a shorter line
        if len(text) < _MAX_DUMP and (is_wrapped or not is_closed(_body(text))):
            return True
        self._take_dump(sink)
        return False

    def _take_dump(self, sink: Sink) -> None:
        text, self._dump = "".join(self._dump), []
        if _CONFIG in text and ("speculative_config" not in text and "tensor_parallel_size" not in text):
            return  # another program's "with config:"
        is_arguments = _ARGUMENTS in text
        settings = parse_literal(_body(text)) if is_arguments else parse_call(f"config{_body(text)}", "config")
        if not isinstance(settings, dict) or not settings:
            return
        place = Place(sink, READER, self._dump_line, text, ENGINE)
        self._begin(sink, _ARGUMENTS if is_arguments else _body(text))
        place.add(Q.ENGINE, ENGINE)
        if match := _VERSION.search(text):
            place.add(Q.ENGINE_VERSION, match[1] or match[2])
        speculative = settings.get("speculative_config")
        if speculative is not None or not is_arguments:
            self._speculates = speculative is not None
        if isinstance(speculative, dict):
            steps = speculative.get("num_speculative_tokens") or speculative.get("num_spec_tokens")
            self._metrics.steps = steps if isinstance(steps, int) and steps > 0 else None
        if is_arguments and speculative is None:
            settings = {name: value for name, value in settings.items() if value is not None}
        add_settings(place, ENGINE, settings)

    def _begin(self, sink: Sink, what: str) -> None:
        """A new run, unless this belongs to the one under way: arguments come before the config, configs repeat."""
        if what == _ARGUMENTS:
            new = bool(self._seen)
        else:
            new = not self._seen or (what not in self._seen and self._seen != {_ARGUMENTS})
        if new or not self._seen:
            self._metrics.flush(sink, self._speculates)
            self._metrics = MetricsLines()
            self._captures.clear()
            self._seen = set()
            sink.begin_run(ENGINE)
        self._seen.add(what)

    def _graphs(self, place: Place) -> None:
        text = place.text
        if match := _MODE.search(text):
            mode = graph_mode(match[2])
            place.add(Q.GRAPH_MODE, mode, phase="verify" if "spec" in text else "target")
            place.add(
                Q.GRAPH_REASON,
                text[text.index("CUDAGraphMode") :].strip(),
                phase="verify" if "spec" in text else "target",
            )
        for mode_name, _, size in _PROFILED.findall(text):
            place.add(Q.GRAPH_CAPTURED, True, phase="target", variant=mode_name.lower())
            place.add(Q.GRAPH_MAX_TOKENS, int(size[:9]), phase="target", variant=mode_name.lower())
        if (match := _CAPTURING.search(text)) and not _PROFILED.search(text):
            self._capturing(place, match)
        if match := _REASON.search(text):
            place.add(Q.GRAPH_REASON, match[0], phase="target")
            if "Skipping" in match[0]:
                place.add(Q.GRAPH_MODE, "none", phase="target")
        if any(end in text for end in _ENDS):
            place.add(Q.GRAPH_LOG_COMPLETE, True)
            if "Graph capturing finished" in text:
                self._finish(place.sink)

    def _capturing(self, place: Place, match: re.Match[str]) -> None:
        who, what, progress = match[1], (match[2] or "").upper(), match[3] or ""
        target = who is None or who.lower() in ("cuda", "the")
        variant = "piecewise" if "PIECEWISE" in what else "full"
        key = ("target" if target else "draft", variant)
        done = _PROGRESS.search(progress)
        if "100%" in progress or (done and done[1] == done[2] != "0"):
            self._captures.pop(key, None)
            place.add(Q.GRAPH_CAPTURED, True, phase=key[0], variant=variant)
        elif place.line is not None:
            self._captures.setdefault(key, (place.line, place.text))

    def _finish(self, sink: Sink) -> None:
        """Captures whose bar was cut off before its last state, and behind which the engine said that it finished."""
        for (phase, variant), (line, text) in self._captures.items():
            Place(sink, READER, line, text, ENGINE).add(Q.GRAPH_CAPTURED, True, phase=phase, variant=variant)
        self._captures.clear()

    def _start_up(self, place: Place) -> None:
        text = place.text
        if match := _BACKEND.search(text):
            place.add(Q.ATTENTION_BACKEND, match[1] or match[2])
        if match := _WORLD.search(text):
            place.add(Q.NUM_GPUS, int(match[1]))
        if match := _NCCL.search(text):
            place.add(Q.NCCL_VERSION, match[1])
        if match := _FOUND_NCCL.search(text):
            place.add(Q.VARIABLE_SEEN, match[2], name=match[1], rank=rank_of(text), worker=worker_of(text))
        if match := _UNKNOWN.search(text):
            place.add(Q.VARIABLE_IGNORED, match[1], name=match[1])
        if match := _COPIED.search(text):
            place.add(Q.VARIABLES_COPIED, ",".join(map(str, parse_literal(match[1]))))
        if (match := _VERSION.search(text)) is not None:
            place.add(Q.ENGINE_VERSION, match[1] or match[2])
        if match := _AUX.search(text):
            place.add(Q.AUX_LAYERS, ",".join(re.findall(r"\d{1,4}", match[1])))
            if re.search(r"default|heuristic|fall(?:ing)? ?back|guess", text, re.I):
                place.add(Q.AUX_LAYERS_GUESSED, True)
        if match := _DRAFT_TP.search(text):
            place.add(Q.DRAFT_TP, int(match[1][:6]))
        if match := _ERROR.search(text):
            place.add(Q.ERROR_LINE, match[0])

    def end(self, sink: Sink) -> None:
        if self._dump:
            self._take_dump(sink)
        self._metrics.flush(sink, self._speculates)


def _body(text: str) -> str:
    """What a dump holds, in brackets."""
    if _ARGUMENTS in text:
        return text.split(_ARGUMENTS, 1)[1].strip()
    return f"({text.split(_CONFIG, 1)[1].strip().rstrip(',')})" if _CONFIG in text else text
