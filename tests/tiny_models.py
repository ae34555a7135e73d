"""Tiny random checkpoints of the Llama family, written by transformers, with a byte-level tokenizer, and heads.

Every folder is written once a process and removed at its end. Norm weights and biases are random too, since ones and
zeros would hide a forgotten product or sum. The vocabulary (307 tokens) is a prime, so no number of ranks divides it,
and larger than the tokenizer's.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VOCAB_SIZE = 307
BOS, EOS, IM_START, IM_END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (BOS, EOS, IM_START, IM_END)  # ids 0 to 3
BOS_ID, EOS_ID = 0, 1
NUM_TEXT_TOKENS = 300
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TRAINING_TEXT = "The sky is blue because air scatters blue light more than red light. The sea is blue too."

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 200.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_COMMON = {"num_hidden_layers": 4, "max_position_embeddings": 640, "rms_norm_eps": 1e-5}

# Sizes of each family. GQA groups of 1, 3 and 4; sizes that are no powers of two; head_dim apart from hidden / heads.
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4},
    "group3_tied": {
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "group4_llama3": {
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "rope_parameters": _LLAMA3_ROPE,
    },
    "linear_rope": {
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    },
    "biases": {
        "hidden_size": 56,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {
        "architecture": "MistralForCausalLM",
        "hidden_size": 60,
        "intermediate_size": 88,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "sliding_window": None,
    },
    # The head dimension and query group of Llama 3.1 8B: kernels choose by such sizes.
    "wide_heads": {
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
    },
    # For tensor parallelism over 2 and 4 ranks; the MLP's width divides by neither 3 nor 4.
    "eight_heads": {
        "hidden_size": 64,
        "intermediate_size": 98,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
    },
}


@functools.cache
def checkpoint(family: str = "plain", dtype: torch.dtype = torch.float32) -> Path:
    """The folder of a checkpoint of that family."""
    folder = _folder() / f"{family}-{str(dtype).removeprefix('torch.')}"
    if folder.exists():  # asked for with other defaults spelt out
        return folder
    model = _random_model(family)
    model.to(dtype).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@functools.cache
def reference(family: str = "plain") -> Any:
    """transformers' model of `checkpoint(family)`, in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint(family), dtype=torch.float32).eval()


def reference_logits(family: str, ids: list[int]) -> torch.Tensor:
    """transformers' logits of every position, [T, V]."""
    with torch.no_grad():
        return reference(family)(torch.tensor([ids])).logits[0]


@functools.cache
def head(family: str = "plain", kind: str = "bigram") -> Path:
    """The folder of an EAGLE-3 head for `checkpoint(family)`, in SpecForge's form, reading boundaries 1, 2 and 3.

    "bigram" passes the last token's embedding on to the target's own output head: untied targets lean on their last
    token here, so it is right now and then. "random" knows nothing.
    """
    folder = _folder() / f"{family}-head-{kind}"
    if folder.exists():
        return folder
    target = checkpoint(family)
    config = json.loads((target / "config.json").read_text())
    folder.mkdir()
    head_config = _head_config(config)
    tensors = _head_tensors(head_config)
    if kind == "bigram":
        _copy_the_bigrams(tensors, load_file(target / "model.safetensors"), head_config)
    (folder / "config.json").write_text(json.dumps(head_config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def copy_with(folder: Path, change: dict[str, torch.Tensor], to: Path) -> Path:
    """A copy of a checkpoint or head in which some tensors are replaced."""
    shutil.copytree(folder, to)
    tensors = load_file(folder / "model.safetensors")
    assert change.keys() <= tensors.keys(), change.keys() - tensors.keys()
    save_file({**tensors, **change}, to / "model.safetensors", metadata={"format": "pt"})
    return to


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json: 256 bytes, four special tokens, a few merges, a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TEXT_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TRAINING_TEXT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Token ids without special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL_TOKENS), VOCAB_SIZE, (count,), generator=generator).tolist()


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="alula-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _random_model(family: str) -> Any:
    import transformers

    sizes = {**_COMMON, **FAMILIES[family]}
    architecture = sizes.pop("architecture", "LlamaForCausalLM")
    config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    config = config_class(
        vocab_size=VOCAB_SIZE, bos_token_id=BOS_ID, eos_token_id=EOS_ID, initializer_range=0.15, **sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, family)))
        model = getattr(transformers, architecture)(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.normal_(0.0, 0.1)
                elif "embed_tokens" in name and not config.tie_word_embeddings:
                    parameter.mul_(5.0)
                elif name.endswith(("o_proj.weight", "down_proj.weight")):
                    # Tied, a target that leans on its last token would only repeat it.
                    parameter.mul_(0.5 if config.tie_word_embeddings else 0.08)
    return model


def _head_config(target: dict[str, Any]) -> dict[str, Any]:
    hidden_size = target["hidden_size"]
    num_heads = 4 if hidden_size % 8 == 0 else 2
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        "hidden_size": hidden_size,
        "intermediate_size": 50,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "num_hidden_layers": 1,
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": 2 * target["vocab_size"] // 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
    }


def _head_tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    size, width, draft_vocab = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(shape, generator=generator)

    # Two of every three target tokens: 0, 1, 3, 4, 6, 7, ...
    hot = torch.tensor([token for token in range(config["vocab_size"]) if token % 3 != 2][:draft_vocab])
    is_hot = torch.zeros(config["vocab_size"], dtype=torch.bool)
    is_hot[hot] = True
    layer = "midlayer"
    return {
        "fc.weight": normal(size, 3 * size),
        f"{layer}.input_layernorm.weight": 1 + normal(size),
        f"{layer}.hidden_norm.weight": 1 + normal(size),
        f"{layer}.post_attention_layernorm.weight": 1 + normal(size),
        f"{layer}.self_attn.q_proj.weight": normal(query, 2 * size),
        f"{layer}.self_attn.k_proj.weight": normal(query, 2 * size),
        f"{layer}.self_attn.v_proj.weight": normal(query, 2 * size),
        f"{layer}.self_attn.o_proj.weight": normal(size, query),
        f"{layer}.mlp.gate_proj.weight": normal(width, size),
        f"{layer}.mlp.up_proj.weight": normal(width, size),
        f"{layer}.mlp.down_proj.weight": normal(size, width),
        "norm.weight": 1 + normal(size),
        "lm_head.weight": normal(draft_vocab, size),
        "d2t": hot - torch.arange(draft_vocab),
        "t2d": is_hot,
    }


def _copy_the_bigrams(
    tensors: dict[str, torch.Tensor], target: dict[str, torch.Tensor], config: dict[str, Any]
) -> None:
    """Attention that sees little but its own position, values that are the last token's embedding, output as the
    target's."""
    size = config["hidden_size"]
    layer = "midlayer"
    hot = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    tensors[f"{layer}.input_layernorm.weight"] = torch.ones(size)
    tensors[f"{layer}.self_attn.q_proj.weight"] = tensors[f"{layer}.self_attn.k_proj.weight"].mul(5.0)
    tensors[f"{layer}.self_attn.q_proj.weight"][:, size:] = 0.0
    tensors[f"{layer}.self_attn.k_proj.weight"] = tensors[f"{layer}.self_attn.q_proj.weight"].clone()
    tensors[f"{layer}.self_attn.v_proj.weight"] = torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1)
    tensors[f"{layer}.self_attn.o_proj.weight"] = 4.0 * torch.eye(size)
    tensors["norm.weight"] = target["model.norm.weight"].clone()
    tensors["lm_head.weight"] = target.get("lm_head.weight", target["model.embed_tokens.weight"])[hot].contiguous()
