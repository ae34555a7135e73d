"""GGUF files as checkpoints: every quantisation, row order, config, rope factors, and what is refused."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from gguf_samples import KV_HEADS, Sample, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import CheckpointError, UnsupportedModel, UserError
from alula.core.shape import parse_shape
from alula.models import gguf_checkpoint
from alula.models.gguf_checkpoint import GgufCheckpoint, is_readable
from alula.models.source import resolve_source

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
WIDE_KINDS = ["TQ1_0", "TQ2_0"]  # blocks of 256
UNWRITABLE_KINDS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "MXFP4"]
# Of SmolLM2-135M-Instruct's 272 tensors, rounded to bfloat16 and taken in the order of their names: transformers
# 5.24's own load of the same file gives the same bytes.
REAL_SHA256 = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec"


def _open(tmp_path: Path, sample: Sample | None = None) -> tuple[GgufCheckpoint, dict[str, np.ndarray]]:
    path = tmp_path / "tiny.gguf"
    weights = write_gguf(path, sample)
    return GgufCheckpoint(path), weights


@pytest.mark.parametrize("kind", [*KINDS, *WIDE_KINDS])
def test_every_tensor_comes_back_in_hugging_face_order(tmp_path: Path, kind: str) -> None:
    ggml = GGMLQuantizationType[kind]
    width, head_dim = (256, 64) if kind in WIDE_KINDS else (64, 16)
    checkpoint, weights = _open(tmp_path, Sample(kind=ggml, width=width, head_dim=head_dim, tied=False))
    assert checkpoint.names() == frozenset(weights)
    for name, original in weights.items():
        expected = original if original.ndim == 1 else dequantize(quantize(original, ggml), ggml)
        found = checkpoint.read(name)
        assert checkpoint.shape(name) == tuple(found.shape) == original.shape
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy(), expected), name


@pytest.mark.parametrize("kind", UNWRITABLE_KINDS)
def test_kinds_that_only_llama_cpp_writes_are_read_block_by_block(kind: str) -> None:
    ggml = GGMLQuantizationType[kind]
    block_bytes = GGML_QUANT_SIZES[ggml][1]
    stored = np.random.default_rng(1).integers(0, 256, (96, 2 * block_bytes), np.uint8)
    assert is_readable(ggml)
    with np.errstate(all="ignore"):
        expected = np.stack([dequantize(row[None], ggml)[0] for row in stored])
    found = gguf_checkpoint._dequantise(stored.reshape(-1), ggml, 96).reshape(96, -1)
    assert np.array_equal(found, expected, equal_nan=True)


@given(start=st.integers(0, 32), length=st.integers(0, 32))
def test_rows_are_the_rows_of_the_whole(start: int, length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rows")
    checkpoint, _ = _open(folder, Sample(kind=GGMLQuantizationType.Q8_0, bias=True))
    for part in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias"):
        name = f"model.layers.1.self_attn.{part}"
        stop = min(start + length, checkpoint.shape(name)[0])
        rows = checkpoint.read_rows(name, start, stop)
        assert torch.equal(rows, checkpoint.read(name)[start:stop])
        assert rows.is_contiguous()


def test_reads_are_independent_of_each_other_and_of_the_file(tmp_path: Path) -> None:
    checkpoint, weights = _open(tmp_path)
    for name in (
        "model.norm.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
    ):
        checkpoint.read(name).zero_()
        assert np.array_equal(checkpoint.read(name).numpy(), weights[name])


def test_config_is_what_hugging_face_would_write(tmp_path: Path) -> None:
    checkpoint, weights = _open(tmp_path)
    shape = parse_shape(checkpoint.config)
    assert (shape.hidden_size, shape.intermediate_size, shape.num_layers) == (64, 128, 2)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (4, KV_HEADS, 16)
    assert (shape.rms_norm_eps, shape.rope_theta, shape.rope_scaling) == (1e-5, 10000.0, None)
    assert shape.vocab_size == weights["model.embed_tokens.weight"].shape[0]
    assert (shape.max_position, shape.tied_embeddings, shape.attention_bias) == (128, True, False)
    assert checkpoint.config["torch_dtype"] == "float32"
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert checkpoint.description == "tiny.gguf (GGUF, F32 x20)"


def test_untied_and_biased_models_say_so(tmp_path: Path) -> None:
    checkpoint, _ = _open(tmp_path, Sample(kind=GGMLQuantizationType.Q4_0, tied=False, bias=True))
    shape = parse_shape(checkpoint.config)
    assert (shape.tied_embeddings, shape.attention_bias) == (False, True)
    assert checkpoint.config["torch_dtype"] == "bfloat16"
    assert checkpoint.description == "tiny.gguf (GGUF, Q4_0 x16, F32 x13, dequantised)"


def test_the_config_loads_in_transformers_with_the_same_logits(tmp_path: Path) -> None:
    """Row order, names and config together: transformers computes the same from both sets of weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint, weights = _open(tmp_path, Sample(tied=False))
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    ids = torch.arange(3, 13)[None]
    logits = []
    for state in ({name: checkpoint.read(name) for name in checkpoint.names()}, weights):
        model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()}, strict=True)
        with torch.no_grad():
            logits.append(model(ids).logits)
    assert torch.equal(*logits)


def test_every_token_that_ends_an_answer_is_listed(tmp_path: Path) -> None:
    tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "a", "b"]
    vocabulary = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": None,
        "tokenizer.ggml.eot_token_id": 2,
    }
    checkpoint, _ = _open(tmp_path, Sample(metadata=vocabulary))
    assert checkpoint.generation_config["eos_token_id"] == [1, 2, 3]


def _published_factors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """Llama 3.1's published rule, one frequency at a time."""
    factors = []
    for index in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * index / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama_3_scaling_is_recovered_from_its_factors(tmp_path: Path, factor: float, head_dim: int) -> None:
    factors = _published_factors(500000.0, head_dim, factor)
    sample = Sample(
        head_dim=head_dim, metadata={"llama.rope.freq_base": 500000.0}, extra={"rope_freqs.weight": factors}
    )
    checkpoint, _ = _open(tmp_path, sample)
    assert "rope_freqs.weight" not in checkpoint.names()
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaling = parse_shape(checkpoint.config).rope_scaling
    assert scaling is not None and (scaling.kind, scaling.factor) == ("llama3", factor)


def test_factors_of_one_scale_nothing(tmp_path: Path) -> None:
    checkpoint, _ = _open(tmp_path, Sample(extra={"rope_freqs.weight": np.ones(8, np.float32)}))
    assert checkpoint.config["rope_scaling"] is None


def _bad_factors(change: str) -> np.ndarray:
    factors = _published_factors(500000.0, 16, 8.0)
    if change == "one off by 0.5 %":
        factors[-2] *= 1.005
    elif change == "too few":
        return factors[:-1]
    else:
        factors[0] = math.nan
    return factors


@pytest.mark.parametrize("change", ["one off by 0.5 %", "too few", "not a number"])
def test_factors_that_no_published_scaling_makes_are_refused(tmp_path: Path, change: str) -> None:
    sample = Sample(metadata={"llama.rope.freq_base": 500000.0}, extra={"rope_freqs.weight": _bad_factors(change)})
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight"):
        _open(tmp_path, sample)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scale_linear": 2.0}, 2.0),
        ({"llama.rope.scaling.type": "linear"}, None),
    ],
)
def test_linear_scaling(tmp_path: Path, metadata: dict[str, Any], expected: float | None) -> None:
    checkpoint, _ = _open(tmp_path, Sample(metadata=metadata))
    scaling = parse_shape(checkpoint.config).rope_scaling
    assert (scaling.factor if scaling else None) == expected


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Sample(architecture="qwen2"), "architecture 'qwen2'; alula reads 'llama'"),
        (Sample(metadata={"llama.expert_count": 8}), "llama.expert_count is 8"),
        (Sample(metadata={"split.count": 3}), "llama-gguf-split --merge"),
        (Sample(metadata={"llama.rope.scaling.type": "yarn"}), "rope scaling 'yarn'"),
        (Sample(metadata={"llama.rope.dimension_count": 8}), "rope.dimension_count is 8 where a head has 16"),
        (Sample(metadata={"llama.attention.head_count_kv": [2, 1]}), "head_count_kv differs between layers"),
        (
            Sample(extra={"blk.0.ffn_gate_exps.weight": np.ones((2, 2), np.float32)}),
            "ffn_gate_exps.weight.*no place",
        ),
        (Sample(extra={"blk.0.attn_q.weight.more": np.ones(2, np.float32)}), "no place"),
        (Sample(extra={"output.weight": np.ones((4, 4), np.int32)}), "stored as I32; alula reads F32, F16, Q4_0"),
    ],
)
def test_what_alula_does_not_run_is_named(tmp_path: Path, sample: Sample, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        _open(tmp_path, sample)
    assert str(tmp_path / "tiny.gguf") in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.block_count": None}, "no metadata 'llama.block_count'"),
        ({"llama.block_count": 0}, "llama.block_count is 0; expected a positive"),
        ({"llama.embedding_length": "many"}, "'llama.embedding_length' is 'many'; expected a whole number"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999, but the vocabulary has"),
        (
            {"tokenizer.ggml.tokens": [f"t{i}" for i in range(999)]},
            "has 999 tokens, but the embedding only 267 rows",
        ),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        _open(tmp_path, Sample(metadata=metadata))


def test_heads_that_do_not_fit_the_rows_are_refused_when_read(tmp_path: Path) -> None:
    checkpoint, _ = _open(tmp_path, Sample(metadata={"llama.attention.head_count": 3}))
    with pytest.raises(CheckpointError, match=r"attn_q.weight' has 64 rows; expected 3 heads of 16"):
        checkpoint.read("model.layers.0.self_attn.q_proj.weight")


def test_absent_tensors_and_rows_are_refused(tmp_path: Path) -> None:
    checkpoint, _ = _open(tmp_path)
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head.weight'; it has 20 tensors"):
        checkpoint.read("lm_head.weight")
    with pytest.raises(CheckpointError, match=r"rows 5 to 65 of 'model.norm.weight' were asked for; it has 64"):
        checkpoint.read_rows("model.norm.weight", 5, 65)


def _real() -> GgufCheckpoint:
    try:
        return GgufCheckpoint(resolve_source("smollm2-135m").path)
    except UserError as error:
        pytest.skip(f"the built-in model is not here: {error}")


def test_the_real_model_is_what_transformers_reads() -> None:
    checkpoint = _real()
    names = sorted(checkpoint.names())
    assert len(names) == 272
    assert (
        checkpoint.description == "SmolLM2-135M-Instruct.Q4_1.gguf (GGUF, Q4_1 x210, F32 x61, Q8_0 x1, dequantised)"
    )
    digest = hashlib.sha256()
    for name in names:
        digest.update(checkpoint.read(name).to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    assert digest.hexdigest() == REAL_SHA256


def test_real_q4_1_blocks_against_the_format_itself() -> None:
    """32 weights a block: a float16 scale, a float16 minimum, 16 bytes of low then high nibbles."""
    checkpoint = _real()
    tensor = checkpoint.file.tensors["blk.7.attn_v.weight"]
    blocks = checkpoint.file.raw(tensor).reshape(-1, 20)
    scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, None]
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    expected = (nibbles * scale + minimum).reshape(tensor.shape)
    assert np.array_equal(checkpoint.read("model.layers.7.self_attn.v_proj.weight").numpy(), expected)


@pytest.mark.acceptance
def test_the_real_model_answers_in_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = _real()
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    state = {name: checkpoint.read(name) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    from alula.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_source("smollm2-135m"), checkpoint)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
    assert tokenizer.decode(answer.tolist()) == "The capital of France is Paris."
