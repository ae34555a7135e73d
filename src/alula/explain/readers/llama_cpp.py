"""llama.cpp's speculative statistics, of the examples and of the server, and its timing lines.

`accept` is accepted / drafted. Target steps of a request are what was predicted minus what was accepted.
"""

from __future__ import annotations

import re

import msgspec

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

ENGINE = "llama.cpp"
READER = "llama.cpp statistics"
Q = Quantity
_NUMBER = r"([\d.]{1,18})"
_DECODED = re.compile(rf"(?:decoded|generated)\s+(\d+) tokens in\s+{_NUMBER} seconds, speed:\s+{_NUMBER} t/s")
_COUNTER = re.compile(r"\bn_(draft|predict|drafted|accept)\s*=\s*(\d{1,12})\b")
_RATE = re.compile(rf"draft acceptance(?: rate)? = {_NUMBER} \(\s*(\d+) accepted /\s*(\d+) generated\)")
_LENGTH = re.compile(rf"(?:mean acceptance length|#mean acc len) =\s*{_NUMBER}")
_POSITIONS = re.compile(r"(?:acceptance rate per position|#acc rate/pos) = \(([\d., ]+)\)")
_STATISTICS = re.compile(r"statistics\s+(?:draft-)?([\w\-]+):")
_FIELD = re.compile(r"#([a-z ]+?)(?:\(b,g,a\))? = ((?:\d+ ?)+)")
_DURATIONS = re.compile(rf"dur\(b,g,a\) = {_NUMBER}, {_NUMBER}, {_NUMBER} ms")
_EVAL = re.compile(
    rf"(?<!prompt )eval time =\s+{_NUMBER} ms /\s+(\d+) (?:tokens"
    rf"|runs)\s*\(\s*{_NUMBER} ms per token,\s+{_NUMBER} tokens per second"
)
_SLOT = re.compile(r"slot print_timing: id\s+(\d+) \| task (\d+)")
_BUILD = re.compile(r"\bbuild:?\s*=?\s*(\d{3,6}) \(([0-9a-f]{6,})\)")


class _Request(msgspec.Struct):
    """What the timing lines of one request said so far."""

    predicted: int = 0
    predicted_ms: float = 0.0
    accepted: int = 0
    generated: int = 0
    length: float | None = None


class LlamaCppLines:
    """One source's statistics. The eval line of a request comes before or after its acceptance line."""

    name = READER
    markers: tuple[str, ...] = (
        "eval time =",
        "draft acceptance",
        "statistics ",
        "n_draft",
        "n_predict",
        "n_accept",
        "tokens in ",
        "build: ",
    )

    def __init__(self) -> None:
        self._request = _Request()
        self._slot: str | None = None
        self._counters: dict[str, tuple[int, int, str]] = {}
        self._decoded: tuple[int, float] | None = None

    def line(self, line: int, text: str, sink: Sink) -> bool:
        place = Place(sink, READER, line, text, ENGINE)
        for name, value in _COUNTER.findall(text):
            self._counters[name] = (int(value), line, text)
            if name == "accept":
                self._example(place)
        if match := _DECODED.search(text):
            self._decode(place, match)
        if match := _EVAL.search(text):
            self._eval(place, match)
        if match := _RATE.search(text):
            self._acceptance(place, match)
        elif "statistics " in text and (match := _STATISTICS.search(text)):
            _statistics(place, match[1])
        if (match := _BUILD.search(text)) is not None:
            place.add(Q.ENGINE_VERSION, f"b{match[1]}")
        return False

    def _decode(self, place: Place, match: re.Match[str]) -> None:
        tokens, seconds = int(match[1][:12]), _float(match[2])
        if match[0].startswith(("decoded", "generated")):
            place.add(Q.TOKENS_PER_S, _float(match[3]))
            if seconds and tokens:
                self._decoded = (tokens, seconds)

    def _example(self, place: Place) -> None:
        """`llama-speculative` prints its counters one a line, n_accept last."""
        value = {name: found[0] for name, found in self._counters.items()}
        self._counters.clear()
        accepted, drafted, predicted = value["accept"], value.get("drafted"), value.get("predict")
        place.add(Q.NUM_ACCEPTED, accepted)
        if drafted is not None:
            place.add(Q.NUM_DRAFTED, drafted)
            if drafted:
                place.add(Q.ACCEPTED_PER_DRAFTED, accepted / drafted)
        if value.get("draft"):
            place.add(Q.STEPS, value["draft"])
        if predicted is not None and predicted > accepted:
            self._cycles(place, predicted, accepted)

    def _cycles(self, place: Place, predicted: int, accepted: int) -> None:
        cycles = predicted - accepted
        place.add(Q.NUM_CYCLES, cycles)
        place.add(Q.TOKENS_PER_CYCLE, predicted / cycles)
        if self._decoded is not None:
            tokens, seconds = self._decoded
            if tokens == predicted:
                place.add(Q.CYCLE_MS, 1000.0 * seconds / cycles)

    def _eval(self, place: Place, match: re.Match[str]) -> None:
        """One request's generation; its slot and task tie it to the acceptance line."""
        self._new_request(place.text)
        self._request.predicted, self._request.predicted_ms = int(match[2][:12]), _float(match[1]) or 0.0
        place.sample(Q.TOKENS_PER_S, _float(match[4]))
        place.sample(Q.TOKEN_MS, _float(match[3]))

    def _new_request(self, text: str) -> None:
        found = _SLOT.search(text)
        slot = f"{found[1]}/{found[2]}" if found else None
        if slot != self._slot or self._request.predicted:
            self._request, self._slot = _Request(), slot

    def _acceptance(self, place: Place, match: re.Match[str]) -> None:
        accepted, generated = int(match[2][:12]), int(match[3][:12])
        place.sample(Q.NUM_ACCEPTED, accepted)
        place.sample(Q.NUM_DRAFTED, generated)
        place.sample(Q.ACCEPTED_PER_DRAFTED, _float(match[1]))
        _positions(place)
        request = self._request
        cycles = request.predicted - accepted
        if (length := _LENGTH.search(place.text)) is not None:
            place.sample(Q.TOKENS_PER_CYCLE, _float(length[1]))
        elif request.predicted and cycles > 0:
            place.sample(Q.TOKENS_PER_CYCLE, request.predicted / cycles)
        if request.predicted and cycles > 0:
            place.sample(Q.CYCLE_MS, request.predicted_ms / cycles, batch=1)
        self._request = _Request()

    def end(self, sink: Sink) -> None:
        return


def _statistics(place: Place, algorithm: str) -> None:
    """A `statistics NAME:` line: counters of the whole server. dur(g) is the time of all drafting."""
    place.add(Q.ALGORITHM, algorithm)
    field = {name.strip(): value.split() for name, value in _FIELD.findall(place.text)}
    durations = _DURATIONS.search(place.text)
    calls = int(field["calls"][1][:12]) if len(field.get("calls", [])) == 3 else 0
    drafts = int(field["gen drafts"][0][:12]) if "gen drafts" in field else calls
    if drafts:
        place.add(Q.NUM_CYCLES, drafts)
    for name, quantity in (("gen tokens", Q.NUM_DRAFTED), ("acc tokens", Q.NUM_ACCEPTED)):
        if name in field:
            place.add(quantity, int(field[name][0][:12]))
    if durations is not None and drafts and (spent := _float(durations[2])) is not None:
        place.add(Q.DRAFT_MS, spent / drafts)
    if (length := _LENGTH.search(place.text)) is not None:
        place.add(Q.TOKENS_PER_CYCLE, _float(length[1]))
    elif drafts and "acc tokens" in field:
        place.add(Q.TOKENS_PER_CYCLE, 1.0 + int(field["acc tokens"][0][:12]) / drafts)
    _positions(place)


def _positions(place: Place) -> None:
    if (match := _POSITIONS.search(place.text)) is None:
        return
    for position, rate in enumerate(match[1].split(",")[:64]):
        value = _float(rate.strip())
        if value is not None and value <= 1.0:
            place.sample(Q.ACCEPTANCE, value, position=position)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
