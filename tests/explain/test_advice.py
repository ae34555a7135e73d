"""Every topic that a hypothesis asks for has an answer for every engine, with nothing left to fill in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from evidence_builder import found, sink_of

from alula.explain import hypotheses
from alula.explain.advice.entry import Advice, pick
from alula.explain.advice.lookup import advise, table_of
from alula.explain.advice.others import GENERAL
from alula.explain.case import assemble
from alula.profile.quantities import Quantity as Q

_SOURCES = "".join(path.read_text(encoding="utf-8") for path in Path(hypotheses.__file__).parent.glob("*.py"))
TOPICS = sorted(set(re.findall(r'advise\(case, "(\w+)"', _SOURCES)))


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm", "llama.cpp", "alula", "my-engine", ""])
@pytest.mark.parametrize("version", ["", "0.4.5", "0.5.15", "0.28.0"])
def test_every_topic_has_an_answer(engine: str, version: str) -> None:
    case = assemble([sink_of(found(Q.ENGINE, engine), found(Q.ENGINE_VERSION, version))])
    assert len(TOPICS) > 15
    for topic in TOPICS:
        text = advise(case, topic, size=8, rows=24, steps=2, tokens=2.0)
        assert text and "{" not in re.sub(r"[{](?:category|\.\.\.)[}]", "", text), (topic, text)


def test_an_unknown_topic_is_a_fault_of_ours() -> None:
    with pytest.raises(KeyError):
        advise(assemble([]), "no_such_topic")
    assert set(TOPICS) <= set(GENERAL)
    assert table_of("SGLang") is table_of("sglang") and table_of("") == {}


def test_versions_choose_and_unknown_ones_show_all() -> None:
    choices = (Advice(text="new", since=(0, 12)), Advice(text="old", before=(0, 12)))
    assert pick(choices, (0, 13)) == "new" and pick(choices, (0, 11, 2)) == "old"
    assert pick(choices, ()) == "from 0.12: new; before 0.12: old"
    assert pick((), (1,)) is None
