"""How the GPUs of this host are joined, as far as it can be found out. Decides nothing.

What stays unknown is None, with the reason in `unknown`: a default that rests on a guess would be worse than none.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

NVLINK_ALL, NVLINK_SOME, NVLINK_NONE = "all pairs", "some pairs", "none"
TIMEOUT_S = 20.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d{1,4})")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")
_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """peer_access: whether CUDA lets every GPU reach every other's memory. nvlink: "all pairs", "some pairs" or "none".

    links: what nvidia-smi says of each pair of GPUs, such as {"0-1": "NV18"}. cpu_vendor: "amd", "intel" or another
    name. unknown: what could not be found out, and why.
    """

    num_gpus: int
    peer_access: bool | None = None
    nvlink: str | None = None
    links: dict[str, str] = {}
    cpu_vendor: str | None = None
    unknown: tuple[str, ...] = ()


def detect_topology() -> Topology:
    """Asks CUDA, nvidia-smi and the kernel. Works, and says what is missing, without any of them."""
    import torch  # seconds, and a rank's process reads plans before it has them

    unknown: list[str] = []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    vendor = _cpu_vendor(unknown)
    if count == 0:
        return Topology(num_gpus=0, cpu_vendor=vendor, unknown=(*unknown, "links: torch sees no CUDA device"))
    links = _links(unknown)
    return Topology(
        num_gpus=count,
        peer_access=_peer_access(count, unknown),
        nvlink=nvlink_of(links, count, unknown),
        links={f"{first}-{second}": link for (first, second), link in sorted(links.items())},
        cpu_vendor=vendor,
        unknown=tuple(unknown),
    )


def parse_topology_matrix(text: str) -> dict[tuple[int, int], str]:
    """The links between GPUs in the output of `nvidia-smi topo -m`, by pair (lower number first). Other text gives {}.

    Columns of network cards, affinities and the legend are passed over.
    """
    columns: list[int | None] = []
    links: dict[tuple[int, int], str] = {}
    for line in _COLOURS.sub("", text).splitlines():
        words = line.split()
        if not words:
            continue
        own = _GPU.fullmatch(words[0])
        if own is None:
            continue
        # The heading names a device a column; a row begins with its own name and then has as many links.
        if line[0].isspace() or (len(words) > 1 and _GPU.fullmatch(words[1])):
            columns = columns or [int(found[1]) if (found := _GPU.fullmatch(word)) else None for word in words]
            continue
        for column, link in zip(columns, words[1:], strict=False):
            if column is not None and column != int(own[1]) and _LINK.fullmatch(link):
                links[min(int(own[1]), column), max(int(own[1]), column)] = link
    return links


def nvlink_of(links: Mapping[tuple[int, int], str], num_gpus: int, unknown: list[str]) -> str | None:
    """What the links of all GPUs of the host say of `num_gpus` of them; adds to `unknown` where they do not say it."""
    if num_gpus == 1:
        return NVLINK_NONE
    if not links:
        return None
    joined = [link.startswith("NV") for link in links.values()]
    if all(joined):
        return NVLINK_ALL
    if not any(joined):
        return NVLINK_NONE
    listed = len({gpu for pair in links for gpu in pair})
    if listed != num_gpus:
        unknown.append(f"NVLink: nvidia-smi lists {listed} GPUs, torch sees {num_gpus}; some of the pairs have it")
        return None
    return NVLINK_SOME


def _peer_access(count: int, unknown: list[str]) -> bool | None:
    import torch

    try:
        return all(torch.cuda.can_device_access_peer(a, b) for a, b in itertools.permutations(range(count), 2))
    except RuntimeError as error:
        unknown.append(f"peer access: {error}")
        return None


def _links(unknown: list[str]) -> dict[tuple[int, int], str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        unknown.append("links: nvidia-smi is not installed")
        return {}
    try:
        done = subprocess.run(
            [program, "topo", "-m"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        unknown.append(f"links: nvidia-smi topo -m failed: {error}")
        return {}
    links = parse_topology_matrix(done.stdout)
    if not links and "GPU1" in done.stdout:
        unknown.append("links: the output of nvidia-smi topo -m could not be read")
    return links


def _cpu_vendor(unknown: list[str]) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        unknown.append(f"CPU: {error.strerror}")
        return None
    found = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    if found is None:
        unknown.append("CPU: /proc/cpuinfo names no vendor")
        return None
    return _VENDORS.get(found[1], found[1])
