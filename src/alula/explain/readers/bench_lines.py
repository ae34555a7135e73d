"""Single lines with results: send_one, SpecForge, bench_one_batch, vLLM's offline example. Sentences: `sentences`.

Only in the spelling of these tools.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import Place, number
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "result lines"
Q = Quantity
_N = r"(\d[\d,]{0,14}(?:\.\d{1,12})?)"
_SIMPLE: tuple[tuple[re.Pattern[str], Quantity], ...] = (
    (re.compile(rf"\bacc_length={_N}"), Q.TOKENS_PER_CYCLE),
    (re.compile(rf"(?:Average )?Accept(?:ance)? length: {_N}", re.I), Q.TOKENS_PER_CYCLE),
    (re.compile(rf"\bmean acceptance length: {_N}"), Q.TOKENS_PER_CYCLE),
    (re.compile(rf"\baccept_len(?:gth)?[:=] ?{_N}"), Q.TOKENS_PER_CYCLE),
    (re.compile(rf"\bspeed={_N} token/s"), Q.TOKENS_PER_S),
    (re.compile(rf"\bThroughput: {_N} token/s"), Q.TOKENS_PER_S),
    (re.compile(rf"\bOutput throughput: {_N} token/s"), Q.TOKENS_PER_S),
    (re.compile(rf"\bnum_drafts: {_N}"), Q.NUM_CYCLES),
    (re.compile(rf"\bnum_draft_tokens: {_N}"), Q.NUM_DRAFTED),
    (re.compile(rf"\bnum_accepted_tokens: {_N}"), Q.NUM_ACCEPTED),
    (re.compile(rf"\btotal_num_output_tokens: {_N}"), Q.NUM_EMITTED),
    (re.compile(rf"acceptance (?:at|rate of) (?:token|position) 0: {_N}", re.I), Q.ACCEPTANCE),
)
_POSITION = re.compile(rf"acceptance at (?:token|position) (\d{{1,3}}): {_N}", re.I)
_DECODE_BATCH = re.compile(rf"Decode \d+\. Batch size: (\d{{1,6}}), latency: {_N} s, throughput: +{_N} token/s")


class BenchLines:
    """Stateless but for the name."""

    name = READER
    markers: tuple[str, ...] = (
        "acc_length=",
        "ccept length",
        "cceptance length",
        "acceptance at ",
        "accept_len",
        "speed=",
        "hroughput: ",
        "num_drafts:",
        "num_draft_tokens:",
        "num_accepted_tokens:",
        "total_num_output_tokens:",
        "Batch size:",
    )

    def line(self, line: int, text: str, sink: Sink) -> bool:
        if "SpecDecoding metrics" in text or "Avg generation throughput" in text or "draft acceptance" in text:
            return False
        place = Place(sink, READER, line, text)
        for pattern, quantity in _SIMPLE:
            if match := pattern.search(text):
                _simple(place, quantity, number(match[1]))
        if match := _POSITION.search(text):
            place.add(Q.ACCEPTANCE, _share(number(match[2])), position=int(match[1]))
        if match := _DECODE_BATCH.search(text):
            seconds, batch = number(match[2]), int(match[1])
            if seconds:
                place.sample(Q.STEP_MS, 1000.0 * seconds, batch=batch)
                place.sample(Q.TOKENS_PER_S, number(match[3]), batch=batch)
        return False

    def end(self, sink: Sink) -> None:
        return


def _simple(place: Place, quantity: Quantity, value: float | None) -> None:
    if value is None:
        return
    if quantity is Q.ACCEPTANCE:
        place.add(quantity, _share(value), position=0)
    elif quantity is Q.TOKENS_PER_CYCLE:
        if 1.0 <= value < 1000.0:
            place.sample(quantity, value)
    elif quantity is Q.TOKENS_PER_S:
        place.sample(quantity, value)
    else:
        place.add(quantity, int(value))


def _share(value: float | None) -> float | None:
    return value if value is None or value <= 1.0 else value / 100.0
