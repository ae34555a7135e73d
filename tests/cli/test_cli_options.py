"""Shared options: what they become, what they refuse, and how groups become flat parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from alula.cli.options import EngineOptions, SamplingOptions, grouped, parse_size
from alula.core.config import EngineConfig, GraphConfig
from alula.core.errors import InvalidOption


def test_defaults_are_the_config_s_own() -> None:
    assert EngineOptions().config() == EngineConfig()
    assert EngineOptions().draft_name() == "auto" and EngineOptions(draft="none").draft_name() is None


def test_options_reach_the_config() -> None:
    options = EngineOptions(
        steps=8,
        speculate="always",
        draft_head="random",
        tp=3,
        draft_tp="sharded",
        exact=True,
        kv_memory="1.5G",
        device="cpu",
        seed=5,
    )
    config = options.config()
    assert (config.speculation.steps, config.speculation.head) == (8, "random")
    assert config.speculation.speculate == "always" and EngineOptions().config().speculation.speculate == "auto"
    assert (config.parallel.tp, config.parallel.draft) == (3, "sharded")
    assert (config.exact, config.kv_memory_bytes, config.device, config.seed) == (True, 3 * 2**29, "cpu", 5)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "0"],
        ["--steps", "9"],
        ["--steps", "many"],
        ["--tp", "0"],
        ["--dtype", "int4"],
        ["--device", "tpu"],
        ["--draft-head", "lucky"],
        ["--speculate", "sometimes"],
        ["--draft-tp", "half"],
        ["--context", "0"],
        ["--kv-memory", "lots"],
        ["--threads", "0"],
        ["--seed", "-1"],
        ["--graph-batches", "4,2"],
        ["--graph-batches", "0,1"],
        ["--graph-batches", "1,two"],
        ["--graph-batches", ""],
        ["--graph-widths", "10"],
        ["--graph-widths", "wide"],
        ["--eager", "prefill"],
        ["--eager", "draft,"],
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--top-p", "0"],
        ["--top-k", "-1"],
        ["--min-p", "2"],
        ["--max-tokens", "0"],
        ["--budget", "0"],
        ["--budget", "nan"],
        ["--unknown"],
        ["another-model"],
    ],
)
@pytest.mark.parametrize("command", ["run", "bench"])
def test_bad_values_are_user_errors(alula: Callable[..., Any], command: str, arguments: list[str]) -> None:
    outcome = alula(command, "m", *(["--prompt", "hi"] if command == "run" else []), *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("alula: error: ") and "Traceback" not in outcome.err
    assert "loading" not in outcome.err  # refused before any work


def test_graph_options_reach_the_config() -> None:
    assert EngineOptions().config().graphs == GraphConfig() and EngineOptions().graph_options() == []
    options = EngineOptions(graph_batches="1,4,64", graph_widths="2,3", eager=["draft, extend", "draft"])
    assert options.config().graphs == GraphConfig(batches=(1, 4, 64), widths=(2, 3), eager=("draft", "extend"))
    assert options.graph_options() == ["--graph-batches", "--graph-widths", "--eager"]
    assert EngineOptions(no_graphs=True).config().graphs == GraphConfig(enabled=False)


@pytest.mark.parametrize(
    ("max_batch", "sizes"), [(1, (1,)), (3, (1, 2, 4)), (4, (1, 2, 4)), (32, (1, 2, 4, 64)), (99, (1, 2, 4, 64))]
)
def test_sizes_that_a_batch_can_be_padded_to(max_batch: int, sizes: tuple[int, ...]) -> None:
    assert GraphConfig(batches=(1, 2, 4, 64)).sizes_up_to(max_batch) == sizes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph_batches": "4,2"}, "--graph-batches is '4,2'; expected rising sizes from 1"),
        ({"graph_batches": "1;2"}, "--graph-batches is '1;2'; expected batch sizes such as 1,2,4,8"),
        ({"graph_widths": "2,10"}, "--graph-widths is '2,10'; expected widths from 1 to 9"),
        ({"graph_widths": "x"}, "--graph-widths is 'x'; expected widths such as 2,3"),
        ({"eager": ["draft", "prompt"]}, "--eager is 'prompt'; expected one of draft, verify, extend"),
    ],
)
def test_bad_graph_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption) as error:
        EngineOptions(**options).config()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("1000000", 10**6), ("512M", 2**29), ("2g", 2**31), ("0.5K", 512)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size("--kv-memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "0", "nan", "inf", "1e999", "infG", "12 apples"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InvalidOption, match="--kv-memory"):
        parse_size("--kv-memory", text)


def test_grouped_flattens_and_rebuilds() -> None:
    seen: list[Any] = []

    def command(name: str, sampling: SamplingOptions, limit: int = 3) -> None:
        """Says what it does."""
        seen.append((name, sampling, limit))

    flat = grouped(command)
    names = list(inspect.signature(flat).parameters)
    assert names == ["name", "temperature", "top_k", "top_p", "min_p", "limit"]
    assert flat.__doc__ == "Says what it does." and flat.__name__ == "command"
    flat(name="n", temperature=0.5, top_k=1, top_p=1.0, min_p=0.0, limit=4)
    assert seen == [("n", SamplingOptions(temperature=0.5, top_k=1), 4)]
