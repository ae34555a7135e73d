"""Lines of people's own profilers: a phase's name and its milliseconds a cycle ("Target verify: 28.96 ms/cyc (graph)").

Also fits that people print ("step(k) = 37.7 + 35 + 26 k [ms]" is left alone: it is a conclusion).
"""

from __future__ import annotations

import re

from alula.explain.readers.found import Place, number
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "profiler lines"
Q = Quantity
_PER = r"(?:\s*/\s*|\s+per\s+|\s+a\s+)(?:cyc(?:le)?|step|iter(?:ation)?|forward|verify|round)\b"
_ROW = re.compile(
    rf"(?P<label>[A-Za-z][\w \-/+()\[\].]{{1,60}}?)\s*[:="
    rf"|│]\s*(?:[~≈]\s*)?(?P<value>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>ms|us|µs)(?P<per>{_PER})?",
    re.I,
)
_LOOSE = re.compile(
    r"\b(?P<label>(?:target |verify|draft|plain|baseline|decode|cycle"
    rf"|spec)[\w \-]{{0,40}}?)\s+(?:takes |took |is |costs |at )?"
    rf"(?P<value>\d[\d,]*(?:\.\d+)?)\s*(?P<unit>ms)(?P<per>{_PER})",
    re.I,
)
_PHASES: tuple[tuple[re.Pattern[str], Quantity, str | None], ...] = (
    (re.compile(r"draft[ _\-]*extend|extend", re.I), Q.EXTEND_MS, None),
    (re.compile(r"graph ?launch", re.I), Q.GRAPH_LAUNCH_MS, None),
    (re.compile(r"all.?reduce|nccl|collective|comm(?:unication)?\b", re.I), Q.COLLECTIVE_MS, None),
    (re.compile(r"verif(?:y|ication)", re.I), Q.VERIFY_MS, None),
    (re.compile(r"draft (?:step|forward)|per draft", re.I), Q.DRAFT_STEP_MS, None),
    (re.compile(r"draft|propos|mtp|eagle", re.I), Q.DRAFT_MS, None),
    (
        re.compile(r"(?:cycle|spec(?:ulative)? step|total)(?: total| time)?\s*$|full cycle|cycle total", re.I),
        Q.CYCLE_MS,
        None,
    ),
    (re.compile(r"plain|baseline|base\b|no spec|without spec|decode step|vanilla", re.I), Q.PLAIN_STEP_MS, None),
    (re.compile(r"accept|sampl|reject", re.I), Q.PHASE_MS, "accept"),
    (re.compile(r"schedul|prepar|metadata|batch build", re.I), Q.PHASE_MS, "schedule"),
    (re.compile(r"emit|detoken|output", re.I), Q.PHASE_MS, "emit"),
    (re.compile(r"host|cpu|gap|idle|bubble", re.I), Q.HOST_MS, None),
    (re.compile(r"other|misc|rest", re.I), Q.PHASE_MS, "other"),
)
_GRAPH = re.compile(
    r"\b(?:cuda[ _]?)?graph(?:s)?\s*[=:]?\s*(on|off|yes|no|true|false|replay(?:ed)?|hit|miss)\b|\((eager|graph)\)",
    re.I,
)
_YES = {"on", "yes", "true", "replay", "replayed", "hit", "graph"}
_NODES = re.compile(r"(?:graph nodes\s*\|?\s*[:=]?\s*)([\d,]{1,12})|([\d,]{1,12}) (?:graph )?nodes", re.I)


class ProfilerLines:
    """Stateless but for the name."""

    name = READER
    markers: tuple[str, ...] = (
        "ms/cyc",
        "us/cyc",
        "ms / ",
        "ms/step",
        "ms / cyc",
        "ms/iter",
        "ms per ",
        "ms a ",
        "ms/verify",
        "ms/forward",
        "ms/round",
        "graph nodes",
    )

    def line(self, line: int, text: str, sink: Sink) -> bool:
        place = Place(sink, READER, line, text)
        for pattern in (_ROW, _LOOSE):
            matches = [match for match in pattern.finditer(text) if match["per"] or "ms/" in text]
            for match in matches:
                _value(place, match)
            if matches:
                break
        if (nodes := _NODES.search(text)) and "graph" in text.lower():
            count = number(nodes[1] or nodes[2])
            phase = "verify" if re.search(r"verif", text, re.I) else "draft" if "draft" in text.lower() else None
            if count:
                place.add(Q.GRAPH_NODES, int(count), **({"phase": phase} if phase else {}))
        return False

    def end(self, sink: Sink) -> None:
        return


def _value(place: Place, match: re.Match[str]) -> None:
    value = number(match["value"])
    if value is None:
        return
    milliseconds = value if match["unit"].lower() == "ms" else value / 1000.0
    label = match["label"].strip()
    for pattern, quantity, phase in _PHASES:
        if pattern.search(label):
            place.sample(quantity, milliseconds, **({"phase": phase} if phase else {}))
            if graph := _GRAPH.search(place.text[match.end() : match.end() + 60]):
                replayed = (graph[1] or graph[2]).lower() in _YES
                where = {
                    Q.VERIFY_MS: "verify",
                    Q.DRAFT_MS: "draft",
                    Q.EXTEND_MS: "extend",
                    Q.PLAIN_STEP_MS: "decode",
                }
                if quantity in where:
                    place.add(Q.GRAPH_REPLAYED, replayed, phase=where[quantity])
            return
