"""From a head's folder to a draft model: every published form loads and drafts, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_heads
import torch
from tiny_heads import HeadForm, but
from torch import Tensor

from alula.core.errors import CheckpointError, HeadMismatch, InvalidOption, ModelNotFound
from alula.layers.geometry import Segment
from alula.spec.draft_model import DraftModel, tensor_shapes
from alula.spec.drafting import Extension
from alula.spec.head_config import SPECULATORS, parse_head_config, settle
from alula.spec.head_source import open_head

LAYER_KEYS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("num_hidden_layers", "rms_norm_eps", "rope_theta", "hidden_act", "model_type", "max_position_embeddings"),
)


def first_logits(model: DraftModel) -> Tensor:
    """What the head says after five tokens of which the features are known."""
    generator = torch.Generator().manual_seed(1)
    drafter, table = tiny_heads.drafter(model)
    features = torch.randn(5, model.config.num_features, generator=generator)
    with torch.no_grad():
        (state,) = drafter.extend([Extension(Segment(table, 0, 5), [9, 8, 7, 6, 5], True)], features)
    assert state is not None
    return state.logits_1D[0]


def eagle(form: HeadForm) -> dict[str, Any]:
    config = tiny_heads.config_of(form)
    del config["eagle_config"]
    return {**config, "architectures": ["LlamaForCausalLM"]}


def speculators(form: HeadForm, architecture: str) -> dict[str, Any]:
    flat = tiny_heads.config_of(form)
    layer = {name: flat.pop(name) for name in LAYER_KEYS}
    del flat["eagle_config"]
    return {
        **flat,
        "architectures": [architecture],
        "speculators_model_type": "eagle3",
        "target_hidden_size": 64,
        "eagle_aux_hidden_state_layer_ids": list(form.boundaries),
        "transformer_layer_config": layer,
    }


def test_the_published_formats_load_alike(tmp_path: Path) -> None:
    """The same weights in each format draft the same; only the config says where the features come from.

    Not to the bit: where a tensor begins in memory differs between formats, and some machines' products ask for that.
    """
    form = HeadForm()
    tensors = tiny_heads.tensors_of(form)
    eagle_folder = tiny_heads.write(tmp_path / "eagle", eagle(form), tensors, layer="midlayer", pickled=True)
    specforge_folder = tiny_heads.write(
        tmp_path / "specforge",
        tiny_heads.config_of(form),
        {**tensors, "embed_tokens.weight": torch.zeros(307, 64)},
        layer="midlayer",
    )
    leftovers = {
        "verifier_lm_head.weight": torch.ones(4, 64),
        "verifier_norm.weight": torch.ones(64),
        "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    reference = first_logits(tiny_heads.load(specforge_folder))
    # Four layers are too few for EAGLE's built-in choice.
    pickled = first_logits(tiny_heads.load(eagle_folder, aux_boundaries=(1, 2, 3)))
    torch.testing.assert_close(pickled, reference, rtol=1e-5, atol=1e-5)
    for architecture in ("Eagle3DraftModel", "Eagle3Speculator"):
        folder = tiny_heads.write(
            tmp_path / architecture, speculators(form, architecture), {**tensors, **leftovers}
        )
        model = tiny_heads.load(folder)
        assert (model.config.format, model.config.boundaries) == (SPECULATORS, (1, 2, 3))
        torch.testing.assert_close(first_logits(model), reference, rtol=1e-5, atol=1e-5)
    nemo = tiny_heads.write(tmp_path / "nemo", tiny_heads.config_of(form), tensors, prefix="model.")
    torch.testing.assert_close(first_logits(tiny_heads.load(nemo)), reference, rtol=1e-5, atol=1e-5)


def test_half_precision_files_load_in_the_engines_dtype(tmp_path: Path) -> None:
    form = HeadForm()
    tensors = tiny_heads.tensors_of(form)
    stored = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    folder = tiny_heads.write(tmp_path, tiny_heads.config_of(form), stored, layer="midlayer", pickled=True)
    model = tiny_heads.load(folder)
    assert first_logits(model).dtype == torch.float32
    assert model.hot_D.dtype == torch.int64
    # Widened, never rounded: the map of a bfloat16 engine is the file's too, though 257 is no bfloat16.
    half = tiny_heads.load(folder, dtype=torch.bfloat16)
    assert half.hot_D.tolist() == list(range(1, 301, 3))


def test_a_vocabulary_map_survives_where_bfloat16_would_round(tmp_path: Path) -> None:
    """d2t must never be cast with the weights: 256 + 1 is 256 in bfloat16."""
    form = but(hot=(257, 259, 261, 305))
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, form), dtype=torch.bfloat16)
    assert model.hot_D.tolist() == [257, 259, 261, 305]


def test_a_head_shares_the_targets_embedding_unless_it_was_trained(tmp_path: Path) -> None:
    form = but(embedding=True)
    config, tensors = tiny_heads.config_of(form), tiny_heads.tensors_of(form)
    shared = tiny_heads.load(tiny_heads.write(tmp_path / "shared", config, tensors))
    own = tiny_heads.load(tiny_heads.write(tmp_path / "own", {**config, "embed_requires_grad": True}, tensors))
    target = tiny_heads.load_target()
    assert shared._embedding is target.embedding
    assert torch.equal(own._embedding.weight_VH, tensors["embed_tokens.weight"])
    assert not torch.equal(first_logits(shared), first_logits(own))


def test_a_head_of_its_own_hidden_size_needs_its_own_embedding(tmp_path: Path) -> None:
    form = but(hidden_size=48, embedding=True)
    model = tiny_heads.load(tiny_heads.write_form(tmp_path / "whole", form))
    assert model.config.hidden_size == 48
    assert model._embedding.weight_VH.shape == (307, 48)
    bare = tiny_heads.write_form(tmp_path / "bare", but(form, embedding=False))
    with pytest.raises(CheckpointError, match="hidden size 48 differs from the target's 64.*embed_tokens.weight"):
        tiny_heads.load(bare)


def test_a_trained_embedding_that_is_not_there_is_missed(tmp_path: Path) -> None:
    form = HeadForm()
    config = {**tiny_heads.config_of(form), "embed_requires_grad": True}
    folder = tiny_heads.write(tmp_path, config, tiny_heads.tensors_of(form))
    with pytest.raises(CheckpointError, match=r"embed_requires_grad.*embed_tokens.weight is missing"):
        tiny_heads.load(folder)


def test_without_a_draft_vocabulary_the_targets_head_is_shared(tmp_path: Path) -> None:
    form = but(own_lm_head=False)
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, form))
    assert model._head is tiny_heads.load_target().head
    assert model.hot_D.tolist() == list(range(307))
    assert first_logits(model).shape == (307,)
    adversarial = tiny_heads.load(tmp_path, head="adversarial")
    torch.testing.assert_close(first_logits(adversarial), -first_logits(model))


def test_a_head_of_another_size_cannot_share_the_targets_head(tmp_path: Path) -> None:
    form = but(hidden_size=48, embedding=True, own_lm_head=False)
    with pytest.raises(CheckpointError, match=r"lm_head.weight is missing; expected shape \[307, 48\]"):
        tiny_heads.load(tiny_heads.write_form(tmp_path, form))


def test_a_full_vocabulary_of_its_own_needs_no_map(tmp_path: Path) -> None:
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, but(hot=None)))
    assert model.hot_D.tolist() == list(range(307))
    assert model._head is not tiny_heads.load_target().head


TENSORS = sorted(tiny_heads.tensors_of(but(fc_norm=True, qk_norm=True)).keys() - {"t2d"})


@pytest.mark.parametrize("name", TENSORS)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    form = but(fc_norm=True, qk_norm=True)
    tensors = tiny_heads.tensors_of(form)
    del tensors[name]
    folder = tiny_heads.write(tmp_path, tiny_heads.config_of(form), tensors, layer="midlayer")
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        tiny_heads.load(folder)


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "d2t"])
def test_a_wrongly_shaped_tensor_is_named(tmp_path: Path, name: str) -> None:
    form = but(fc_norm=True, qk_norm=True)
    tensors = tiny_heads.tensors_of(form)
    tensors[name] = torch.cat((tensors[name], tensors[name]))
    folder = tiny_heads.write(tmp_path, tiny_heads.config_of(form), tensors)
    with pytest.raises(CheckpointError, match=f"tensor {name} has shape"):
        tiny_heads.load(folder)


@pytest.mark.parametrize(
    "name", ["layers.1.hidden_norm.weight", "fc.bias", "layers.0.self_attn.q_proj.bias", "fc_norm.0.weight", "odd"]
)
def test_a_left_over_tensor_is_named(tmp_path: Path, name: str) -> None:
    form = HeadForm()
    folder = tiny_heads.write(
        tmp_path, tiny_heads.config_of(form), {**tiny_heads.tensors_of(form), name: torch.ones(3)}
    )
    with pytest.raises(CheckpointError, match=name):
        tiny_heads.load(folder)


def test_a_head_for_other_auxiliary_layers_shows_in_its_fusion(tmp_path: Path) -> None:
    form = but(boundaries=(1, 3))
    folder = tiny_heads.write_form(tmp_path, form)
    assert tiny_heads.load(folder).config.num_features == 2 * 64
    with pytest.raises(CheckpointError, match=r"fc.weight has shape \[64, 128\]; the config asks for \[64, 192\]"):
        tiny_heads.load(folder, aux_boundaries=(1, 2, 3))
    assert tiny_heads.load(folder, aux_boundaries=(0, 4)).config.boundaries == (0, 4)


def test_heads_of_other_targets_say_what_differs(tmp_path: Path) -> None:
    form = HeadForm()
    config, tensors = tiny_heads.config_of(form), tiny_heads.tensors_of(form)
    other = tiny_heads.write(tmp_path / "vocabulary", {**config, "vocab_size": 300}, tensors)
    with pytest.raises(HeadMismatch, match="vocabulary has 300 tokens.*307"):
        tiny_heads.load(other)
    other = tiny_heads.write(tmp_path / "hidden", {**config, "target_hidden_size": 72}, tensors)
    with pytest.raises(HeadMismatch, match="hidden size 72.*64"):
        tiny_heads.load(other)
    other = tiny_heads.write(tmp_path / "mask", config, {**tensors, "t2d": torch.ones(310, dtype=torch.bool)})
    with pytest.raises(HeadMismatch, match="t2d covers 310 tokens.*307"):
        tiny_heads.load(other)
    with pytest.raises(ModelNotFound):
        tiny_heads.load(tmp_path / "nowhere")


def test_random_and_adversarial_heads_keep_the_files_shape(tmp_path: Path) -> None:
    folder = tiny_heads.write_form(tmp_path, but(qk_norm=True, fc_norm=True))
    trained, random, adversarial = (
        tiny_heads.load(folder, head=kind) for kind in ("trained", "random", "adversarial")
    )
    assert random.config == trained.config == adversarial.config
    assert torch.equal(random.hot_D, trained.hot_D)
    assert torch.equal(first_logits(random), first_logits(tiny_heads.load(folder, head="random")))
    assert not torch.allclose(first_logits(random), first_logits(trained))
    torch.testing.assert_close(first_logits(adversarial), -first_logits(trained))


@pytest.mark.parametrize("kind", ["random", "adversarial"])
@pytest.mark.parametrize("family", ["plain", "group3_tied", "mistral"])
def test_heads_without_a_file_fit_their_target(family: str, kind: str) -> None:
    model = tiny_heads.load(None, family, head=kind)
    shape = tiny_heads.target_shape(family)
    assert (model.config.hidden_size, model.config.vocab_size) == (shape.hidden_size, shape.vocab_size)
    assert model.hot_D.unique().numel() == len(model.hot_D) == shape.vocab_size
    assert torch.isfinite(first_logits(model)).all()


def test_the_inventory_of_random_weights_is_the_loaders(tmp_path: Path) -> None:
    """`tensor_shapes` names what a SpecForge file of the same config holds."""
    form = HeadForm()
    folder = tiny_heads.write_form(tmp_path, form)
    shape = tiny_heads.target_shape()
    config = settle(parse_head_config(tiny_heads.config_of(form), shape), None, None, shape)
    source = open_head(folder)
    assert tensor_shapes(config) == {name: source.shape(name) for name in source.names() - {"d2t", "t2d"}}


def test_placement_is_what_was_asked_for(tmp_path: Path) -> None:
    """One rank holds a head whole; what does not divide is refused only where sharding was asked for."""
    assert tiny_heads.load(tiny_heads.write_form(tmp_path, HeadForm())).placement == "sharded"
    with pytest.raises(InvalidOption, match="--draft-head"):
        tiny_heads.load(tmp_path, head="clever")
    with pytest.raises(InvalidOption, match="feedback"):
        tiny_heads.load(tmp_path, feedback="middle")
