"""Shapes from config.json: what is no number, or none that can be, is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from alula.core.errors import CheckpointError, UserError
from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import parse_shape

CONFIG = NAMED_SHAPES["llama-3.2-1b"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_key_value_heads", "two"),
        ("num_key_value_heads", -2),
        ("head_dim", -16),
        ("head_dim", 7.5),
        ("rope_theta", "x"),
        ("rope_theta", -1.0),
        ("rms_norm_eps", None),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rope_scaling", "x"),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 0),
        ("max_position_embeddings", -5),
        ("vocab_size", "many"),
    ],
)
def test_a_field_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=name):
        parse_shape({**CONFIG, name: value})


@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim", "max_position_embeddings", "rope_scaling"])
def test_null_is_the_default(name: str) -> None:
    assert parse_shape({**CONFIG, name: None}) == parse_shape({k: v for k, v in CONFIG.items() if k != name})


def test_an_architecture_without_its_list_is_understood_or_named_whole() -> None:
    assert parse_shape({**CONFIG, "architectures": "LlamaForCausalLM"}).architecture == "LlamaForCausalLM"
    with pytest.raises(UserError, match="OtherForCausalLM"):
        parse_shape({**CONFIG, "architectures": "OtherForCausalLM"})
