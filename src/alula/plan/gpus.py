"""Memory bandwidth of published accelerators, to say how fast a forward could be at best.

Source of every number: the vendor's data sheet or architecture paper of that product, in bytes/s of the device's own
memory as advertised. No program reaches it: copies measured on an H200 came to 4.3e12 of its 4.8e12.
"""

from __future__ import annotations

import re

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One product. source: where the bandwidth is printed."""

    name: str
    memory_bytes_per_s: float
    source: str
    clock_max_mhz: int | None = None  # boost clock of the data sheet, where a clamp is judged by it


def _gpu(name: str, terabytes_per_s: float, sheet: str, clock_max_mhz: int | None = None) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes_per_s=terabytes_per_s * 1e12,
        source=f"{sheet}, data sheet",
        clock_max_mhz=clock_max_mhz,
    )


# Pattern in a lower-case name without spaces, dashes and underscores -> product. The first that is found counts.
_GPUS: tuple[tuple[str, Gpu], ...] = (
    ("gb300|b300", _gpu("B300", 8.0, "NVIDIA Blackwell Ultra")),
    ("gb200|b200", _gpu("B200", 8.0, "NVIDIA Blackwell")),
    ("gh200", _gpu("GH200", 4.9, "NVIDIA GH200 (144 GB HBM3e)")),
    ("h200", _gpu("H200", 4.8, "NVIDIA H200", 1980)),
    ("h100nvl", _gpu("H100 NVL", 3.9, "NVIDIA H100 NVL", 1785)),
    ("h100pcie", _gpu("H100 PCIe", 2.0, "NVIDIA H100 PCIe", 1755)),
    ("h100|h800", _gpu("H100 SXM", 3.35, "NVIDIA H100 SXM5", 1980)),
    ("h20", _gpu("H20", 4.0, "NVIDIA H20")),
    ("a100.*40gb", _gpu("A100 40 GB", 1.555, "NVIDIA A100 40 GB", 1410)),
    ("a100|a800", _gpu("A100 80 GB", 2.039, "NVIDIA A100 80 GB SXM", 1410)),
    ("rtxpro6000|rtx6kpro|pro6000", _gpu("RTX PRO 6000 Blackwell", 1.792, "NVIDIA RTX PRO 6000 Blackwell", 2617)),
    ("rtx6000d", _gpu("RTX 6000D", 1.568, "NVIDIA RTX 6000D")),
    ("6000ada", _gpu("RTX 6000 Ada", 0.960, "NVIDIA RTX 6000 Ada", 2505)),
    ("a6000", _gpu("RTX A6000", 0.768, "NVIDIA RTX A6000", 1800)),
    ("5090", _gpu("GeForce RTX 5090", 1.792, "NVIDIA RTX 5090", 2407)),
    ("5080", _gpu("GeForce RTX 5080", 0.960, "NVIDIA RTX 5080", 2617)),
    ("4090", _gpu("GeForce RTX 4090", 1.008, "NVIDIA RTX 4090", 2520)),
    ("4080", _gpu("GeForce RTX 4080", 0.717, "NVIDIA RTX 4080", 2505)),
    ("3090ti", _gpu("GeForce RTX 3090 Ti", 1.008, "NVIDIA RTX 3090 Ti", 1860)),
    ("3090", _gpu("GeForce RTX 3090", 0.936, "NVIDIA RTX 3090", 1695)),
    ("l40s|l40", _gpu("L40S", 0.864, "NVIDIA L40S", 2520)),
    ("l20x", _gpu("L20X", 4.0, "NVIDIA L20X")),
    ("l4", _gpu("L4", 0.300, "NVIDIA L4", 2040)),
    ("v100", _gpu("V100", 0.900, "NVIDIA V100", 1530)),
    ("gb10|dgxspark", _gpu("GB10", 0.273, "NVIDIA DGX Spark")),
    ("a10", _gpu("A10", 0.600, "NVIDIA A10", 1695)),
    ("mi355", _gpu("MI355X", 8.0, "AMD Instinct MI355X")),
    ("mi325", _gpu("MI325X", 6.0, "AMD Instinct MI325X")),
    ("mi300", _gpu("MI300X", 5.3, "AMD Instinct MI300X")),
    ("mi250", _gpu("MI250X", 3.2, "AMD Instinct MI250X")),
    ("t4", _gpu("T4", 0.320, "NVIDIA T4")),
)


def find_gpu(name: str) -> Gpu | None:
    """The product that a name as drivers, logs or people write it stands for; None where it is not in the table."""
    squeezed = re.sub(r"[\s_\-()/]+", "", name.lower())
    for pattern, gpu in _GPUS:
        if re.search(rf"(?<![0-9])(?:{pattern})", squeezed):
            return gpu
    return None
