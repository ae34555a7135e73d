"""What `nvidia-smi` says of each GPU: `-q`, `dmon`, its CSV queries and its first table: clocks, power, throttling."""

from __future__ import annotations

import re

from alula.explain.readers.found import Place, number
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "nvidia-smi"
Q = Quantity
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)\s*$")
_PAIR = re.compile(r"^(\s*)([A-Za-z][\w /\-]*?)\s*:\s*(.*?)\s*$")
_SECTION = re.compile(r"^(\s*)([A-Z][\w /\-]*?)\s*$")
_DRIVER = re.compile(r"(?:Driver Version|[Nn]vidia driver version|CUDA Driver Version):?\s*:?\s*(\d[\d.]+)")
_CUDA = re.compile(r"CUDA Version:?\s*:?\s*(\d[\d.]+)")
_NAME_ROW = re.compile(
    r"^\|\s+(\d{1,3})\s+((?:NVIDIA|Tesla|Quadro|GeForce|RTX)[\w .\-]*?)\s{2,}.*?(WDDM|TCC|MCDM|On|Off|N/A)?\s*\|"
)
_LISTED = re.compile(
    r"^\s*GPU (?:[\d,]+,)?(\d{1,3}): ([A-Z][\w .\-/]*?)(?: \(UUID.*)?\s*$"
)  # nvidia-smi -L, collect_env
_LOAD_ROW = re.compile(r"(\d{1,3})C\s+P\d+\s+(\d+)W / +(\d+)W \|.*?(\d{1,3})%")
_REASONS = re.compile(
    r"(?:Idle|Applications Clocks Setting|SW Power Cap|SW Power Capping|HW Slowdown|HW Thermal Slowdown|"
    r"HW Power Brake Slowdown|HW Power Braking|Sync Boost|SW Thermal Slowdown|Display Clock Setting)$"
)
_DMON = {"pwr": Q.POWER_W, "gtemp": Q.TEMPERATURE_C, "sm": Q.UTILISATION, "pclk": Q.CLOCK_MHZ}
_CSV = (
    (re.compile(r"clocks\.(?:current\.|cur\.)?(?:sm|graphics|gr)"), Q.CLOCK_MHZ, 1.0),
    (re.compile(r"clocks\.max\.(?:sm|graphics|gr)"), Q.CLOCK_MAX_MHZ, 1.0),
    (re.compile(r"power\.draw"), Q.POWER_W, 1.0),
    (re.compile(r"power\.limit|enforced\.power"), Q.POWER_LIMIT_W, 1.0),
    (re.compile(r"temperature\.gpu"), Q.TEMPERATURE_C, 1.0),
    (re.compile(r"utilization\.gpu"), Q.UTILISATION, 0.01),
)
_CSV_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")


class GpuState:
    """One source's reports. In `-q` values are told apart by their sections' indentation."""

    name = READER
    markers: tuple[str, ...] = (
        "(UUID:",
        "GPU 0",
        "driver version",
        "NVSMI LOG",
        "GPU 0000",
        "Driver Version",
        "CUDA Version",
        "NVIDIA-SMI",
        "# gpu",
        "clocks.",
        "power.draw",
        "Clocks Event Reasons",
        "Clocks Throttle Reasons",
    )

    def __init__(self) -> None:
        self._mode = ""
        self._gpu = -1
        self._path: list[tuple[int, str]] = []
        self._columns: list[str] = []
        self._blank = 0
        self._num_listed = 0

    def line(self, number: int, text: str, sink: Sink) -> bool:
        place = Place(sink, READER, number, text)
        if "clocks." in text or "power.draw" in text or (text.lstrip().startswith("# gpu") and "pwr" in text):
            return self._header(text)
        if (
            "NVSMI LOG" in text
            or "NVIDIA-SMI" in text
            or _GPU.match(text)
            or "Clocks Event Reasons" in text
            or "Clocks Throttle" in text
        ) and (not self._mode.startswith(("q", "table")) or "NVSMI LOG" in text):
            self._mode, self._gpu, self._path = ("table" if "NVIDIA-SMI" in text else "q"), -1, []
        self._versions(place)
        return self._goes_on(place)

    def _header(self, text: str) -> bool:
        if text.lstrip().startswith("#"):
            self._mode, self._columns = "dmon", text.lstrip("# ").split()
        else:
            self._mode, self._columns = "csv", [part.strip() for part in text.split(",")]
        self._gpu = -1
        return True

    def _goes_on(self, place: Place) -> bool:
        text = place.text
        self._blank = 0 if text.strip() else self._blank + 1
        reader = {"q": self._query, "table": self._table, "dmon": self._dmon, "csv": self._csv}.get(self._mode)
        if reader is None or self._blank > 3 or not (reader(place) or not text.strip()):
            self._mode = ""
            return False
        return True

    def _versions(self, place: Place) -> None:
        if match := _DRIVER.search(place.text):
            place.add(Q.DRIVER, match[1])
        if match := _CUDA.search(place.text):
            place.add(Q.CUDA, match[1])
        if match := _LISTED.match(place.text):
            place.add(Q.GPU, match[2].strip())
            self._num_listed = max(self._num_listed, int(match[1]) + 1)

    def _query(self, place: Place) -> bool:
        text = place.text
        if _GPU.match(text):
            self._gpu += 1
            self._path = []
            return True
        if match := _PAIR.match(text):
            self._open(len(match[1]))
            if not match[3]:
                self._path.append((len(match[1]), match[2]))
            else:
                self._value(place, match[2], match[3])
            return True
        if match := _SECTION.match(text):
            self._open(len(match[1]))
            self._path.append((len(match[1]), match[2]))
            return True
        return text.lstrip().startswith("=")

    def _open(self, indent: int) -> None:
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()

    def _value(self, place: Place, name: str, raw: str) -> None:
        section = self._path[-1][1] if self._path else ""
        rank = {"rank": max(self._gpu, 0)}
        value = number(raw)
        if section.startswith(("Clocks Event Reasons", "Clocks Throttle Reasons")) or (
            len(self._path) > 1 and self._path[-2][1].startswith(("Clocks Event", "Clocks Throttle"))
        ):
            self._reason(place, name, raw, value, rank)
        elif name == "Product Name":
            place.add(Q.GPU, raw)
        elif name == "Attached GPUs" and value:
            place.add(Q.NUM_GPUS, int(value))
        elif value is None:
            if name in ("Current", "Driver Model") and raw in ("WDDM", "TCC"):
                place.add(Q.DRIVER_MODEL, raw, **rank)
        elif name == "SM" and section in ("Clocks", "Max Clocks"):
            place.sample(Q.CLOCK_MHZ if section == "Clocks" else Q.CLOCK_MAX_MHZ, value, **rank)
        elif name in ("Power Draw", "Instantaneous Power Draw", "Average Power Draw") and "W" in raw:
            place.sample(Q.POWER_W, value, **rank)
        elif name in ("Current Power Limit", "Power Limit", "Enforced Power Limit") and "W" in raw:
            place.add(Q.POWER_LIMIT_W, value, **rank)
        elif name == "GPU Current Temp":
            place.sample(Q.TEMPERATURE_C, value, **rank)
        elif name in ("Gpu", "GPU") and section == "Utilization":
            place.sample(Q.UTILISATION, value / 100.0, **rank)

    def _reason(self, place: Place, name: str, raw: str, value: float | None, rank: dict[str, int]) -> None:
        if not _REASONS.match(name):
            return
        if raw in ("Active", "Not Active"):
            place.add(Q.THROTTLE, raw == "Active", name=name, **rank)
        elif value is not None and raw.endswith("us"):
            place.add(Q.THROTTLE_US, value, name=name, **rank)

    def _table(self, place: Place) -> bool:
        text = place.text
        if match := _NAME_ROW.match(text):
            self._gpu = int(match[1])
            place.add(Q.GPU, match[2].strip())
            if match[3] in ("WDDM", "TCC"):
                place.add(Q.DRIVER_MODEL, match[3])
        elif (match := _LOAD_ROW.search(text)) and self._gpu >= 0:
            place.sample(Q.TEMPERATURE_C, float(match[1]), rank=self._gpu)
            place.sample(Q.POWER_W, float(match[2]), rank=self._gpu)
            place.add(Q.POWER_LIMIT_W, float(match[3]), rank=self._gpu)
            place.sample(Q.UTILISATION, float(match[4]) / 100.0, rank=self._gpu)
        return text.lstrip()[:1] in ("|", "+", "")

    def _dmon(self, place: Place) -> bool:
        if place.text.lstrip().startswith("#"):
            return True
        cells = place.text.split()
        if len(cells) != len(self._columns) or not cells[0].isdecimal():
            return False
        rank = int(cells[self._columns.index("gpu")][:4]) if "gpu" in self._columns else 0
        for column, cell in zip(self._columns, cells, strict=True):
            value = number(cell)
            if column in _DMON and value is not None:
                place.sample(_DMON[column], value / 100.0 if column == "sm" else value, rank=rank)
        return True

    def _csv(self, place: Place) -> bool:
        cells = [part.strip() for part in place.text.split(",")]
        if len(cells) != len(self._columns):
            return False
        index = next((at for at, column in enumerate(self._columns) if column == "index"), None)
        self._gpu = int(cells[index][:6]) if index is not None and cells[index].isdecimal() else self._gpu + 1
        rank = {"rank": min(self._gpu, 4096)}
        for column, cell in zip(self._columns, cells, strict=True):
            if column == "name":
                place.add(Q.GPU, cell)
            elif column == "driver_version":
                place.add(Q.DRIVER, cell)
            elif (match := _CSV_REASON.search(column)) and cell in ("Active", "Not Active"):
                place.add(Q.THROTTLE, cell == "Active", name=match[1].replace("_", " "), **rank)
            elif (value := number(cell)) is not None:
                for pattern, quantity, factor in _CSV:
                    if pattern.match(column):
                        place.sample(quantity, value * factor, **rank)
        return True

    def end(self, sink: Sink) -> None:
        if self._num_listed:
            Place(sink, READER, None, "a list of GPUs").add(Q.NUM_GPUS, self._num_listed)
