"""Whatever a file holds: no reader crashes, nothing is invented, memory and depth stay bounded."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from case_texts import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import everything, read, runs
from trace_samples import sglang_cycles

from alula.core.errors import ModelNotFound
from alula.explain.readers.inputs import read_inputs
from alula.explain.readers.registry import LINE_READERS
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity as Q

TEXTS = [*(text for text in CASES.values() if text), sglang_cycles(3).text(None)[:4000]]
# What no reader may infer from a damaged text: these say that something is wrong or switched off.
_ACCUSING = (Q.ALLREDUCE_REFUSED, Q.P2P, Q.GRAPH_REASON, Q.THROTTLE, Q.ERROR_LINE, Q.VARIABLE_IGNORED)

UNRELATED = [
    "", "\n\n\n", "The quick brown fox jumps over the lazy dog.\n" * 50,
    "int main(void) {\n  for (int i = 0; i < 10; i++) printf(\"%d\\n\", i);\n  return 0;\n}\n",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n",
    "name,age,city\nAnn,31,Paris\nBob,27,Rome\n", '{"name": "x", "list": [1, 2, {"deep": null}]}', "[1, 2, 3]", "key: value\nother: 3\nlist:\n- a\n",
    "Nov 30 09:26:01 host kernel: eth0: link up, 1000 Mbps\nNov 30 09:26:02 host sshd[1]: Accepted publickey for root\n",
    "| Item | Price | Amount |\n|---|---|---|\n| Apple | 1.20 | 3 |\n", "<html><body><table><tr><td>1</td></tr></table></body></html>\n",
]  # fmt: skip


@pytest.mark.parametrize("text", UNRELATED)
def test_unrelated_text_is_recognised_by_nobody(text: str) -> None:
    sink = read(text)
    assert sink.recognised == {}
    assert sink.runs() == ()


@pytest.mark.parametrize("seed", range(3))
def test_binaries_are_recognised_by_nobody(seed: int) -> None:
    data = random.Random(seed).randbytes(100_000)
    sink = read(b"\x7fELF" + data)
    assert sink.recognised == {}
    assert sink.notes


@given(st.sampled_from(TEXTS), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_truncation_at_both_ends(text: str, start: float, end: float) -> None:
    read(text[int(start * len(text)) :][: int(end * len(text))])


@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_shuffled_lines(text: str, randomness: random.Random) -> None:
    lines = text.splitlines(keepends=True)
    randomness.shuffle(lines)
    whole = {one.quantity for one in everything(text)}
    accused = {one.quantity for one in everything("".join(lines))} & set(_ACCUSING)
    assert accused <= whole


@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=20))
@settings(max_examples=150, deadline=None)
def test_byte_noise(text: str, noise: list[tuple[float, int]]) -> None:
    data = bytearray(text.encode())
    for at, value in noise:
        data[min(int(at * len(data)), len(data) - 1)] = value
    read(bytes(data))


@given(st.sampled_from([reader.markers for reader in LINE_READERS]), st.data())
@settings(max_examples=200, deadline=None)
def test_markers_among_anything(markers: tuple[str, ...], data: st.DataObject) -> None:
    """Lines that every reader wants to look at, and that hold nothing it knows."""
    word = st.sampled_from(markers) | st.text(alphabet="aZ09 .,:;=|/()[]{}<>\"'-_%#\t", max_size=12)
    lines = data.draw(st.lists(st.lists(word, max_size=6).map("".join), max_size=8))
    read("\n".join(lines))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
       | st.dictionaries(st.sampled_from(["model_path", "tp_size", "services", "command", "environment", "containers", "architectures", "text_config",
       "hidden_size", "speculative_config", "output_throughput", "specDecodingStats", "internal_states", "k", "tps", "traceEvents"]), inner, max_size=4),
       max_leaves=15))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_documents_of_any_shape(document: object) -> None:
    read(json.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '{"a":' * 50_000,
        '{"traceEvents": [' + '{"args":' * 50_000,
        "- " * 50_000,
        "a:\n" + " a:\n" * 9000,
    ],
)
def test_deep_documents_are_bounded(text: str) -> None:
    assert read(text).runs() == ()


def test_huge_numbers_are_dropped() -> None:
    nines = "9" * 400
    text = (
        f"[x] Decode batch. #running-req: {nines}, #token: 1, token usage: 0.1, accept len: {nines}, cuda graph: True, gen throughput (token/s): {nines}, "
        f"#queue-req: 1\nMean acceptance length: {nines}, Accepted: {nines} tokens, Drafted: {nines} tokens\nvllm:num_requests_running {nines}\n"
        f"| k | tok/s |\n|---|---|\n| 1 | {nines} |\nvllm serve org/m1 -tp {nines} --max-num-seqs={nines}\nTarget verify: {nines} ms/cyc\n"
        f"n_predict = {nines}\nn_accept = {nines}\n{nines} Bytes -> Algo 1 proto 2\n"
    )
    for one in everything(text):
        assert one.number is None or abs(one.number) < 1e18


def test_names_that_try_to_be_something_else_are_only_text() -> None:
    run = runs("vllm serve 'org/<script>alert(1)</script>' -tp 2\n")[0]
    assert run.text(Q.MODEL) == "org/<script>alert(1)</script>"


def test_a_million_distinct_values_stay_bounded() -> None:
    text = "".join(
        f"Custom allreduce is disabled because of reason {index * 7919 % 100_003}x\n" for index in range(5000)
    )
    sink = read(text)
    assert len([one for run in sink.runs() for one in run]) < 1500
    assert sink.notes


def test_a_missing_path_is_the_users_error_and_content_never_is(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_inputs([str(tmp_path / "none.log")], Label.UNKNOWN, lambda text: None)
    for index, data in enumerate(
        [b"", b"\x1f\x8b\x08garbage", b"PK\x03\x04garbage", b"\xfd7zXZ\x00x", b"BZhx", b"\xff\xfe\x00"]
    ):
        (tmp_path / str(index)).write_bytes(data)
    sinks = read_inputs([str(tmp_path)], Label.BASELINE, lambda text: None)
    assert all(not sink.recognised for sink in sinks)


def test_the_users_word_on_a_side_wins(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(CASES["07"])
    (sink,) = read_inputs([str(path)], Label.BASELINE, lambda text: None)
    assert {run.label for run in sink.runs()} == {Label.BASELINE}
