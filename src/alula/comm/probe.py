"""Whether a backend does what it says: random data against sums in float64, eager and captured, the same bits on all.

Part of a backend's admission (DESIGN 4.3): what fails here is refused with the reason, whatever it admits. Every rank
knows every rank's data, so that nothing but the verdict has to be exchanged; that goes over the host's shared memory,
which waits with a deadline. A GPU kernel that never ends can only be ended with its process: hence probes of peer
memory run in child processes (engine/comm_trial.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from alula.comm.backends.protocol import SUM_ONTO, Backend, admission
from alula.comm.call import CollectiveCall
from alula.comm.capture import is_capturable
from alula.comm.device_deadline import wait_for
from alula.core.errors import RankFailure
from alula.kernels.reference.fused import Norm, Stream

_REASON_BYTES = 512
# Relative error of one rounding.
_UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a probe or a timing runs: this rank, the device, and the host's channel between ranks."""

    rank: int
    num_ranks: int
    device: str
    host: Any  # a Backend that takes tensors of the CPU
    peers: Any = None  # who is waited for (comm/patience.py)

    def settle(self) -> None:
        """Until all that was launched has run. Raises RankFailure where other ranks keep it from that."""
        if self.device == "cuda":
            event = torch.cuda.Event()
            event.record()
            wait_for(event, self.peers, "probe of collectives")


def probe(backend: Backend, calls: Sequence[CollectiveCall], place: Place) -> str | None:
    """Why the backend must not be used, the same text on every rank; None where every call came out right.

    A collective. Raises RankFailure where ranks do not come."""
    for call in (call for call in calls if admission(backend, call).admitted):
        for captured in (False, True) if place.device == "cuda" and is_capturable(backend) else (False,):
            reason = _agreed(_probe_once(backend, call, place, captured), place)
            if reason is not None:
                return reason
    return None


def _probe_once(backend: Backend, call: CollectiveCall, place: Place, captured: bool) -> tuple[str | None, bytes]:
    """(what is wrong here, digest of this rank's bits)."""
    how = "captured in a graph" if captured else "eager"
    what = f"{call.op} of {call.num_bytes} bytes of {call.dtype}, {how}"
    try:
        result = (_captured if captured else _eager)(backend, call, place)
    except RankFailure:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is its refusal
        return f"{what}: {type(error).__name__}: {error}", b""
    wrong = find_error(result, call, place.num_ranks)
    return None if wrong is None else f"{what}: {wrong}", _digest(result)


def _eager(backend: Backend, call: CollectiveCall, place: Place) -> Tensor:
    result = run_call(backend, call, probe_input(call, place.rank).to(place.device))
    place.settle()
    return result.cpu()


def _captured(backend: Backend, call: CollectiveCall, place: Place) -> Tensor:
    """A replay with other data than at the capture: a graph that kept a value of then would show."""
    values = probe_input(call, place.rank).to(place.device)
    x = torch.zeros_like(values)
    run_call(backend, call, x.clone())
    place.settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = run_call(backend, call, x.clone())
    graph.replay()
    x.copy_(values)
    graph.replay()
    place.settle()
    return result.cpu()


def run_call(backend: Backend, call: CollectiveCall, x: Tensor) -> Tensor:
    """The operation on x, with rank 0 as a broadcast's root."""
    if call.op == "all_reduce":
        return backend.all_reduce(x)
    if call.op == SUM_ONTO:
        return run_sum_onto(backend, x)
    return backend.all_gather(x, -1) if call.op == "all_gather" else backend.broadcast(x, 0)


def probe_input(call: CollectiveCall, rank: int) -> Tensor:
    """A rank's data for a call: the same in every process."""
    dtype: torch.dtype = getattr(torch, call.dtype)
    generator = torch.Generator().manual_seed(call.num_bytes * 64 + rank)
    values = torch.randn(call.num_bytes // dtype.itemsize, generator=generator).to(dtype)
    return values.view(call.num_rows, -1)


def run_sum_onto(backend: Any, x: Tensor) -> Tensor:
    """The new stream, then it times the norm's weight, then its mean square in one column, side by side: the sum of
    squares is more than fp16 can hold."""
    stream: Stream = backend.sum_onto(x, residual_of(x), norm_of(x))
    assert stream.normed.squares_RC is not None
    squares_R1 = (stream.normed.squares_RC.sum(-1, keepdim=True) / x.shape[1]).to(x.dtype)
    return torch.cat((stream.x_RH, stream.normed.value_RI, squares_R1), -1)


def residual_of(x: Tensor) -> Tensor:
    """A residual stream that every rank holds alike."""
    return torch.arange(x.numel(), device=x.device).remainder(31).sub(15).to(x.dtype).view(x.shape)


def norm_of(x: Tensor) -> Norm:
    return Norm(torch.arange(x.shape[1], device=x.device).remainder(7).add(1).to(x.dtype), 1e-5)


def find_error(result: Tensor, call: CollectiveCall, num_ranks: int) -> str | None:
    """What is wrong with a result; None where it is right within the dtype's rounding.

    A sum of n numbers, rounded after each addition, is off by at most (n - 1) units of the sum of their sizes."""
    inputs = [probe_input(call, rank) for rank in range(num_ranks)]
    if call.op == SUM_ONTO:
        return _sum_onto_error(result, call, inputs)
    if call.op != "all_reduce":
        expected = torch.cat(inputs, -1) if call.op == "all_gather" else inputs[0]
        return None if torch.equal(result, expected) else "gave other values than the ranks sent"
    exact = torch.stack([x.to(torch.float64) for x in inputs])
    bound = (num_ranks - 1) * _UNITS[call.dtype] * exact.abs().sum(0) + torch.finfo(torch.float32).tiny
    error = (result.to(torch.float64) - exact.sum(0)).abs()
    if bool((error <= bound).all()):
        return None
    place = int((error - bound).nan_to_num(nan=float("inf")).argmax())
    found, due, limit = (float(x.flatten()[place]) for x in (result, exact.sum(0), bound))
    return f"gave wrong sums: {found} at element {place}, where {due:.6g} was due within {limit:.2g}"


def _sum_onto_error(result: Tensor, call: CollectiveCall, inputs: list[Tensor]) -> str | None:
    """Against float64 with room for the roundings on the way: of the sum, of the stream, of what is made of it."""
    exact = torch.stack([x.to(torch.float64) for x in inputs]).sum(0) + residual_of(inputs[0]).to(torch.float64)
    weight = norm_of(inputs[0]).weight_H.to(torch.float64)
    expected = torch.cat((exact, exact * weight, exact.square().mean(-1, keepdim=True)), -1)
    unit = (call.num_ranks + 3) * _UNITS[call.dtype]
    if torch.allclose(result.to(torch.float64), expected, rtol=2 * unit, atol=64 * unit):
        return None
    error = (result.to(torch.float64) - expected).abs().max()
    return f"gave a wrong stream: off by {float(error):.3g}"


def _agreed(found: tuple[str | None, bytes], place: Place) -> str | None:
    """The first rank's reason, or that the ranks hold different bits. A collective of the host."""
    reason, digest = found
    words = (reason or "").encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0") + digest.ljust(32, b"\0")
    gathered = place.host.all_gather(torch.frombuffer(bytearray(words), dtype=torch.uint8), 0)
    lines = [bytes(line.tolist()) for line in gathered.view(place.num_ranks, -1)]
    for line in lines:
        if text := line[:_REASON_BYTES].rstrip(b"\0").decode(errors="replace"):
            return text
    if len(set(lines)) > 1:
        return "the ranks hold different bits after the same call"
    return None


def agree(wanted: Callable[[], None], place: Place) -> str | None:
    """Runs something on every rank -> why it failed in the first that it failed in, the same on all."""
    reason = None
    try:
        wanted()
    except Exception as error:  # noqa: BLE001 - as in a probe
        reason = f"{type(error).__name__}: {error}"
    return _agreed((reason, b""), place)


def _digest(x: Tensor) -> bytes:
    return hashlib.blake2b(x.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=32).digest()
