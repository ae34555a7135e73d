"""Single lines with results: send_one, SpecForge, bench_one_batch, vLLM's offline example; sentences with numbers.

Sentences are read in few, strict forms ("364 / 216 / 166 tok/s for k=0/1/2"); whatever else is prose stays prose.
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
_SERIES = r"~?\d+(?:\.\d+)?(?:\s*/\s*~?\d+(?:\.\d+)?)+"
_SWEEP = re.compile(
    rf"({_SERIES})\s*(?:tok(?:en)?s?/s(?:ec)?|t/s|tps)?\s+(?:for|with|at)\s+(?:k|n|MTP|steps"
    r"|depth)\s*=\s*(\d+(?:\s*/\s*\d+)+)",
    re.I,
)
_LENGTHS = re.compile(
    rf"(?:accept(?:ance|ed)?(?: length)?|tokens per (?:step|cycle))\s+(?:is|of|=|:)?\s*({_SERIES})", re.I
)
_PLAIN = re.compile(
    rf"\b{_N}\s*(?:tok(?:en)?s?/s(?:ec)?|t/s|tps)\s+(?:without (?:speculation|spec|MTP|EAGLE\S*"
    r"|draft\w*)|base(?:line)?|plain|no spec\w*)\b",
    re.I,
)
_AT = re.compile(rf"\b(?:k|n|steps|depth)\s*=\s*(\d{{1,2}})[ :]+{_N}(?:\s*(?:tok/s|t/s|tps))?\s*@\s*{_N}", re.I)


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
        "tok/s",
        "t/s",
        "tokens/s",
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
        _sentence(place)
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


def _sentence(place: Place) -> None:
    text = place.text
    if match := _PLAIN.search(text):
        place.add(Q.PLAIN_TOKENS_PER_S, number(match[1]))
    for steps, rate, length in _AT.findall(text):
        place.add(Q.SPEC_TOKENS_PER_S, number(rate), steps=int(steps))
        place.add(Q.TOKENS_PER_CYCLE, number(length), steps=int(steps))
    if match := _SWEEP.search(text):
        steps = [int(one) for one in re.findall(r"\d+", match[2])]
        rates = [number(one.strip(" ~")) for one in match[1].split("/")]
        if len(steps) == len(rates):
            for k, value in zip(steps, rates, strict=True):
                place.add(Q.SPEC_TOKENS_PER_S if k else Q.PLAIN_TOKENS_PER_S, value, **({"steps": k} if k else {}))
            _lengths(place, [k for k in steps if k])


def _lengths(place: Place, steps: list[int]) -> None:
    if (match := _LENGTHS.search(place.text)) is None:
        return
    values = [number(one.strip(" ~")) for one in match[1].split("/")]
    if len(values) == len(steps):
        for k, value in zip(steps, values, strict=True):
            if value is not None and value >= 1.0:
                place.add(Q.TOKENS_PER_CYCLE, value, steps=k)
