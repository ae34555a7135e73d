"""What engines say of their all-reduce backends: refused and why, registered addresses, claims of launchers.

The same lines stand in the logs of several engines and forks; the spelling tells which engine it is, where it tells.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import Place, rank_of, worker_of
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "all-reduce lines"
Q = Quantity
_REFUSED = re.compile(
    r"\b(Custom allreduce|CustomAllreduce|CustomAllReduceV2|CustomAllReduce|QuickAllReduce"
    r"|Quick allreduce)\b[^.]{0,40}?"
    r"is (?:disabled|not available|not supported)(?: because(?: of)?| due to)? ?(.*)",
    re.I,
)
_SETUP_FAILED = re.compile(r"Setup Custom allreduce failed with (.*)", re.I)
_SYMM = re.compile(r"SymmMemCommunicator: (.*?(?:not available|not supported|disabled)[^.]*)", re.I)
_FLASHINFER = re.compile(
    r"((?:Flashinfer|FlashInfer)? ?allreduce fusion (?:is not supported|pass is disabled)[^.\n]*)", re.I
)
_REGISTERING = re.compile(r"Registering (\d{1,9}) cuda graph addresses")
_IPC = re.compile(r"CUDA IPC is unavailable, falling back from \w+ to NCCL allreduce", re.I)
_MNNVL = re.compile(r"(MNNVL AllReduce can't be enabled[^\n]*|falling back to AUTO strategy[^\n]*)", re.I)
_ORDER = re.compile(r"Using \[([^\]]*)\] all-reduce backends(?: \(([^)]{0,60})\))?")
_CLAIMS = re.compile(
    r"(PCIe custom allreduce enabled[^\n]*|custom all-?reduce(?: status)?\s*[|:]?\s*(?:ON|ENGAGED|OFF"
    r"|DISABLED|enabled)\b[^\n]*"
    r"|auto-enabling PCIe P2P[^\n]*|All Reduce config:[^\n]*)",
    re.I,
)
_P2P_CLAIM = re.compile(r"P2P status\s*\|\s*([^\n]*)|P2P=(OK|DISABLED|NS|CNS|GNS|TNS)\b")
_DISPATCH = re.compile(r"PCIe one-?shot allreduce[^\n]*?first dispatch[^\n]*?bytes=(\d{1,12})", re.I)
_CUTOFF = re.compile(r"custom allreduce cutoff \(cutoff=(\d{1,12}) bytes", re.I)
_NAMES = {"customallreducev2": "custom_v2", "quickallreduce": "quick", "quick allreduce": "quick"}
_BACKENDS = {
    "FLASHINFER_PCIE_IPC": "flashinfer_pcie_ipc",
    "FLASHINFER": "flashinfer",
    "NCCL_SYMM_MEM": "nccl_symm_mem",
    "QUICK_REDUCE": "quick",
    "AITER_CUSTOM": "aiter",
    "CUSTOM": "custom",
    "SYMM_MEM": "symm_mem",
    "PYNCCL": "nccl",
}


class AllReduceLines:
    """One source's lines. A dispatch behind which nothing more was printed is where a run hangs."""

    name = READER
    markers: tuple[str, ...] = (
        "llreduce",
        "llReduce",
        "ll-reduce",
        "cuda graph addresses",
        "SymmMemCommunicator",
        "All Reduce config",
        "P2P status",
        "P2P=",
        "MNNVL",
    )

    def __init__(self) -> None:
        self._last: Place | None = None  # a dispatch, while no other line came

    def line(self, number: int, text: str, sink: Sink) -> bool:
        if not text.strip():
            return self._last is not None
        self._last = None
        place = Place(sink, READER, number, text, engine_of(text))
        _refusals(place)
        _claims(place)
        if (match := _REGISTERING.search(text)) and int(match[1]) > 0:  # 0: while memory is profiled
            place.add(Q.ALLREDUCE_ENGAGED, True, name="custom", rank=rank_of(text), worker=worker_of(text))
        if match := _DISPATCH.search(text):
            place.add(Q.ALLREDUCE_ENGAGED, True, name="flashinfer_pcie_ipc", num_bytes=int(match[1]))
            place.add(Q.ALLREDUCE_BYTES, int(match[1]))
            self._last = place
        return self._last is not None

    def end(self, sink: Sink) -> None:
        if self._last is not None:
            self._last.add(Q.LAST_LINE, self._last.text.strip())


def _refusals(place: Place) -> None:
    text = place.text
    if match := _REFUSED.search(text):
        name = _NAMES.get(match[1].lower(), "custom")
        place.add(Q.ALLREDUCE_REFUSED, _reason(match[2]) or "no reason given", name=name)
    elif match := _SETUP_FAILED.search(text):
        place.add(Q.ALLREDUCE_REFUSED, f"set-up failed: {_reason(match[1])}", name="custom")
    if match := _SYMM.search(text):
        place.add(Q.ALLREDUCE_REFUSED, _reason(match[1]), name="symm_mem")
    if match := _FLASHINFER.search(text):
        place.add(Q.ALLREDUCE_REFUSED, _reason(match[1]), name="flashinfer")
    if match := _IPC.search(text):
        place.add(Q.ALLREDUCE_REFUSED, match[0], name="custom")
    if match := _MNNVL.search(text):
        place.add(Q.ALLREDUCE_REFUSED, _reason(match[1]), name="mnnvl")


def _claims(place: Place) -> None:
    text = place.text
    if match := _ORDER.search(text):
        listed = [part.strip(" '\"") for part in match[1].split(",")]
        for name in [_BACKENDS.get(part, part.lower()) for part in listed if part]:
            place.add(Q.ALLREDUCE_CLAIMED, f"listed {match[2] or 'as usable'}", name=name)
    if match := _CLAIMS.search(text):
        place.add(Q.ALLREDUCE_CLAIMED, match[1].strip(" |"), name="custom")
    if match := _CUTOFF.search(text):
        place.add(Q.FLAG, int(match[1]), name="custom_allreduce_cutoff_bytes")
    if match := _P2P_CLAIM.search(text):
        for said in (match[1] or match[2] or "").split("|"):
            _p2p_claim(place, said.strip())


def _p2p_claim(place: Place, said: str) -> None:
    """What a table says of peer access; a table of two runs has a cell for each."""
    if re.match(r"(?:GRANTED|OK|ENABLED|ON)\b", said, re.I):
        place.add(Q.P2P, "ok", name="")
    elif re.match(r"(?:DISABLED|OFF|DENIED|NS|CNS|GNS|TNS)\b", said, re.I):
        place.add(Q.P2P, "off", name="")
        place.add(Q.P2P_REASON, said, name="")


def _reason(text: str) -> str:
    return text.split(" To silence this", 1)[0].strip(" .|")


def engine_of(text: str) -> str | None:
    """Which engine printed a line, by its prefix or spelling; None where both might."""
    if "CustomAllreduce" in text or "CustomAllReduce" in text or re.match(r"\[[\d\- :.]+(?: DP\d+)? TP\d+", text):
        return "sglang"
    if "Custom allreduce is" in text or re.search(
        r"\b(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:|\(\w+ pid=\d+\)", text[:80]
    ):
        return "vllm"
    return None
