"""Lines about the host: PCIe access control, kernel command line, the driver's registry keys, clocks."""

from __future__ import annotations

import re

from alula.explain.readers.found import Place, number
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "host lines"
Q = Quantity
_ACS = re.compile(r"ACSCtl:.*?ReqRedir([+-]) CmpltRedir([+-])|\bReqRedir([+-]) CmpltRedir([+-])")
_IOMMU = re.compile(r"\b(?:(amd|intel)_)?iommu=(\w+)|\biommu\.passthrough=([01])")
_CMDLINE = re.compile(r"BOOT_IMAGE=|\broot=\S+|\b(?:amd_|intel_)?iommu=\w+|\bpcie_aspm=\w+|iommu\.passthrough=")
_ASPM = re.compile(r"\bpcie_(aspm|acs_override)=(\S+)")
_REGISTRY = re.compile(r"RegistryDwords:\s*\"?([^\"]*)\"?")
_DMAR = re.compile(
    r"(?:AMD-Vi|DMAR): (?:Interrupt remapping enabled|IOMMU enabled)"
    r"|iommu: Default domain type: (Translated|Passthrough)"
)
_SM_CLOCK = re.compile(r"\bSM clocks?\D{0,20}?(\d{2,5})(?:\s*-\s*(\d{2,5}))?\s*MHz", re.I)
_POWER = re.compile(r"\bpower(?: draw)?\D{0,12}?([\d.]{1,8})\s*W\b", re.I)
_TFLOPS = re.compile(r"\b(?:GEMM|matmul|bf16|fp16|achieved)\D{0,24}?([\d.]{1,8})\s*TFLOP", re.I)
_WDDM = re.compile(r"\b(WDDM|TCC) (?:driver|mode)\b|driver model\D{0,10}(WDDM|TCC)\b", re.I)


class HostLines:
    """Stateless but for the name."""

    name = READER
    markers: tuple[str, ...] = (
        "ReqRedir",
        "iommu",
        "IOMMU",
        "RegistryDwords",
        "pcie_a",
        "Default domain type",
        "SM clock",
        "MHz",
        "TFLOP",
        "WDDM",
        "TCC",
    )

    def line(self, line: int, text: str, sink: Sink) -> bool:
        place = Place(sink, READER, line, text)
        if match := _ACS.search(text):
            place.add(Q.ACS_REDIRECT, "+" in (match[1], match[2], match[3], match[4]))
        if _CMDLINE.search(text):
            self._kernel(place)
        if match := _DMAR.search(text):
            place.add(Q.IOMMU, "pt" if match[1] == "Passthrough" else "on")
        if match := _REGISTRY.search(text):
            place.add(Q.FLAG, match[1], name="nvidia_RegistryDwords")
        if match := _SM_CLOCK.search(text):
            place.sample(Q.CLOCK_MHZ, number(match[1]))
            place.sample(Q.CLOCK_MHZ, number(match[2] or ""))
            if power := _POWER.search(text):
                place.sample(Q.POWER_W, number(power[1]))
        if match := _TFLOPS.search(text):
            place.sample(Q.GEMM_TFLOPS, number(match[1]))
        if match := _WDDM.search(text):
            place.add(Q.DRIVER_MODEL, (match[1] or match[2]).upper())
        return False

    def _kernel(self, place: Place) -> None:
        for _, value, passthrough in _IOMMU.findall(place.text):
            state = {"pt": "pt", "off": "off", "on": "on", "1": "pt", "0": "on"}.get(value or passthrough)
            place.add(Q.IOMMU, state)
        for name, value in _ASPM.findall(place.text):
            place.add(Q.FLAG, value[:80], name=f"pcie_{name}")

    def end(self, sink: Sink) -> None:
        return
