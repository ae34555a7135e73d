"""Configs of published heads: which boundaries, sizes and options each form means, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import CheckpointError, HeadMismatch, UnsupportedModel, UserError
from alula.core.shape import ModelShape
from alula.spec.head_config import EAGLE, SPECFORGE, SPECULATORS, HeadConfig, parse_head_config, settle


def target(num_layers: int = 32, hidden_size: int = 4096, vocab_size: int = 128256) -> ModelShape:
    return ModelShape(
        architecture="LlamaForCausalLM",
        hidden_size=hidden_size,
        intermediate_size=14336,
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=vocab_size,
        max_position=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
    )


LAYER: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
EAGLE_FORM = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "draft_vocab_size": 32000, **LAYER}
SPECFORGE_FORM = {**EAGLE_FORM, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {}}
SPECULATORS_FORM: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.4.0",
    "draft_vocab_size": 32000,
    "target_hidden_size": 4096,
    "norm_before_residual": True,
    "transformer_layer_config": {"model_type": "llama", "head_dim": 128, "rope_theta": 500000.0, **LAYER},
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "architectures": ["LlamaForCausalLM"]},
    },
}


def read(
    config: dict[str, Any],
    shape: ModelShape | None = None,
    boundaries: tuple[int, ...] | None = None,
    feedback: str | None = None,
) -> HeadConfig:
    """As the loader does: parse, then let the caller's word win, then check."""
    shape = shape or target()
    return settle(parse_head_config(config, shape), boundaries, feedback, shape)


def specforge_ids(*ids: int, **fields: Any) -> dict[str, Any]:
    return {**SPECFORGE_FORM, "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}, **fields}


# The rows of specs/eagle3.md 1.1 that apply to a dense target, in their order.
BOUNDARY_ROWS = [
    ("EAGLE has no key", EAGLE_FORM, 32, (2, 16, 29)),
    ("EAGLE has no key, 80 layers", EAGLE_FORM, 80, (2, 40, 77)),
    ("SpecForge ids are outputs", specforge_ids(1, 15, 28), 32, (2, 16, 29)),
    ("SpecForge ids need not start with 1", specforge_ids(2, 30, 58), 61, (3, 31, 59)),
    ("SpecForge without ids", SPECFORGE_FORM, 32, (2, 16, 29)),
    ("SpecForge, ids null", {**SPECFORGE_FORM, "eagle_config": None}, 32, (2, 16, 29)),
    (
        "speculators ids are inputs",
        {**SPECULATORS_FORM, "eagle_aux_hidden_state_layer_ids": [2, 16, 29]},
        32,
        (2, 16, 29),
    ),
    ("speculators without ids", SPECULATORS_FORM, 32, (2, 16, 29)),
    (
        "a top-level key, as vLLM reads it",
        {**EAGLE_FORM, "eagle_aux_hidden_state_layer_ids": [3, 17, 30]},
        32,
        (3, 17, 30),
    ),
    ("an id that can only be the last layer's output", specforge_ids(24, 30, 36), 36, (24, 30, 36)),
    ("the same numbers in a deeper target", specforge_ids(24, 30, 36), 40, (25, 31, 37)),
    ("default of another depth", specforge_ids(1, 17, 32), 36, (2, 18, 33)),
    ("one auxiliary layer", specforge_ids(15), 32, (16,)),
    ("five auxiliary layers", specforge_ids(0, 7, 15, 23, 31), 32, (1, 8, 16, 24, 32)),
]


@pytest.mark.parametrize(
    ("config", "num_layers", "expected"), [row[1:] for row in BOUNDARY_ROWS], ids=[row[0] for row in BOUNDARY_ROWS]
)
def test_boundaries(config: dict[str, Any], num_layers: int, expected: tuple[int, ...]) -> None:
    found = read(config, target(num_layers))
    assert found.boundaries == expected
    assert found.num_features == len(expected) * 4096


def test_no_aux_hidden_state_means_the_final_hidden_state_alone() -> None:
    found = read({**SPECFORGE_FORM, "eagle_config": {"use_aux_hidden_state": False}})
    assert found.boundaries == ()
    assert found.num_features == 4096


def test_the_caller_wins_over_the_file() -> None:
    found = read(specforge_ids(1, 15, 28, norm_output=True), None, (1, 15, 28), "pre")
    assert (found.boundaries, found.feedback) == ((1, 15, 28), "pre")
    assert read(EAGLE_FORM, None, None, "post").feedback == "post"


def test_the_caller_wins_even_where_the_file_makes_no_sense() -> None:
    """A head for four layers has no usable default; ids of another convention may leave the target."""
    shallow = target(num_layers=4)
    with pytest.raises(HeadMismatch, match="boundaries"):
        read(EAGLE_FORM, shallow)
    assert read(EAGLE_FORM, shallow, (1, 2, 3)).boundaries == (1, 2, 3)
    with pytest.raises(HeadMismatch, match=r"\[26, 31, 41\].*32 layers"):
        read(specforge_ids(25, 30, 40))
    assert read(specforge_ids(25, 30, 40), None, (2, 16, 29)).boundaries == (2, 16, 29)


@pytest.mark.parametrize("boundaries", [(2, 2, 29), (16, 2, 29), (2, 16, 33), (-1, 2, 3)])
def test_boundaries_must_ascend_within_the_target(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(HeadMismatch, match="ascend within 0..32"):
        read(EAGLE_FORM, None, boundaries)


@pytest.mark.parametrize("architecture", ["Eagle3DraftModel", "Eagle3Speculator"])
def test_speculators_nests_its_layer(architecture: str) -> None:
    found = read({**SPECULATORS_FORM, "architectures": [architecture]})
    assert (found.format, found.hidden_size, found.num_kv_heads, found.head_dim) == (SPECULATORS, 4096, 8, 128)
    assert (found.vocab_size, found.draft_vocab_size, found.rope_theta) == (128256, 32000, 500000.0)
    assert found.norm_before_residual
    assert not (found.fc_norm or found.norm_before_fc or found.qk_norm or found.own_embedding)


def test_formats() -> None:
    assert read(EAGLE_FORM).format == EAGLE
    assert read(SPECFORGE_FORM).format == SPECFORGE
    assert read({**EAGLE_FORM, "eagle_config": {"use_aux_hidden_state": True}}).format == SPECFORGE


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("fc_norm", True, "fc_norm", True),
        ("use_aux_norm", True, "fc_norm", True),
        ("norm_before_fc", True, "norm_before_fc", True),
        ("norm_before_residual", True, "norm_before_residual", True),
        ("norm_before_residual", None, "norm_before_residual", False),
        ("norm_output", True, "feedback", "post"),
        ("norm_output", False, "feedback", "pre"),
        ("norm_output", None, "feedback", "pre"),
        ("bias", True, "fc_bias", True),
        ("draft_vocab_size", None, "draft_vocab_size", None),
        ("draft_vocab_size", 128256, "draft_vocab_size", 128256),
        ("embed_requires_grad", True, "own_embedding", True),
        ("model_type", "qwen3", "qk_norm", True),
        ("head_dim", 64, "head_dim", 64),
        ("head_dim", None, "head_dim", 128),
        ("num_key_value_heads", None, "num_kv_heads", 32),
        ("rms_norm_eps", None, "rms_norm_eps", 1e-6),
    ],
)
def test_options(field: str, value: object, attribute: str, expected: object) -> None:
    assert getattr(read({**SPECFORGE_FORM, field: value}), attribute) == expected


def test_rope_is_the_heads_own() -> None:
    """Not the target's: a head without rope_theta has 10000 though the target has 500000 (specs/eagle3.md 1.7)."""
    assert read(EAGLE_FORM).rope_theta == 10000.0
    assert read({**EAGLE_FORM, "rope_theta": 1e6}).rope_theta == 1e6
    parameters = {"rope_type": "default", "rope_theta": 250000.0}
    assert read({**EAGLE_FORM, "rope_parameters": parameters}).rope_theta == 250000.0
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    found = read({**EAGLE_FORM, "rope_theta": 5e5, "rope_scaling": scaling})
    assert found.rope_scaling is not None
    assert (found.rope_scaling.kind, found.rope_scaling.factor) == ("llama3", 8.0)


def test_a_target_of_another_hidden_size_is_named() -> None:
    with pytest.raises(HeadMismatch, match="hidden size 4096.*2048.*another model"):
        read(SPECULATORS_FORM, target(hidden_size=2048))


def test_a_target_of_another_vocabulary_is_named() -> None:
    for config in (EAGLE_FORM, SPECFORGE_FORM, SPECULATORS_FORM):
        with pytest.raises(HeadMismatch, match="vocabulary has 128256.*151936.*another model"):
            read(config, target(vocab_size=151936))


def test_a_head_may_have_a_hidden_size_of_its_own() -> None:
    found = read({**SPECFORGE_FORM, "hidden_size": 1024, "head_dim": 128, "target_hidden_size": 4096})
    assert (found.hidden_size, found.target_hidden_size, found.num_features) == (1024, 4096, 3 * 4096)


def test_without_a_word_a_head_has_the_hidden_size_of_its_target() -> None:
    """Most configs name one hidden size: if it is not this target's, the head was made for another."""
    with pytest.raises(HeadMismatch, match="hidden size 2048; this target's is 4096"):
        read({**SPECFORGE_FORM, "hidden_size": 2048})


def test_the_final_hidden_state_cannot_change_its_size() -> None:
    alone = {"target_hidden_size": 4096, "eagle_config": {"use_aux_hidden_state": False}}
    config = {**SPECFORGE_FORM, "hidden_size": 1024, **alone}
    with pytest.raises(HeadMismatch, match="hidden size 1024 must equal the target's 4096"):
        read(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 512}, "Eagle3DeepseekV2ForCausalLM"),
        ({"model_type": "deepseek_v3"}, "deepseek_v3"),
        ({"model_type": "gpt_oss"}, "'gpt_oss'.*llama and qwen3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 64.0}}, "yarn"),
        ({"speculators_model_type": "mtp"}, "mtp"),
    ],
)
def test_layers_that_alula_does_not_run_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read({**SPECFORGE_FORM, **change})


def test_a_nested_layer_is_refused_alike() -> None:
    for change in ({"num_hidden_layers": 3}, {"model_type": "deepseek_v2"}, {"kv_lora_rank": 512}):
        config = copy.deepcopy(SPECULATORS_FORM)
        config["transformer_layer_config"].update(change)
        with pytest.raises(UnsupportedModel):
            read(config)


@pytest.mark.parametrize("alias", ["fc_norm", "use_aux_norm"])
def test_the_two_norms_before_fusion_exclude_each_other(alias: str) -> None:
    with pytest.raises(CheckpointError, match="fc_norm and norm_before_fc"):
        read({**SPECULATORS_FORM, alias: True, "norm_before_fc": True})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_key_value_heads": 5}, "32 attention heads of 128, 5 kv heads"),
        ({"head_dim": 127}, "of 127.*even"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size"),
        ({"target_hidden_size": -1}, "target_hidden_size"),
        ({"eagle_config": [1, 2]}, "eagle_config"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,2,3"}}, "eagle_aux_hidden_state_layer_ids"),
        ({"norm_output": "yes"}, "norm_output"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor of the rope scaling is None"),
    ],
)
def test_fields_of_the_wrong_kind_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read({**SPECFORGE_FORM, **change})


_FIELDS = sorted({*SPECFORGE_FORM, *SPECULATORS_FORM, "head_dim", "rope_theta", "rope_scaling", "bias", "fc_norm"})
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([EAGLE_FORM, SPECFORGE_FORM, SPECULATORS_FORM]), st.sampled_from(_FIELDS), _JSON)
def test_no_value_in_a_config_makes_more_than_a_user_error(form: dict[str, Any], field: str, value: object) -> None:
    config = json.loads(json.dumps({**form, field: value}))
    try:
        found = read(config)
    except UserError as error:
        assert str(error)
    else:
        assert msgspec.json.decode(msgspec.json.encode(found), type=HeadConfig) == found
