"""Which collective a GPU kernel is, by its name. A name proves a backend, never NCCL's protocol.

Source of the names: each library's own sources, as specs/collectives.md 2.4 lists them. Unknown stays unknown.
"""

from __future__ import annotations

import re

import msgspec


class Family(msgspec.Struct, frozen=True):
    """backend: as ALLREDUCE_BACKEND names it; family: one kind of kernel; op: all_reduce or another collective."""

    backend: str
    family: str
    op: str = "all_reduce"


_FAMILIES: tuple[tuple[re.Pattern[str], Family], ...] = tuple(
    (re.compile(pattern), Family(*family))
    for pattern, family in (
        (r"nccl(?:Dev)?Kernel_AllReduce_", ("nccl", "nccl all-reduce")),
        (r"nccl(?:Dev)?Kernel_AllGather", ("nccl", "nccl all-gather", "all_gather")),
        (r"nccl(?:Dev)?Kernel_ReduceScatter", ("nccl", "nccl reduce-scatter", "reduce_scatter")),
        (r"nccl(?:Dev)?Kernel_(?:Broadcast|Reduce_)", ("nccl", "nccl broadcast", "broadcast")),
        (r"nccl(?:Dev)?Kernel_SendRecv", ("nccl", "nccl send-receive", "send_receive")),
        (r"nccl(?:Dev)?Kernel_Generic", ("nccl", "nccl generic")),
        (r"ncclSym[k]?DevKernel_AllReduce", ("nccl_symm_mem", "nccl symmetric all-reduce")),
        (r"ncclSym[k]?DevKernel_", ("nccl_symm_mem", "nccl symmetric", "all_gather")),
        (r"multimem_(?:one_shot_)?all_reduce_kernel", ("symm_mem", "symm_mem multicast")),
        (r"one_shot_all_reduce_kernel", ("symm_mem", "symm_mem one-shot")),
        (r"two_shot_all_reduce_kernel", ("symm_mem", "symm_mem two-shot")),
        (r"cross_device_reduce_1stage", ("custom", "custom one-shot")),
        (r"cross_device_reduce_2stage", ("custom", "custom two-shot")),
        (r"all_reduce_one_shot(?:_push)?_kernel|all_reduce_two_shot(?:_push)?_kernel", ("custom_v2", "custom v2")),
        (
            r"push_oneshot_param_kernel|ipc_tp2_remote_push_kernel|ipc_rsag_(?:ring_)?push_param_kernel"
            r"|ipc_topo_rsag8_\w+_param_kernel"
            r"|pcie_ipc_comm",
            ("flashinfer_pcie_ipc", "flashinfer PCIe IPC"),
        ),
        (
            r"allreduce_fusion_kernel_oneshot|oneshotAllreduceFusionKernel|oneShotAllReduceKernel"
            r"|lamport_style_one_shot_all_reduce"
            r"|one_shot_(?:prenorm_)?all_reduce_norm_kernel",
            ("flashinfer", "flashinfer one-shot"),
        ),
        (
            r"allreduce_fusion_kernel_twoshot|twoshotAllreduceKernel|twoShotAllReduceKernel",
            ("flashinfer", "flashinfer two-shot"),
        ),
        (r"moe(?:reduce|finalize)_allreduce_fusion_kernel", ("flashinfer", "flashinfer MoE fusion")),
        (r"allreduce(?:Packet|AllPairs|Fullmesh|RsAg\w*|Nvls\w*)\b", ("mscclpp", "mscclpp")),
        (r"\bxar_", ("alula", "alula")),
    )
)


def family_of(name: str) -> Family | None:
    """The collective behind a kernel's name, or None for every other kernel."""
    if (
        "educe" not in name
        and "nccl" not in name
        and "ipc" not in name
        and "Gather" not in name
        and "xar_" not in name
        and ("push" not in name)
    ):
        return None
    return next((family for pattern, family in _FAMILIES if pattern.search(name)), None)
