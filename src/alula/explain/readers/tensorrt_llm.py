"""TensorRT-LLM's lines: iteration statistics as JSON or Python text, `trtllm-bench`'s acceptance table, its gate.

`iterLatencyMS` spans about two loops with overlap scheduling (its own profiler's source says so), so it is kept only
where the GPU's forward time is missing.
"""

from __future__ import annotations

import re
from typing import Any

from alula.explain.readers.found import Place, number
from alula.explain.readers.literal import parse_literal
from alula.explain.sink import Sink
from alula.profile.evidence import Value
from alula.profile.quantities import Quantity

ENGINE = "tensorrt-llm"
READER = "TensorRT-LLM lines"
Q = Quantity
_VERSION = re.compile(r"TensorRT-LLM version: v?(\S+)")
_BENCH_ACCEPTANCE = re.compile(r"\[AR\] (AVERAGE|MINIMUM|MAXIMUM|P\d+)\D*([\d.]+)")
_GATE = re.compile(r"\[SpeculationGate\] (Speculative decoding disabled[^\n]*)")
_THROUGHPUT = re.compile(
    r"Per GPU Output Throughput \(tps/gpu\):|Total Output Throughput \(tokens/sec\):\s*([\d.,]+)"
)
_TPOT = re.compile(r"Average time-per-output-token \[TPOT\] \(ms\):\s*([\d.,]+)")
_GRAPHS = re.compile(
    r"(?:Creating|Run warmup for|Captured?) CUDA graphs?[^\n]*?(?:batch size|batch_size)[ =:]*(\d{1,7})", re.I
)


class TensorRtLines:
    """Stateless but for the name."""

    name = READER
    markers: tuple[str, ...] = (
        "TensorRT-LLM version",
        "[AR] ",
        "[SpeculationGate]",
        "specDecodingStats",
        "Output Throughput",
        "[TPOT]",
        "CUDA graph",
        "iterLatencyMS",
    )

    def line(self, line: int, text: str, sink: Sink) -> bool:
        place = Place(sink, READER, line, text, ENGINE)
        if match := _VERSION.search(text):
            place.add(Q.ENGINE, ENGINE)
            place.add(Q.ENGINE_VERSION, match[1])
        if match := _GATE.search(text):
            place.add(Q.ERROR_LINE, match[1])
        if (match := _BENCH_ACCEPTANCE.search(text)) and match[1] == "AVERAGE":
            place.add(Q.TOKENS_PER_CYCLE, number(match[2]))
        if (match := _THROUGHPUT.search(text)) and match[1]:
            place.add(Q.TOKENS_PER_S, number(match[1]))
        if match := _TPOT.search(text):
            place.add(Q.TOKEN_MS, number(match[1]))
        if ("[TRT-LLM]" in text or "TRT-LLM" in text) and (match := _GRAPHS.search(text)):
            place.add(Q.GRAPH_MAX_REQUESTS, int(match[1]), phase="target")
        if "specDecodingStats" in text or "iterLatencyMS" in text:
            found = parse_literal(text[text.find("{") :]) if "{" in text else None
            if isinstance(found, dict):
                iteration_stats(place, found)
        return False

    def end(self, sink: Sink) -> None:
        return


def iteration_stats(place: Place, stats: dict[str, Any]) -> bool:
    """One object of `/metrics` or of the iteration log. False if it is none."""
    speculative = stats.get("specDecodingStats")
    if not isinstance(speculative, dict):
        speculative = {}
    if not speculative and "iterLatencyMS" not in stats:
        return False
    place.add(Q.ENGINE, ENGINE)
    requests = _number(speculative.get("numRequestsWithDraftTokens"))
    if requests:
        _counts(place, speculative, requests)
    running = _number(stats.get("numActiveRequests"))
    if running:
        place.sample(Q.NUM_RUNNING, running)
    latency = _number(stats.get("gpuForwardTimeMS")) or _number(stats.get("iterLatencyMS"))
    if latency and requests:
        place.sample(Q.CYCLE_MS, latency, batch=int(running) if running else None)
    elif latency and not speculative:
        place.sample(Q.STEP_MS, latency, batch=int(running) if running else None)
    overhead = _number(speculative.get("draftOverhead"))
    cycle = _number(speculative.get("iterLatencyMS")) or latency
    if overhead is not None and cycle and 0.0 <= overhead <= 1.0:
        place.sample(Q.DRAFT_MS, overhead * cycle)
    host = _number(stats.get("hostStepTimeMS"))
    if host:
        place.sample(Q.PHASE_MS, host, phase="schedule")
    return True


def _counts(place: Place, speculative: dict[str, Any], requests: float) -> None:
    drafted, accepted = _number(speculative.get("numDraftTokens")), _number(speculative.get("numAcceptedTokens"))
    length = _number(speculative.get("acceptanceLength"))
    if drafted is not None and accepted is not None and accepted <= drafted:
        place.sample(Q.NUM_DRAFTED, drafted)
        place.sample(Q.NUM_ACCEPTED, accepted)
        if drafted % requests == 0 and drafted:
            place.add(Q.STEPS, int(drafted / requests))
        if length is None:
            length = 1.0 + accepted / requests
    if length is not None and length >= 1.0:
        place.sample(Q.TOKENS_PER_CYCLE, length)


def _number(value: Value | None) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        else None
    )
