"""NCCL's own log, of any number of ranks: variables, transports, channels, choices, plug-ins, links that it refused.

Only NCCL's TUNING lines say algorithm and protocol. Lines are tied to a rank by the process number in their prefix,
once an init line of that process named its rank.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.evidence import Scope
from alula.profile.quantities import Quantity

READER = "NCCL log"
Q = Quantity
_PREFIX = re.compile(r"(\S+):(\d{1,10}):(\d{1,10}) \[(-?\d{1,3})\] (?:\S+ )?NCCL (INFO|WARN|TRACE) (.*)")
_BARE = re.compile(r"\bNCCL (INFO|WARN) (.*)")
_SET = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]+) set by environment to (.+?)\.?\s*(?:\[repeated .*)?$")
_RANK = re.compile(r"\brank (\d{1,6}) n[rR]anks (\d{1,6})\b")
_VERSION = re.compile(r"NCCL version ([\d.]+(?:\+\S+)?)")
_LIBRARY = re.compile(r"/libnccl\.so\.(\d+\.\d+\.\d+)\b")
_CHANNEL = re.compile(
    r"Channel \d+(?:/\w+)? ?: (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (P2P|SHM|NET|COLLNET|NVLS)(\S*)"
)
_COUNTS = re.compile(r"\b(\d{1,4}) coll channels")
_TUNING = re.compile(
    r"(?:(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|\w+): )?(\d{1,15}) Bytes -> Algo (\w+) proto (\w+)"
)
_TUNING_SYMMETRIC = re.compile(r"(\w+) \[Symmetric\]: (\d{1,15}) Bytes -> Kernel (\w+)")
_P2P_OFF = re.compile(r"P2P is disabled between connected GPUs (\d+) and (\d+)")
_DIRECT = re.compile(r"isAllDirectP2p (\d)|intraNodeP2pSupport (\d)")
_PLUGIN = re.compile(
    r"(NET/Plugin|TUNER/Plugin|PROFILER/Plugin|ENV/Plugin|NET/OFI)[: ]+(.*)|"
    r"(?:Successfully loaded (?:external )?(\w+) plugin (\S+))"
)
_ADDED = re.compile(r"Adding (NCCL_[A-Z0-9_]+)=(\S+) to environment")
_CONFIG = re.compile(
    r"(?:[Rr]ead(?:ing)? |[Ll]oad(?:ed|ing)? |from )?(?:config(?:uration)? file )?(\S*nccl\.conf)\b"
)
_SYSTEM = re.compile(r"=== System : maxBw ([\d.]+) totalBw ([\d.]+)")
_PATTERN = re.compile(r"Pattern (\d+), crossNic \d+, nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+)")
_WARN_WORTH = re.compile(
    r"Cuda failure|unhandled|Duplicate GPU|mismatch|timeout|Unrecognized element|invalid", re.I
)
_ALGORITHMS = {
    "0": "Tree",
    "1": "Ring",
    "2": "CollnetDirect",
    "3": "CollnetChain",
    "4": "NVLS",
    "5": "NVLSTree",
    "6": "PAT",
}
_PROTOCOLS = {"0": "LL", "1": "LL128", "2": "Simple"}
_SPELLED = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
_MATRIX = re.compile(r"^\s*(AllReduce)\s*\|\s*([\d ]+)\|")
_MATRIX_HEAD = re.compile(r"Function\s*\|\s*((?:LL|LL128|Simple|\s)+)\|", re.I)
MAX_SIZES = 64


class _Process(msgspec.Struct):
    """What one process's lines said. pid: "host:pid" as printed."""

    rank: int | None = None
    first_line: int = 0
    first_text: str = ""
    variables: dict[str, tuple[str, int, str]] = {}
    transports: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, tuple[int, str]] = {}


class NcclLog:
    """One source's NCCL lines. Everything of a process is given at the end, when its rank is known."""

    name = READER
    markers: tuple[str, ...] = ("NCCL ", "Func/Proto/Algo", "Bytes -> ", "nccl.conf", "libnccl.so.")

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._nranks: int | None = None
        self._columns: list[str] = []
        self._env_logged: tuple[int, str] | None = None

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if self._columns or "Function" in text:
            return self._matrix(number, text, sink)
        if "Enabled NCCL Func/Proto/Algo Matrix" in text:
            self._columns = ["?"]
            return True
        match = _PREFIX.search(text)
        if match is not None:
            process = self._process(f"{match[1]}:{match[2]}", number, text)
            self._message(Place(sink, READER, number, text), process, match[5], match[6])
        elif bare := _BARE.search(text):
            self._message(Place(sink, READER, number, text), self._process("", number, text), bare[1], bare[2])
        elif "Bytes -> " in text:
            self._tuning(Place(sink, READER, number, text), text)
        elif mapped := _LIBRARY.search(text):
            Place(sink, READER, number, text).add(Q.NCCL_VERSION, mapped[1])
        return False

    def _process(self, key: str, number: int, text: str) -> _Process:
        if key not in self._processes:
            if len(self._processes) >= 4096:
                key = ""
            self._processes.setdefault(key, _Process(first_line=number, first_text=text))
        return self._processes[key]

    def _message(self, place: Place, process: _Process, level: str, message: str) -> None:
        if match := _SET.search(message):
            process.variables.setdefault(match[1], (match[2].strip(), place.line or 0, place.text))
            self._env_logged = self._env_logged or (place.line or 0, place.text)
        elif match := _CHANNEL.search(message):
            kind = match[3] if match[3] in ("P2P", "SHM") else "NET"
            if match[3] != "NVLS":
                process.transports[kind] += 1
                process.examples.setdefault(kind, (place.line or 0, place.text))
        elif "Bytes -> " in message:
            self._tuning(place, message)
        elif match := _RANK.search(message):
            process.rank = int(match[1])
            self._nranks = max(self._nranks or 0, int(match[2]))
        else:
            _facts(place, message)
        if level == "WARN" and _WARN_WORTH.search(message):
            place.add(Q.ERROR_LINE, f"NCCL WARN {message}"[:400])

    def _tuning(self, place: Place, message: str) -> None:
        if match := _TUNING_SYMMETRIC.search(message):
            place.add(Q.ALLREDUCE_BACKEND, f"nccl symmetric {match[3]}", num_bytes=int(match[2]))
            return
        match = _TUNING.search(message)
        if match is None or match[1] not in (None, "AllReduce"):
            return
        size = int(match[2])
        algorithm = _ALGORITHMS.get(match[3], match[3].capitalize() if match[3].isalpha() else match[3])
        protocol = _PROTOCOLS.get(match[4], _SPELLED.get(match[4].upper(), match[4]))
        place.add(Q.NCCL_PROTOCOL, protocol, num_bytes=size)
        place.add(Q.NCCL_ALGORITHM, algorithm, num_bytes=size)

    def _matrix(self, number: int, text: str, sink: Sink) -> bool:
        """What may be used, as NCCL prints it where a variable restricts it: 1 is yes, 2 is LL128 by itself."""
        if match := _MATRIX_HEAD.search(text):
            self._columns = match[1].split()
            return True
        if match := _MATRIX.search(text):
            allowed = [name for name, on in zip(self._columns, match[2].split(), strict=False) if on != "0"]
            if allowed:
                Place(sink, READER, number, text).add(
                    Q.FLAG, ",".join(allowed), name="nccl_allreduce_protocols_allowed"
                )
            self._columns = []
            return False
        if self._columns == ["?"] or "|" in text:
            return bool(self._columns)
        self._columns = []
        return self.line(number, text, sink) if "NCCL" in text else False

    def end(self, sink: Sink) -> None:
        for key, process in self._processes.items():
            worker = f"pid={key.rsplit(':', 1)[-1]}" if key else None
            scope: dict[str, object] = {
                "rank": process.rank,
                "worker": None if process.rank is not None else worker,
            }
            self._emit(sink, process, scope)
        if self._env_logged is not None:
            Place(sink, READER, *self._env_logged).add(Q.NCCL_ENV_LOGGED, True)
        if self._nranks and self._processes:
            first = next(iter(self._processes.values()))
            Place(sink, READER, first.first_line, first.first_text).add(Q.NUM_GPUS, self._nranks)

    def _emit(self, sink: Sink, process: _Process, scope: dict[str, object]) -> None:
        place = Place(sink, READER, process.first_line, process.first_text)
        place.add(Q.NCCL_RANK_LOGGED, True, **scope)
        for name, (value, line, text) in process.variables.items():
            Place(sink, READER, line, text).add(Q.VARIABLE_SEEN, value, name=name, **scope)
        for kind, count in process.transports.items():
            line, text = process.examples[kind]
            sink.add(Q.NCCL_TRANSPORT, kind, line=line, text=text, reader=READER, scope=Scope(**scope), count=count)  # type: ignore[arg-type]


def _facts(place: Place, message: str) -> None:
    if match := _VERSION.search(message):
        place.add(Q.NCCL_VERSION, match[1])
    elif match := _COUNTS.search(message):
        place.add(Q.NCCL_CHANNELS, int(match[1]))
    elif match := _P2P_OFF.search(message):
        place.add(Q.P2P, "off", name=f"{match[1]}-{match[2]}")
        place.add(Q.P2P_REASON, "NCCL says that it is disabled between these GPUs", name=f"{match[1]}-{match[2]}")
    elif match := _DIRECT.search(message):
        if "0" in (match[1], match[2]):
            place.add(Q.FLAG, False, name="nccl_all_direct_p2p")
    elif match := _ADDED.search(message):
        place.add(Q.NCCL_PLUGIN, f"sets {match[1]}={match[2]}")
        place.add(Q.VARIABLE_SEEN, match[2], name=match[1])
    elif match := _PATTERN.search(message):
        place.add(Q.FLAG, f"{match[5]}/{match[6]} bw {match[3]}/{match[4]}", name=f"nccl_pattern_{match[1]}")
    elif match := _SYSTEM.search(message):
        place.add(Q.FLAG, f"maxBw {match[1]} totalBw {match[2]}", name="nccl_system")
    elif (match := _PLUGIN.search(message)) and not re.search(
        r"[Cc]ould not find|not found|No plugin|[Ff]ailed|using internal", message
    ):
        place.add(Q.NCCL_PLUGIN, (match[2] or match[4] or match[1]).strip())
    elif match := _CONFIG.search(message):
        place.add(Q.NCCL_CONFIG_FILE, match[1])
