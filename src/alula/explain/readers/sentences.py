"""Numbers in sentences, read in few and strict forms: a rate with its side, a sweep over k, a length, a verify's time.

A rate counts only if the words of its own clause name one side, and only outside of log lines and tables; whatever else
is prose stays prose.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import LOG_START, Place, number
from alula.explain.readers.labels import side_of
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "sentences"
Q = Quantity
_N = r"(\d[\d,]{0,14}(?:\.\d{1,12})?)"
_UNIT = r"(?:tok(?:en)?s?\s?/\s?s(?:ec)?|tok(?:en)?s per second|t/s|tps)\b"
_RATE = re.compile(rf"(?<![\w.]){_N}\s*{_UNIT}", re.I)
_SERIES = r"~?\d+(?:\.\d+)?(?:\s*/\s*~?\d+(?:\.\d+)?)+"
_SWEEP = re.compile(
    rf"({_SERIES})\s*(?:{_UNIT})?\s+(?:for|with|at)\s+(?:k|n|MTP|steps|depth)\s*=\s*(\d+(?:\s*/\s*\d+)+)", re.I
)
_LENGTHS = re.compile(
    rf"(?:accept(?:ance|ed)?(?: length)?|tokens per (?:step|cycle))\s+(?:is|of|=|:)?\s*({_SERIES})", re.I
)
_AT = re.compile(rf"\b(?:k|n|steps|depth)\s*=\s*(\d{{1,2}})[ :]+{_N}\s*(?:{_UNIT})?\s*@\s*{_N}", re.I)
_BY_STEPS = re.compile(rf"\b(?:k|n|steps|depth)\s*=\s*(\d{{1,2}})\s*[:\-]?\s+{_N}\s*{_UNIT}(?!\s*@)", re.I)
_POSITIONS = re.compile(rf"\bper[- ]position(?: acceptance)?(?: rates?)?\s*[:=`]*\s*({_SERIES})", re.I)
_FIRST = re.compile(rf"\bposition[- ]?0 acceptance\s*(?:is|was|of|=|:)?\s*(?:only\s+)?{_N}\s*%", re.I)
_LENGTH = re.compile(
    r"\b(?:accept(?:ance|ed)?[ _]len(?:gth)?|mean length)\s*(?:is|was|of|=|:|~|≈)?\s*(?:about|around|~|≈)?\s*"
    rf"{_N}(?!\s*(?:%|/))",
    re.I,
)
_TIME = re.compile(
    r"\b(verify|verification|plain (?:decode )?step|draft(?:ing)?|cycle)\s+(?:step\s+)?(?:takes|took|costs|is|=|of)\s+"
    rf"(?:about\s+|~)?{_N}\s*ms\b",
    re.I,
)
_TIMES = (("verif", Q.VERIFY_MS), ("plain", Q.PLAIN_STEP_MS), ("draft", Q.DRAFT_MS), ("cycle", Q.CYCLE_MS))
_STEPS = re.compile(r"\b(\d{1,2}) (?:draft )?steps\b|\b(?:k|num_steps|steps)\s*=\s*(\d{1,2})\b", re.I)
_CLAUSE = re.compile(r"[;,.]\s|\s(?:vs\.?|versus|but|while|and|instead of|against|to)\s|->|→|\n")


class Sentences:
    """Stateless but for the name."""

    name = READER
    markers: tuple[str, ...] = (
        "tok/s",
        "t/s",
        "tokens/s",
        "tps",
        "TPS",
        "per second",
        "ccept",
        "erif",
        " ms",
        "mean length",
        "osition",
    )

    def line(self, line: int, text: str, sink: Sink) -> bool:
        if len(text) > 2000 or LOG_START.match(text) or "|" in text or "│" in text or "{" in text:
            return False
        place = Place(sink, READER, line, text)
        if not _sweeps(place):
            _rates(place)
        if (match := _LENGTH.search(text)) and (value := number(match[1])) is not None and 1.0 <= value < 100.0:
            place.add(Q.TOKENS_PER_CYCLE, value)
        _shares(place)
        for match in _TIME.finditer(text):
            word = match[1].lower()
            quantity = next((one for start, one in _TIMES if word.startswith(start)), None)
            if quantity is not None:
                place.add(quantity, number(match[2]))
        return False

    def end(self, sink: Sink) -> None:
        return


def _shares(place: Place) -> None:
    """Acceptance by position."""
    if match := _POSITIONS.search(place.text):
        shares = [number(one.strip(" ~")) for one in match[1].split("/")]
        if all(share is not None and share <= 1.0 for share in shares):
            for position, share in enumerate(shares[:64]):
                place.add(Q.ACCEPTANCE, share, position=position)
    elif (match := _FIRST.search(place.text)) and (share := number(match[1])) is not None and share <= 100.0:
        place.add(Q.ACCEPTANCE, share / 100.0, position=0)


def _rates(place: Place) -> None:
    """`82.2 tok/s without speculation`, `EAGLE-3 with 2 steps: 60.5 tok/s`: each rate with the words of its clause."""
    text = place.text
    matches = list(_RATE.finditer(text))
    for index, match in enumerate(matches[:32]):
        before = text[matches[index - 1].end() if index else 0 : match.start()]
        after = text[match.end() : matches[index + 1].start() if index + 1 < len(matches) else len(text)]
        clause = _CLAUSE.split(before)[-1] + " " + _CLAUSE.split(after)[0]
        side = side_of(clause)
        if side is None:
            continue
        steps = _STEPS.search(clause) if side is Q.SPEC_TOKENS_PER_S else None
        scope = {"steps": int(steps[1] or steps[2])} if steps else {}
        place.add(side, number(match[1]), **scope)


def _sweeps(place: Place) -> bool:
    """Several rates by k in one line; True if the line is such a one."""
    text = place.text
    pairs = _AT.findall(text)
    for steps, rate, length in pairs:
        _rate_at(place, int(steps), number(rate))
        place.add(Q.TOKENS_PER_CYCLE, number(length), steps=int(steps))
    alone = _BY_STEPS.findall(text)
    for steps, rate in alone:
        _rate_at(place, int(steps), number(rate))
    match = _SWEEP.search(text)
    if match is not None:
        steps_of = [int(one[:4]) for one in re.findall(r"\d+", match[2])]
        rates = [number(one.strip(" ~")) for one in match[1].split("/")]
        if len(steps_of) == len(rates):
            for k, value in zip(steps_of, rates, strict=True):
                _rate_at(place, k, value)
            _lengths(place, [k for k in steps_of if k])
        for plain in _RATE.finditer(text[: match.start()]):
            if side_of(_CLAUSE.split(text[plain.end() : match.start()])[0]) is Q.PLAIN_TOKENS_PER_S:
                place.add(Q.PLAIN_TOKENS_PER_S, number(plain[1]))
    return bool(pairs or alone or match)


def _rate_at(place: Place, steps: int, rate: float | None) -> None:
    if steps:
        place.add(Q.SPEC_TOKENS_PER_S, rate, steps=steps)
    else:
        place.add(Q.PLAIN_TOKENS_PER_S, rate)


def _lengths(place: Place, steps: list[int]) -> None:
    if (match := _LENGTHS.search(place.text)) is None:
        return
    values = [number(one.strip(" ~")) for one in match[1].split("/")]
    if len(values) == len(steps):
        for k, value in zip(steps, values, strict=True):
            if value is not None and value >= 1.0:
                place.add(Q.TOKENS_PER_CYCLE, value, steps=k)
