"""Reads what NCCL writes under NCCL_DEBUG=INFO: which variables it took, what it built, what it chose, what went wrong.

Pure, and true to any mixture of processes: what is found does not depend on the order of lines, and lines that are
not understood are passed over. Understands releases 2.19 to 2.30; numbers for algorithms and protocols are those of
releases that print numbers. Knows nothing of plans.
"""

from __future__ import annotations

import re

import msgspec

# `host:pid:tid [device] NCCL INFO `; a warning has the place in NCCL's source before its name. The lengths are bounded
# so that noise costs no more than its length, and a number stays one that Python converts.
_PREFIX = re.compile(
    r"[^\s:\[\]/]{1,255}:(?P<pid>\d{1,10}):\d{1,10} \[-?\d{1,6}\] (?:[^\n\[\]]{1,300} )?NCCL (?P<level>INFO|WARN) "
)
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,40})")
_SET = re.compile(r"(?P<name>NCCL_\w{1,80}) set by (?P<source>\w{1,40}(?: \S{1,300})??) to (?P<value>.*)")
_CONFIG = re.compile(r"reset to (?P<name>NCCL_\w{1,80})=(?P<value>\S{1,80})")
_INVALID = re.compile(r"Invalid value (?P<value>.{0,300}) for (?P<name>NCCL_\w{1,80}), using default")
_WHOLE_NUMBER = re.compile(r"(-?\d{1,20})\.")
_CHOICE = re.compile(
    r"(?:(?P<collective>\w{1,40}): )?(?P<num_bytes>\d{1,18}) Bytes -> Algo (?P<algorithm>\w{1,40}) "
    r"proto (?P<protocol>\w{1,40})(?: channel\{Lo\.\.Hi\}=\{(?P<first>\d{1,6})\.\.(?P<last>\d{1,6})\})?"
)
_SYMMETRIC = re.compile(
    r"(?P<collective>\w{1,40}) \[Symmetric\]: (?P<num_bytes>\d{1,18}) Bytes -> Kernel (?P<kernel>\w{1,120}) "
    r"nchannels (?P<channels>\d{1,6})"
)
_VIA = re.compile(r"via (?P<transport>(?:P2P|SHM|NET|COLLNET)/[A-Za-z]+(?: pointer|/CUMEM)?)")
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
INVALID = "an invalid value"


class Setting(msgspec.Struct, frozen=True, order=True):
    """A variable that NCCL says it took. source: "environment", or what it says instead. `value` as NCCL prints it."""

    name: str
    value: str
    source: str


class Choice(msgspec.Struct, frozen=True, order=True):
    """How NCCL ran messages of a size. collective: "" where an old release does not say; num_channels: 0 likewise.

    A symmetric kernel has its name as algorithm and protocol "".
    """

    collective: str
    num_bytes: int
    algorithm: str
    protocol: str
    num_channels: int


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, each thing once and sorted. num_communicators: how many were completed."""

    version: str | None = None
    settings: tuple[Setting, ...] = ()
    choices: tuple[Choice, ...] = ()
    transports: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    num_communicators: int = 0


def parse_nccl_log(text: str, pid: int | None = None) -> NcclLog:
    """What the lines of process `pid`, or of all, say. The version is printed without a process and counts for all."""
    settings: set[Setting] = set()
    choices: set[Choice] = set()
    transports: set[str] = set()
    warnings: set[str] = set()
    num_communicators = 0
    for level, message in _messages(text, pid):
        if level == "WARN":
            warnings.add(message)
        if (setting := _setting(message)) is not None:
            settings.add(setting)
        elif (choice := _choice(message)) is not None:
            choices.add(choice)
        elif found := _VIA.search(message):
            transports.add(found["transport"])
        elif "Init COMPLETE" in message:
            num_communicators += 1
    versions = sorted(set(_VERSION.findall(text)))
    return NcclLog(
        version=versions[-1] if versions else None,
        settings=tuple(sorted(settings)),
        choices=tuple(sorted(choices)),
        transports=tuple(sorted(transports)),
        warnings=tuple(sorted(warnings)),
        num_communicators=num_communicators,
    )


def _messages(text: str, pid: int | None) -> list[tuple[str, str]]:
    """(level, message) of each line, and of lines that were written into one another's end."""
    found = []
    for line in text.splitlines():
        prefixes = list(_PREFIX.finditer(line))
        for number, prefix in enumerate(prefixes, 1):
            end = prefixes[number].start() if number < len(prefixes) else len(line)
            if pid is None or int(prefix["pid"]) == pid:
                found.append((prefix["level"], line[prefix.end() : end].strip()))
    return found


def _setting(message: str) -> Setting | None:
    if found := _SET.search(message):
        value = found["value"].strip()
        number = _WHOLE_NUMBER.fullmatch(
            value
        )  # NCCL ends the line of a number with a full stop, that of a text not
        return Setting(found["name"], number[1] if number else value, found["source"])
    if found := _CONFIG.search(message):
        return Setting(found["name"], found["value"], "environment")
    if found := _INVALID.search(message):
        return Setting(found["name"], found["value"], INVALID)
    return None


def _choice(message: str) -> Choice | None:
    if found := _CHOICE.search(message):
        first, last = found["first"], found["last"]
        return Choice(
            found["collective"] or "",
            int(found["num_bytes"]),
            _named(found["algorithm"], _ALGORITHMS),
            _named(found["protocol"], _PROTOCOLS),
            0 if first is None else int(last) - int(first) + 1,
        )
    if found := _SYMMETRIC.search(message):
        return Choice(found["collective"], int(found["num_bytes"]), found["kernel"], "", int(found["channels"]))
    return None


def _named(text: str, names: tuple[str, ...]) -> str:
    """The name of a number; a number that is not known stays one."""
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    return text.upper()
