"""SGLang's log: the dump of its arguments, its captures, and where its runs begin. Decode lines go to `sglang_steps`.

All-reduce lines, NCCL lines and tables that stand in the same file are other readers' business.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import LOG_START, Place, whole
from alula.explain.readers.literal import is_closed, parse_call
from alula.explain.readers.settings import add_settings
from alula.explain.readers.sglang_steps import ENGINE, DecodeLines
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "SGLang log"
_DECODE, _PREFILL = "Decode batch", "Prefill batch"
_MAX_WRAPPED = 400  # terminal lines of one dump
_MAX_DUMP = 1 << 17
_CAPTURE_END = re.compile(r"Capture (draft extend |draft )?cuda graph end")
_CAPTURE_BS = re.compile(r"Capture (draft extend |draft )?cuda graph bs \[([\d,\s.…]*)\]")
_CAPTURING = re.compile(r"Capturing batches \(bs=(\d{1,9})\b")
_BACKEND = re.compile(r"Attention backend not (?:set|specified)\. Use (\S+) backend by default")
_MAX_RUNNING = re.compile(r"max_running_requests=(\d+)")
_SIZE_OPTIONS = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")  # newest first
_VERSION = re.compile(r"(?:sglang|SGLang)[ _]?(?:version|==|v)[ :=]*v?(\d+\.\d+[\w.+\-]*)")
_ERROR = re.compile(r"(?:Scheduler hit an exception|Capture cuda graph failed|CUDA graph capture failed)[^\n]*")
_PHASES = {"draft extend ": "extend", "draft ": "draft", "": "verify", None: "verify"}


class SglangLog:
    """One source's SGLang lines. A dump of server arguments begins a run."""

    name = READER
    markers: tuple[str, ...] = (
        "server_args=",
        "ServerArgs(",
        "cuda graph ",
        "Capturing batches (bs=",
        "Attention backend not ",
        "max_running_requests=",
        "server is fired up",
        "Scheduler hit an exception",
        "sglang version",
        "SGLang version",
        "sglang==",
    )
    whole = (_DECODE, _PREFILL)  # such a line says nothing to other readers, and may fill a log

    def __init__(self) -> None:
        self._steps = DecodeLines()
        self._speculates: bool | None = None
        self._dump: list[str] = []  # a dump of arguments whose end has not come yet
        self._dump_line = 0
        self._broken: tuple[int, str] | None = None  # a decode line whose end may follow
        self._largest = 0  # captured batch

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if self._dump:
            return self._dump_goes_on(number, text, sink)
        if self._broken is not None:
            start, before = self._broken
            self._broken = None
            if not LOG_START.match(text):
                self._steps.line(start, before + text)
                return False
            self._steps.line(start, before)
        if _DECODE in text:
            return self._decode(number, text)
        if _PREFILL in text:
            self._steps.prefill(text)
            return False
        if "ServerArgs(" in text or "server_args=" in text:
            self._dump, self._dump_line = [text], number
            return self._dump_ends(sink)
        self._start_up(Place(sink, READER, number, text, ENGINE))
        return False

    def _decode(self, number: int, text: str) -> bool:
        if self._steps.line(number, text):
            return False
        self._broken = (number, text)
        return True

    def _dump_goes_on(self, number: int, text: str, sink: Sink) -> bool:
        if LOG_START.match(text) or len(self._dump) >= _MAX_WRAPPED:
            self._take_dump(sink)  # cut off: what there is of it
            return self.line(number, text, sink)
        self._dump.append(text)
        return self._dump_ends(sink)

    def _dump_ends(self, sink: Sink) -> bool:
        text = "".join(self._dump)
        start = text.find("ServerArgs(")
        if len(text) < _MAX_DUMP and (start < 0 or not is_closed(text, start)):
            return True
        self._take_dump(sink)
        return False

    def _take_dump(self, sink: Sink) -> None:
        text, self._dump = "".join(self._dump), []
        arguments = parse_call(text, "ServerArgs")
        if not arguments or "model_path" not in arguments:
            return
        self._steps.flush(sink, self._speculates)
        self._steps = DecodeLines()
        self._largest = 0
        sink.begin_run(ENGINE)
        self._speculates = arguments.get("speculative_algorithm") is not None
        place = Place(sink, READER, self._dump_line, text, ENGINE)
        place.add(Quantity.ENGINE, ENGINE)
        if not self._speculates:
            place.add(Quantity.ALGORITHM, "none")
        option = next((name for name in _SIZE_OPTIONS if name in arguments), None)
        place.add(Quantity.GRAPH_SIZE_OPTION, option and f"--{option.replace('_', '-')}")
        add_settings(place, ENGINE, {name: value for name, value in arguments.items() if value is not None})

    def _start_up(self, place: Place) -> None:
        text = place.text
        if match := _CAPTURE_BS.search(text):
            sizes = [int(size) for size in re.findall(r"\d{1,7}", match[2])]
            if sizes:
                self._largest = max(sizes)
                place.add(Quantity.GRAPH_MAX_REQUESTS, max(sizes), phase=self._phase(match[1]))
        elif match := _CAPTURE_END.search(text):
            place.add(Quantity.GRAPH_CAPTURED, True, phase=self._phase(match[1]))
        elif match := _CAPTURING.search(text):
            self._capturing(place, int(match[1]))
        elif match := _BACKEND.search(text):
            place.add(Quantity.ATTENTION_BACKEND, match[1])
        elif "server is fired up" in text:
            place.add(Quantity.GRAPH_LOG_COMPLETE, True)
        elif match := _ERROR.search(text):
            place.add(Quantity.ERROR_LINE, match[0])
        elif (match := _VERSION.search(text)) and "==" not in text[: match.start()]:
            place.add(Quantity.ENGINE_VERSION, match[1])
        elif (match := _MAX_RUNNING.search(text)) and "max_total_num_tokens" in text:
            place.add(Quantity.MAX_RUNNING, whole(match[1]))

    def _capturing(self, place: Place, batch: int) -> None:
        """Progress over batch sizes, the largest first: the only trace of the sizes where the list is missing."""
        if batch > self._largest:
            self._largest = batch
            place.add(Quantity.GRAPH_MAX_REQUESTS, batch, phase=self._phase(None))

    def _phase(self, which: str | None) -> str:
        """Plain capture lines mean verify where the run speculates."""
        phase = _PHASES[which]
        if phase == "verify" and not self._speculates:
            return "target" if self._speculates is None else "decode"
        return phase

    def end(self, sink: Sink) -> None:
        if self._dump:
            self._take_dump(sink)
        if self._broken is not None:
            self._steps.line(*self._broken)
        self._steps.flush(sink, self._speculates)
