"""The document of a GPU run: sections and parts, written after each of them; what fails says so, the rest goes on.

Knows no engine. Tables are printed as they come, so that a run that is cut short has shown what it found.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

SCHEMA = 1
_QUERY = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


class Report:
    """One JSON file. `deadline`: of time.monotonic(); parts that have not begun by then are left out, and say so."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = {"schema": SCHEMA, "benchmark": "gpu", **head, "sections": {}}
        self.deadline = float("inf")
        self._began = time.monotonic()

    @property
    def sections(self) -> dict[str, Any]:
        sections: dict[str, Any] = self.document["sections"]
        return sections

    def section(self, name: str, run: Callable[[Section], None]) -> None:
        """Runs one section; its error ends that section alone."""
        self.sections[name] = entry = {}
        say(f"=== {name}")
        began = time.monotonic()
        section = Section(self, entry)
        try:
            run(section)
        except Exception as error:  # noqa: BLE001  # one section's failure must not cost the others' figures
            entry["error"] = _told(error)
        entry["seconds"] = round(time.monotonic() - began, 1)
        say(f"--- {name}: {entry['seconds']} s")
        self.write()

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def write(self) -> None:
        self.document["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.document["seconds"] = self.document.get("seconds_before", 0.0) + round(
            time.monotonic() - self._began, 1
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")


class Section:
    """One entry of the document. Parts stand in it by name."""

    def __init__(self, report: Report, entry: dict[str, Any]) -> None:
        self._report = report
        self.entry = entry

    def part(self, name: str, run: Callable[[], Any]) -> Any:
        """The result of `run`, kept under `name`; None where it failed or was left out for want of time."""
        if self._report.late():
            self.entry[name] = {"left_out": "the run's time was up"}
            say(f"{name}: left out, the run's time was up")
            return None
        began = time.monotonic()
        try:
            result = run()
        except Exception as error:  # noqa: BLE001  # as above: the next part may work
            result, self.entry[name] = None, {"error": _told(error)}
        else:
            self.entry[name] = result
        self.entry.setdefault("seconds_by_part", {})[name] = round(time.monotonic() - began, 1)
        self._report.write()
        return result


def say(text: str) -> None:
    print(text, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; numbers with four digits."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    for line in cells:
        say("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _told(error: Exception) -> dict[str, str]:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    say(f"FAILED: {text}")
    trace = "".join(traceback.format_exception(error))
    say(trace)
    return {"error": text, "traceback": trace[-4000:]}


def machine(commit: str | None, command: Sequence[str]) -> dict[str, Any]:
    """Where, with what, and from which sources."""
    return {
        "command": " ".join(command),
        "commit": commit or _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": _triton(),
        "hardware": hardware(),
    }


def hardware() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"device": "cpu", "processor": platform.processor()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        **clocks(),
    }


def clocks() -> dict[str, str]:
    """What nvidia-smi says now; a reason where it says nothing."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia_smi": f"not available: {error}"}
    return dict(zip(_QUERY, (value.strip() for value in line.split(",")), strict=False))


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _commit() -> str | None:
    """Of the checkout, with "+" where tracked files differ; None where there is none (then --commit says it)."""
    folder = str(Path(__file__).resolve().parent)
    try:
        lines = [
            subprocess.run(
                ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for arguments in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0] + ("+" if lines[1] else "")
