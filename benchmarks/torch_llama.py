"""What plain PyTorch takes for one decode step of a shape, eagerly and in a CUDA graph: the comparison beside alula.

    python benchmarks/torch_llama.py [--shape NAME|CONFIG.json] [--kv-tokens N] [--json FILE]

The step is what one would write without writing kernels: F.linear with joined projections, F.rms_norm, rotary
positions, scaled_dot_product_attention over a static cache of just the right length (so without a mask), argmax, all at
batch 1. Every choice is the one that favours PyTorch. Random weights, those of `alula bench --shape`.

D head dimension, H hidden, L cached tokens, M MLP width, N heads, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from alula.core.shape import ModelShape, parse_shape
from alula.models.random_checkpoint import random_tensor, tensor_shapes
from alula.models.source import resolve_shape
from alula.plan.work import floor_ms, target_forward

REPEATS, WARM_UP = 50, 5
BANDWIDTH_BYTES_PER_S = 4.3e12  # of an H200, for the floor that is printed


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer and its static cache, keys and values [1, N_kv, L, D]."""

    norm_H: Tensor
    qkv: Tensor
    output_HH: Tensor
    mlp_norm_H: Tensor
    gate_up: Tensor
    down_HM: Tensor
    keys: Tensor
    values: Tensor


class TorchLlama:
    """A decoder without biases. One step reads `token_1` at `position_1`, and leaves its successor in `token_1`."""

    def __init__(self, shape: ModelShape, kv_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        if shape.attention_bias or shape.mlp_bias:
            raise ValueError("a shape with biases; this comparison has none")
        self.shape = shape
        sizes = tensor_shapes(shape)
        with torch.device(device):
            self.token_1 = torch.zeros(1, dtype=torch.int64)
            self.position_1 = torch.zeros(1, dtype=torch.int64)
            self._cos_LD, self._sin_LD = _rotary(self.shape, kv_tokens + 1, dtype)

        def take(*names: str) -> Tensor:
            weights = [f"{name}.weight" for name in names]
            return torch.cat([random_tensor(name, sizes[name], 0, dtype, device) for name in weights])

        self._embedding_VH = take("model.embed_tokens")
        self._layers = [_layer(self.shape, index, take, kv_tokens + 1) for index in range(self.shape.num_layers)]
        self._norm_H = take("model.norm")
        self._head_VH = self._embedding_VH if self.shape.tied_embeddings else take("lm_head")
        self.seek(kv_tokens)

    def seek(self, position: int) -> None:
        """The next step reads its token there, and attends to everything up to it."""
        self.position_1.fill_(position)
        self._num_attended = position + 1

    def step(self) -> Tensor:
        """One decode step; logits [1, V]."""
        shape = self.shape
        cos_1D, sin_1D = self._cos_LD[self.position_1], self._sin_LD[self.position_1]
        x_1H = F.embedding(self.token_1, self._embedding_VH)
        for layer in self._layers:
            normed_1H = F.rms_norm(x_1H, (shape.hidden_size,), layer.norm_H, shape.rms_norm_eps)
            x_1H = x_1H + self._attention(layer, normed_1H, cos_1D, sin_1D)
            normed_1H = F.rms_norm(x_1H, (shape.hidden_size,), layer.mlp_norm_H, shape.rms_norm_eps)
            gate_1M, up_1M = F.linear(normed_1H, layer.gate_up).chunk(2, dim=-1)
            x_1H = x_1H + F.linear(F.silu(gate_1M) * up_1M, layer.down_HM)
        normed_1H = F.rms_norm(x_1H, (shape.hidden_size,), self._norm_H, shape.rms_norm_eps)
        logits_1V = F.linear(normed_1H, self._head_VH)
        self.token_1.copy_(logits_1V.argmax(dim=-1))
        return logits_1V

    def _attention(self, layer: Layer, x_1H: Tensor, cos_1D: Tensor, sin_1D: Tensor) -> Tensor:
        shape = self.shape
        sizes = [shape.num_heads * shape.head_dim, *[shape.num_kv_heads * shape.head_dim] * 2]
        query, key, value = (
            part.view(1, 1, -1, shape.head_dim).transpose(1, 2)
            for part in F.linear(x_1H, layer.qkv).split(sizes, -1)
        )
        layer.keys.index_copy_(2, self.position_1, _rotate(key, cos_1D, sin_1D))
        layer.values.index_copy_(2, self.position_1, value)
        attended = F.scaled_dot_product_attention(
            _rotate(query, cos_1D, sin_1D),
            layer.keys[:, :, : self._num_attended],
            layer.values[:, :, : self._num_attended],
            enable_gqa=shape.num_heads != shape.num_kv_heads,
        )
        return F.linear(attended.transpose(1, 2).reshape(1, -1), layer.output_HH)


def time_plain_pytorch(
    shape: ModelShape, kv_tokens: int, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> dict[str, float | None]:
    """{"graph_ms", "eager_ms"}: medians of a step behind `kv_tokens` cached tokens. graph_ms is None without CUDA."""
    with torch.inference_mode():
        model = TorchLlama(shape, kv_tokens, device, dtype)
        if device.type != "cuda":
            return {"graph_ms": None, "eager_ms": _median_ms_cpu(model.step)}
        eager_ms = _median_ms_cuda(model.step)
        return {"graph_ms": _median_ms_cuda(_captured(model.step)), "eager_ms": eager_ms}


def _captured(step: Callable[[], Any]) -> Callable[[], None]:
    """The step as a graph, after warm-ups on a stream of their own, as PyTorch's manual asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _median_ms_cuda(call: Callable[[], Any]) -> float:
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def _median_ms_cpu(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(WARM_UP):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def _layer(shape: ModelShape, index: int, take: Callable[..., Tensor], num_cached: int) -> Layer:
    attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    qkv = take(*(f"{attention}.{name}_proj" for name in "qkv"))
    keys, values = (qkv.new_zeros(1, shape.num_kv_heads, num_cached, shape.head_dim) for _ in range(2))
    return Layer(
        norm_H=take(f"model.layers.{index}.input_layernorm"),
        qkv=qkv,
        output_HH=take(f"{attention}.o_proj"),
        mlp_norm_H=take(f"model.layers.{index}.post_attention_layernorm"),
        gate_up=take(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down_HM=take(f"{mlp}.down_proj"),
        keys=keys,
        values=values,
    )


def _rotary(shape: ModelShape, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, D]; scalings of the frequencies are left out, since they cost nothing in a step."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles_LD = torch.outer(torch.arange(num_positions).float(), frequencies).repeat(1, 2)
    return angles_LD.cos().to(dtype), angles_LD.sin().to(dtype)


def _rotate(x: Tensor, cos_1D: Tensor, sin_1D: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos_1D + torch.cat((-second, first), dim=-1) * sin_1D


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama-3.1-8b", metavar="NAME|CONFIG.json")
    parser.add_argument("--kv-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    shape = parse_shape(resolve_shape(options.shape).shape_config or {})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {
        "shape": options.shape,
        "kv_tokens": options.kv_tokens,
        "torch": torch.__version__,
        **time_plain_pytorch(shape, options.kv_tokens, device),
    }
    if device.type == "cuda":
        work = target_forward(shape, kv_tokens=options.kv_tokens)
        result["device"] = torch.cuda.get_device_name()
        result["floor_ms"] = floor_ms(work.num_bytes, BANDWIDTH_BYTES_PER_S)
        result["graph_over_floor"] = result["graph_ms"] / result["floor_ms"]
    print(json.dumps(result, indent=1))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
