"""The JSON document's schema, the table's words and the page, from one fake run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from rich.console import Console

from alula.bench.compare import Measurement, Workload, measure
from alula.bench.document import document
from alula.bench.page import page
from alula.bench.prompts import Prompt
from alula.bench.report import rows, sentences, table
from alula.bench.results import Figures, summarise
from alula.core.records import PHASES
from alula.core.sampling import SamplingParams
from fake_llm import GIVES_UP, LOOPS, FakeLLM

SCHEMA_KEYS = [
    "schema",
    "model",
    "draft",
    "device",
    "dtype",
    "tp",
    "steps",
    "prompts",
    "looping_prompts",
    "plain",
    "eagle3",
    "speedup",
    "break_even_tokens_per_cycle",
    "ceiling_tokens_per_cycle",
    "mismatched_tokens",
    "verify_over_plain_step",
]


def _bench(*texts: str, draft: str | None = "head") -> tuple[FakeLLM, Workload, Measurement, Figures]:
    llm = FakeLLM("models/<m>", draft=draft)
    prompts = tuple(Prompt(id=text, messages=({"role": "user", "content": text},)) for text in texts)
    workload = Workload(
        prompts=prompts, sampling=SamplingParams(max_tokens=128, seed=7), drafting=draft is not None
    )
    measurement = measure(llm, workload)
    return llm, workload, measurement, summarise(measurement.runs, llm.describe().steps)


def _document(*texts: str, draft: str | None = "head") -> dict[str, Any]:
    llm, workload, measurement, figures = _bench(*texts, draft=draft)
    return msgspec.json.decode(msgspec.json.encode(document(llm.describe(), workload, measurement, figures)))


def test_document_follows_schema_1() -> None:
    result = _document("a", LOOPS)
    assert list(result)[: len(SCHEMA_KEYS)] == SCHEMA_KEYS
    assert list(result["plain"])[:2] == ["tokens_per_s", "step_ms"]
    assert list(result["eagle3"])[:5] == [
        "tokens_per_s",
        "cycle_ms",
        "tokens_per_cycle",
        "acceptance_per_position",
        "phases_ms",
    ]
    assert list(result["eagle3"]["phases_ms"]) == list(PHASES)
    assert (result["schema"], result["prompts"], result["looping_prompts"]) == (1, 2, 1)
    assert result["speedup"] == pytest.approx(1.5) and result["mismatched_tokens"] == 0
    assert (result["seed"], result["max_tokens"]) == (7, 128)
    assert [entry["looping"] for entry in result["per_prompt"]] == [False, True]
    assert result["provenance"]["versions"]["msgspec"]


def test_plain_cycles_of_the_drafting_side_are_told() -> None:
    result = _document(GIVES_UP)
    assert result["speculation"] == {
        "mode": "auto",
        "drafted_cycles": 4,
        "plain_cycles": 60,
        "plain_share": 60 / 64,
        "plain_because": {"unprofitable": 60},
    }
    assert (result["eagle3"]["cycles"], result["eagle3"]["cycle_ms"]) == (4, 20.0)
    assert result["eagle3"]["tokens_per_cycle"] == 3.0 and result["break_even_tokens_per_cycle"] == 2.0
    assert result["speedup"] == pytest.approx((72 / 680) / (72 / 720))
    assert _document("a")["speculation"]["plain_cycles"] == 0 and _document("a", draft=None)["speculation"] is None
    _, _, measurement, figures = _bench(GIVES_UP)
    said = " ".join(sentences(figures, measurement))
    assert "A drafted cycle brings 3.00 tokens and costs 2.00 plain steps." in said
    assert "On the EAGLE-3 side, 60 of 64 cycles (93.8%) were plain: unprofitable 60." in said
    assert ("ms a cycle", "10.00", "20.00", "93.8% of cycles plain, not in these") in rows(figures)


def test_a_side_that_never_drafted_has_no_cycle_to_show() -> None:
    llm, workload, measurement, _ = _bench(GIVES_UP)
    (run,) = measurement.runs
    assert run.eagle3 is not None
    kept = tuple(record for record in run.eagle3.cycles if not record.drafted)
    measurement.runs = [msgspec.structs.replace(run, eagle3=msgspec.structs.replace(run.eagle3, cycles=kept))]
    figures = summarise(measurement.runs, 3)
    assert (
        sentences(figures, measurement)[0] == "No cycle of the EAGLE-3 side drafted; its tokens/s are 1.00x plain."
    )
    described = llm.describe()
    text = page(described, figures, measurement, document(described, workload, measurement, figures))
    assert text.count("<svg") == 1 and "100.0% of cycles plain" in text


def test_without_a_draft_absent_values_are_null() -> None:
    result = _document("a", draft=None)
    for key in ("draft", "steps", "eagle3", "speedup", "ceiling_tokens_per_cycle", "mismatched_tokens"):
        assert result[key] is None
    assert result["plain"]["tokens_per_s"] == pytest.approx(100)


def test_table_and_sentences() -> None:
    llm, _, measurement, figures = _bench("a", LOOPS)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(llm.describe(), figures))
    shown = console.export_text()
    console.file.close()
    for expected in ("speed-up 1.50x", "break-even 2.00, ceiling 4", "verify", "1.44x plain"):
        assert expected in shown
    said = " ".join(sentences(figures, measurement))
    assert "EAGLE-3 is faster: 1.50x" in said and "their answers loop: 1 prompts" in said


def test_page_is_well_formed_and_loads_nothing() -> None:
    llm, workload, measurement, figures = _bench("a <b> & c")
    described = llm.describe()
    text = page(described, figures, measurement, document(described, workload, measurement, figures))
    assert "models/<m>" not in text and "models/&lt;m&gt;" in text
    assert not re.search(r"(src|href|url\()", text)
    stack: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "rect"):
                stack.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            if tag != "rect":
                assert stack.pop() == tag

    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not stack
    bars = [float(width) for width in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)"', text)]
    assert sum(bars[: len(PHASES)]) == pytest.approx(320, abs=0.1)  # the plain step is half as long as the cycle
    assert sum(bars[len(PHASES) :]) == pytest.approx(640, abs=0.1)


def test_page_without_decode_cycles() -> None:
    llm, workload, measurement, _ = _bench("a")
    empty = summarise([], 4)
    described = llm.describe()
    text = page(described, empty, measurement, document(described, workload, measurement, empty))
    assert "No decode cycles" in text


def test_forced_acceptance_is_said_everywhere() -> None:
    llm, workload, measurement, _ = _bench("a", LOOPS)
    figures = summarise(
        [msgspec.structs.replace(run, textless=True, forced=True) for run in measurement.runs], 4, 2.8
    )
    run = msgspec.structs.replace(llm.describe(), facts={"forced_tokens_per_cycle": 2.8})
    result = document(run, workload, measurement, figures)
    assert result["forced_tokens_per_cycle"] == 2.8 and result["mismatched_tokens"] is None
    assert "ACCEPTANCE FORCED to 2.8 tokens per cycle" in str(table(run, figures).title)
    said = sentences(figures, measurement)
    assert said[0].startswith("ACCEPTANCE IS FORCED to 2.8") and not any("Mismatched tokens:" in s for s in said)
    assert "ACCEPTANCE IS FORCED" in page(run, figures, measurement, result)
    assert _document("a")["forced_tokens_per_cycle"] is None
