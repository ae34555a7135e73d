"""Finds the advice for a topic: the engine's own for its version, else the general one."""

from __future__ import annotations

from alula.explain.advice.entry import Table, pick
from alula.explain.advice.others import ALULA, GENERAL, LLAMA_CPP, TENSORRT_LLM
from alula.explain.advice.sglang import SGLANG
from alula.explain.advice.vllm import VLLM
from alula.explain.case import Case

_TABLES: dict[str, Table] = {
    "sglang": SGLANG,
    "vllm": VLLM,
    "tensorrt": TENSORRT_LLM,
    "trt": TENSORRT_LLM,
    "llama": LLAMA_CPP,
    "alula": ALULA,
}


def table_of(engine: str) -> Table:
    """The table of an engine's name in any spelling; {} for an engine that has none."""
    return next((table for name, table in _TABLES.items() if name in engine.lower()), {})


def advise(case: Case, topic: str, **values: object) -> str:
    """The advice with `values` filled in. Raises KeyError for a topic that no table has."""
    text = pick(table_of(case.engine).get(topic, ()), case.version)
    if text is None:
        text = pick(GENERAL[topic], ()) if topic in GENERAL else None
    if text is None:
        raise KeyError(topic)
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text
