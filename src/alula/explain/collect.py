"""Gathers, on a box that runs an engine, what `explain --from` wants, and writes one archive without secrets.

Asks programs that are there (nvidia-smi, lspci), reads /proc of the engine's processes, configuration files, a
server's pages, and logs that it is pointed at. Changes nothing on the box. Of environments only names that engines,
NCCL and CUDA read are taken; every text goes through `redact`.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from alula.core.errors import InvalidOption, ModelNotFound, RecordWriteError
from alula.explain.live import fetch
from alula.explain.readers.variables import COLLECTED, NAME, SECRET
from alula.explain.redact import Redactor

_TIMEOUT_SECONDS = 30.0
_MAX_TEXT_BYTES = 8 << 20
_LOG_HEAD_BYTES, _LOG_TAIL_BYTES = 2 << 20, 8 << 20
_MAX_PROCESSES = 256
# name in the archive -> command; a program that is missing is said in the manifest
_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpu/topology.txt", ("nvidia-smi", "topo", "-m")),
    ("gpu/p2p_read.txt", ("nvidia-smi", "topo", "-p2p", "r")),
    ("gpu/query.txt", ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE,TEMPERATURE,UTILIZATION")),
    ("gpu/table.txt", ("nvidia-smi",)),
    ("gpu/dmon.txt", ("nvidia-smi", "dmon", "-c", "5", "-s", "puc")),
)
_FILES = (
    "/proc/cmdline",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/etc/nccl.conf",
)
_ENGINE = re.compile(
    r"vllm|VLLM::|sglang|sgl_?\w*::|trtllm|tensorrt_llm|llama-server|tokenspeed|lmdeploy|\balula serve\b", re.I
)
_ACS = re.compile(r"^\S.*(?:PCI bridge|3D controller|VGA)|ACSCtl|LnkSta:")


class Item(msgspec.Struct, frozen=True):
    """One thing that was taken (text) or could not be (problem)."""

    name: str
    text: str = ""
    problem: str = ""


class Collected(msgspec.Struct, frozen=True):
    """Everything taken, secrets already replaced, and how many were."""

    items: tuple[Item, ...]
    num_replaced: int

    @property
    def taken(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not item.problem)


def collect(
    pids: Sequence[int],
    url: str | None,
    logs: Sequence[str],
    note: Callable[[str], None],
    proc: Path = Path("/proc"),
) -> Collected:
    """Gathers everything. pids: the engine's processes, with all their children; none given: those that look like one.

    Raises ModelNotFound for a log that is not there, InvalidOption for a process that is not.
    """
    redactor = Redactor(_host_names())
    chosen = _family(pids, proc) if pids else _engines(proc)
    raw = [
        *_programs(),
        *(_file(Path(name)) for name in _FILES),
        *_processes(chosen, proc),
        *_configuration(chosen, proc),
        *(_log(name) for name in logs),
    ]
    if url is not None:
        raw += _server(url, note)
    items = [
        Item(
            one.name,
            redactor.text(one.text),
            redactor.text(one.problem or ("" if one.text.strip() else "nothing in it")),
        )
        for one in raw
    ]
    return Collected(tuple(items), redactor.num_replaced)


def write_archive(collected: Collected, path: Path) -> None:
    """One tar.gz, readable by its owner only. Raises RecordWriteError where the disk refuses."""
    try:
        with tarfile.open(path, "w:gz") as archive:
            os.chmod(path, 0o600)
            for item in (Item("manifest.txt", manifest(collected)), *collected.taken):
                data = item.text.encode("utf-8", "replace")
                member = tarfile.TarInfo(item.name)
                member.size, member.mode = len(data), 0o600
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise RecordWriteError(
            f"cannot write {path}: {error.strerror}; free space or choose another --out path"
        ) from error


def manifest(collected: Collected) -> str:
    """What is in an archive and what could not be had, for people."""
    lines = [f"taken    {item.name} ({len(item.text)} characters)" for item in collected.taken]
    lines += [f"missing  {item.name}: {item.problem}" for item in collected.items if item.problem]
    return "\n".join([*lines, f"{collected.num_replaced} secrets and addresses replaced", ""])


def _server(url: str, note: Callable[[str], None]) -> Iterable[Item]:
    """What a server says of itself. One that hangs is a reason to collect, so it is missing and ends nothing."""
    try:
        pages = fetch(url, note)
    except InvalidOption as error:
        return (Item("server", problem=str(error)),)
    return [Item(f"server{page.path}.txt", page.body.decode("utf-8", "replace")) for page in pages]


def _host_names() -> tuple[str, ...]:
    name = socket.gethostname()
    return (name, name.split(".")[0])


def _programs() -> Iterable[Item]:
    for name, command in _COMMANDS:
        yield _run(name, command)
    buses = _run("host/pcie.txt", ("lspci", "-vvv"))
    yield msgspec.structs.replace(
        buses, text="\n".join(line for line in buses.text.splitlines() if _ACS.search(line))
    )


def _run(name: str, command: tuple[str, ...]) -> Item:
    if shutil.which(command[0]) is None:
        return Item(name, problem=f"{command[0]} is not installed here")
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Item(name, problem=f"{' '.join(command)} did not answer: {type(error).__name__}")
    text = done.stdout[:_MAX_TEXT_BYTES].decode("utf-8", "replace")
    if done.returncode and not text.strip():
        complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Item(name, problem=f"{' '.join(command)} failed: {complaint[-1] if complaint else done.returncode}")
    return Item(name, text)


def _file(path: Path, name: str | None = None) -> Item:
    name = name or f"host{path.as_posix()}"
    try:
        with path.open("rb") as file:
            return Item(name, file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace"))
    except OSError as error:
        return Item(name, problem=f"{path}: {error.strerror}")


def _log(name: str) -> Item:
    """Start and end of a log: the start holds the engine's settings, the end what happens now."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_LOG_HEAD_BYTES)
            if size > _LOG_HEAD_BYTES + _LOG_TAIL_BYTES:
                file.seek(size - _LOG_TAIL_BYTES)
                data += f"\n[{size - _LOG_HEAD_BYTES - _LOG_TAIL_BYTES} bytes left out by alula collect]\n".encode()
            data += file.read(_LOG_TAIL_BYTES)
    except OSError as error:
        raise ModelNotFound(
            f"cannot read the log {name!r}: {error.strerror}; give --log a file that is there"
        ) from error
    return Item(f"logs/{path.name}", data.decode("utf-8", "replace"))


def _processes(pids: Sequence[int], proc: Path) -> Iterable[Item]:
    for pid in pids:
        folder = proc / str(pid)
        environment = _file(folder / "environ", f"proc/{pid}/environ")
        names = [(one, one.partition("=")[0]) for one in environment.text.split("\0")]
        kept = [one for one, name in names if NAME.fullmatch(name) and not SECRET.search(name)]
        yield msgspec.structs.replace(environment, text="\0".join([COLLECTED, *kept, ""]))
        command = _file(folder / "cmdline", f"proc/{pid}/command.txt")
        yield msgspec.structs.replace(command, text=_shell_line(command.text))
        maps = _file(folder / "maps", f"proc/{pid}/libraries.txt")
        libraries = {line.split()[-1] for line in maps.text.splitlines() if "libnccl" in line or "librccl" in line}
        yield msgspec.structs.replace(maps, text="\n".join(sorted(libraries)))


def _shell_line(command: str) -> str:
    """A command line as it could be typed: JSON arguments keep their quotes."""
    parts = command.rstrip("\0").split("\0")
    return " ".join(f"'{part}'" if re.search(r"[\s{}\"]", part) else part for part in parts) + "\n"


def _configuration(pids: Sequence[int], proc: Path) -> Iterable[Item]:
    """NCCL's configuration files as the workers would find them."""
    named: set[str] = set()
    for pid in pids:
        variables = dict(one.partition("=")[::2] for one in _file(proc / str(pid) / "environ").text.split("\0"))
        if path := variables.get("NCCL_CONF_FILE"):
            named.add(path)
        elif home := variables.get("HOME"):
            named.add(f"{home}/.nccl.conf")
    for path in sorted(named):
        if os.path.exists(path):
            yield _file(Path(path), f"host/{Path(path).name.lstrip('.')}")


def _family(pids: Sequence[int], proc: Path) -> list[int]:
    """The processes and everything below them."""
    missing = [pid for pid in pids if not (proc / str(pid)).is_dir()]
    if missing:
        raise InvalidOption(f"no process {missing[0]}; give --pid the number of the engine's main process")
    children: dict[int, list[int]] = {}
    for pid in _all(proc):
        children.setdefault(_parent(pid, proc), []).append(pid)
    found: list[int] = []
    waiting = list(pids)
    while waiting and len(found) < _MAX_PROCESSES:
        pid = waiting.pop(0)
        if pid not in found:
            found.append(pid)
            waiting += children.get(pid, [])
    return found


def _engines(proc: Path) -> list[int]:
    """Processes whose command line looks like an engine's or its workers'."""
    found = []
    for pid in _all(proc):
        text = _file(proc / str(pid) / "cmdline").text
        if text and pid != os.getpid() and _ENGINE.search(text) and "alula collect" not in text.replace("\0", " "):
            found.append(pid)
    return found[:_MAX_PROCESSES]


def _all(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError:
        return []


def _parent(pid: int, proc: Path) -> int:
    """The parent's number: the second field behind the name in brackets, which may hold anything."""
    fields = _file(proc / str(pid) / "stat").text.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
