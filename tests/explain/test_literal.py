"""Printed Python objects: nested, broken by terminals, cut off, hostile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.explain.readers.literal import is_closed, parse_call, parse_literal
from alula.explain.readers.yaml_subset import parse_yaml

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(alphabet="abc /-_:", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet="abc", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_PLAIN)
def test_a_printed_object_is_read_back(value: Any) -> None:
    assert parse_literal(repr(value)) == value


@given(_PLAIN)
def test_json_is_read_too(value: Any) -> None:
    assert parse_literal(msgspec.json.encode(value).decode()) == value


@given(st.text(alphabet="ab1,=:()[]{}<>'\"\\ \n", max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    parse_literal(text)
    parse_call(f"X({text}", "X")
    is_closed(text)
    parse_yaml(text)


def test_calls_nest_and_enums_stand_in_angles() -> None:
    text = "server_args=ServerArgs(tp_size=8, decode=PhaseConfig(max_bs=512, bs=[1, 2]), mode=<Mode.FULL: (2, 1)>, x=None, f=0.5)"
    found = parse_call(text, "ServerArgs")
    assert found == {
        "tp_size": 8,
        "decode": {"max_bs": 512, "bs": [1, 2]},
        "mode": "Mode.FULL: (2, 1)",
        "x": None,
        "f": 0.5,
    }


@pytest.mark.parametrize("cut", range(5, 60, 7))
def test_a_cut_off_call_gives_what_came_before(cut: int) -> None:
    found = parse_call("A(first=1, second='two', third=[3, 3, 3], fourth=4)"[:cut], "A")
    assert found is None or found.get("first", 1) == 1


def test_depth_is_bounded() -> None:
    parse_literal("[" * 100_000)
    parse_literal("a(" * 100_000)
    parse_yaml("\n".join(" " * depth + "a:" for depth in range(500)))


def test_yaml_of_a_compose_file() -> None:
    found = parse_yaml(
        "services:\n  vllm:\n    image: vllm/vllm-openai  # pinned\n    environment:\n    - NCCL_PROTO=LL\n    - 'A=b c'\n"
        '    command: >\n      --model org/m\n      --tensor-parallel-size 8\n    ports: ["8000:8000"]\n    deploy:\n      n: 2\n'
    )
    service = found["services"]["vllm"]
    assert service["environment"] == ["NCCL_PROTO=LL", "A=b c"]
    assert service["command"] == "--model org/m --tensor-parallel-size 8"
    assert service["image"] == "vllm/vllm-openai"
    assert service["deploy"] == {"n": 2}
