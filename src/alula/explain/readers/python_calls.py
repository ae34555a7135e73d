"""Engines started from Python: `LLM(model=..., speculative_config={...})`, `sgl.Engine(model_path=...)`.

A call begins a run, as a launch command does. Only plain values are taken; what a variable holds nobody knows.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import LOG_START, Place
from alula.explain.readers.literal import is_closed, parse_call
from alula.explain.readers.settings import add_settings
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "Python calls"
_CALL = re.compile(r"(?<![\w.])(?:(sgl|sglang)\.)?(LLM|Engine|AsyncEngineArgs|EngineArgs)\(")
_MAX_LINES, _MAX_TEXT = 120, 1 << 14
_TENSORRT = re.compile(r"DecodingConfig\(|cuda_graph_config|CudaGraphConfig|tensorrt_llm")


class PythonCalls:
    """One source's calls, over as many lines as their brackets take."""

    name = READER
    markers: tuple[str, ...] = ("LLM(", "Engine(", "EngineArgs(")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._line = 0
        self._name = ""

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if not self._held:
            match = _CALL.search(text)
            if match is None or LOG_START.match(text):
                return False
            self._line, self._name = number, match[2]
            text = text[match.start(2) :]
        self._held.append(text.split(" #", 1)[0])
        whole = "\n".join(self._held)
        if not is_closed(whole) and len(self._held) < _MAX_LINES and len(whole) < _MAX_TEXT:
            return True
        self._take(sink, whole)
        return False

    def _take(self, sink: Sink, text: str) -> None:
        self._held = []
        arguments = parse_call(text, self._name)
        if not arguments or not {"model", "model_path"} & arguments.keys():
            return
        engine = "sglang" if "model_path" in arguments else "tensorrt-llm" if _TENSORRT.search(text) else "vllm"
        sink.begin_run(engine)
        place = Place(sink, READER, self._line, text, engine)
        place.add(Quantity.ENGINE, engine)
        plain = {name: value for name, value in arguments.items() if value is not None}
        add_settings(place, engine, plain)
        if not any("specul" in name for name in plain) and "**" not in text:
            place.add(Quantity.ALGORITHM, "none")

    def end(self, sink: Sink) -> None:
        if self._held:
            self._take(sink, "\n".join(self._held))
