"""SamplingParams: what is taken, what is made of it, and what is refused, without torch."""

from __future__ import annotations

from typing import Any

import pytest

from alula import SamplingParams
from alula.core.errors import InvalidOption


def test_one_stop_string_is_one_stop() -> None:
    assert SamplingParams(stop="five").stop == ("five",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)  # type: ignore[arg-type]


def test_a_whole_number_is_a_float_where_one_is_asked_for() -> None:
    assert SamplingParams(temperature=1).temperature == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "x"),
        ("max_tokens", 1.5),
        ("max_tokens", 0),
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", ("",)),
        ("stop", 5),
        ("stop_token_ids", "a"),
        ("logprobs", 21),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", None),
        ("ignore_eos", "yes"),
    ],
)
def test_what_is_out_of_range_or_of_another_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        SamplingParams(**{name: value})
