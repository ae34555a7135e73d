"""Which backends there are on a device, in order of preference while nothing was measured."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from alula.comm.backends.apart import ApartBackend
from alula.comm.backends.flashinfer_pcie import NAME as FLASHINFER
from alula.comm.backends.flashinfer_pcie import FlashInferPcieBackend
from alula.comm.backends.nccl import DEFAULT, LOW_LATENCY, nccl_backends
from alula.comm.backends.peer_push import NAME as PEER_PUSH
from alula.comm.backends.peer_push import PeerPushBackend
from alula.comm.backends.protocol import Backend
from alula.comm.backends.shared_memory import SharedMemoryBackend
from alula.comm.backends.symmetric_memory import GATHER, ONE_SHOT, TWO_SHOT, symmetric_backends
from alula.comm.backends.torch_distributed import TorchDistributedBackend
from alula.comm.plugins import CommunicatorContext, load_plugins, plugin_names
from alula.comm.segment import Segment
from alula.core.environment import inherited
from alula.core.errors import InvalidOption
from alula.kernels.reference.fused import Norm, Stream

HOST = "shared_memory"
CUDA_BACKENDS = (PEER_PUSH, ONE_SHOT, TWO_SHOT, GATHER, FLASHINFER, LOW_LATENCY, DEFAULT)
EVERYWHERE = (HOST, "torch_distributed")
MODES = ("auto", "fastest")


def backend_names() -> tuple[str, ...]:
    """Every name that --collectives takes besides its modes."""
    return (*CUDA_BACKENDS, *EVERYWHERE, *plugin_names())


def check_collectives(name: str) -> None:
    """Raises InvalidOption for what --collectives does not take."""
    known = (*MODES, *backend_names())
    if name not in known:
        raise InvalidOption(f"--collectives is {name!r}; expected one of {', '.join(known)}")


def build_backends(segment: Segment, context: CommunicatorContext) -> tuple[Backend, ...]:
    """Nothing is connected yet. shared_memory is always among them: ranks agree on numbers of the host through it."""
    shared = SharedMemoryBackend(segment, context.rank, context.timeout_s)
    last = TorchDistributedBackend(context.groups, context.device)
    own: Iterable[Backend] = ()
    if context.device == "cuda":
        # This rank's environment, proven to be the planned one before this is called.
        own = (
            PeerPushBackend(context.groups),
            *symmetric_backends(context.groups),
            FlashInferPcieBackend(context.groups),
            *nccl_backends(context.groups, inherited()),
        )
    apart = (ApartBackend(_enter),) if context.device == "cuda" else ()
    return (*own, *load_plugins(context), shared, last, *apart)


def _enter(x_RH: Tensor, norm: Norm) -> Stream:
    from alula.kernels.gpu.stream import enter

    return enter(x_RH, norm)
