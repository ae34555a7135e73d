"""Prometheus text of SGLang, vLLM and their like: gauges and counters that say how speculation goes.

Counters are totals since the server started. Durations by phase are totals of device time and counts.
"""

from __future__ import annotations

import re

from alula.explain.readers.found import Place
from alula.explain.sink import Sink
from alula.profile.quantities import Quantity

READER = "Prometheus metrics"
Q = Quantity
_LINE = re.compile(
    r"^(sglang|vllm|lmdeploy|tokenspeed|alula)[:_]([\w:]+?)(_total)?(?:\{(.*)\})? ([\d.eE+\-]+|NaN|\+Inf)(?: \d+)?$"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GAUGES = {
    "spec_accept_length": Q.TOKENS_PER_CYCLE,
    "spec_decode_mean_accept_length": Q.TOKENS_PER_CYCLE,
    "spec_num_steps": Q.STEPS,
    "spec_num_draft_tokens": Q.NUM_DRAFT_TOKENS,
    "num_running_reqs": Q.NUM_RUNNING,
    "num_queue_reqs": Q.NUM_QUEUED,
    "num_requests_running": Q.NUM_RUNNING,
    "num_requests_waiting": Q.NUM_QUEUED,
    "token_usage": Q.KV_USAGE,
    "kv_cache_usage_perc": Q.KV_USAGE,
    "gpu_cache_usage_perc": Q.KV_USAGE,
    "gen_throughput": Q.TOKENS_PER_S,
    "num_preemptions": Q.NUM_PREEMPTIONS,
}
_COUNTERS = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted",
    "spec_decode_num_accepted_tokens_per_pos": "per_position",
    "spec_verify_calls": "verify_calls",
    "generation_tokens": "generated",
    "forward_execution_seconds": "forward_s",
    "forward_execution_seconds_sum": "forward_s",
    "forward_execution_seconds_count": "forward_n",
}
_CATEGORIES = {
    "target_verify": Q.VERIFY_MS,
    "eagle_draft": Q.DRAFT_MS,
    "eagle_draft_extend": Q.EXTEND_MS,
    "decode": Q.PLAIN_STEP_MS,
}
_HISTOGRAMS = {  # their sum over their count is a mean since the server started
    "time_per_output_token_seconds": Q.TOKEN_MS,
    "request_time_per_output_token_seconds": Q.TOKEN_MS,
    "inter_token_latency_seconds": Q.CHUNK_MS,
    "time_to_first_token_seconds": Q.TTFT_MS,
    "e2e_request_latency_seconds": Q.REQUEST_MS,
}
_ENGINES = {
    "sglang": "sglang",
    "vllm": "vllm",
    "lmdeploy": "lmdeploy",
    "tokenspeed": "tokenspeed",
    "alula": "alula",
}


class MetricsText:
    """One source's samples. A second scrape of the same counters takes the place of the first (counters only grow)."""

    name = READER
    markers: tuple[str, ...] = ("sglang:", "vllm:", "lmdeploy:", "tokenspeed:", "sglang_", "vllm_", "alula_")

    def __init__(self) -> None:
        # engine, counter, label -> value with its line; labels of several engine processes are added up by key
        self._counters: dict[tuple[str, str, str], dict[str, tuple[float, int, str]]] = {}

    def line(self, number: int, text: str, sink: Sink) -> bool:
        match = _LINE.match(text.strip())
        if match is None:
            return False
        engine = _ENGINES[match[1]]
        value = _float(match[5])
        if value is None:
            return False
        labels = dict(_LABEL.findall(match[4] or ""))
        name = match[2]
        place = Place(sink, READER, number, text, engine)
        if name in _GAUGES:
            _gauge(place, _GAUGES[name], value)
        elif name.removesuffix("_sum").removesuffix("_count") in _HISTOGRAMS:
            self._counters.setdefault((engine, name, ""), {})[match[4] or ""] = (value, number, text)
        elif name in _COUNTERS:
            label = labels.get("position") or labels.get("category") or ""
            self._counters.setdefault((engine, _COUNTERS[name], label), {})[match[4] or ""] = (value, number, text)
        if labels.get("model_name"):
            place.add(Q.MODEL, labels["model_name"])
        return False

    def end(self, sink: Sink) -> None:
        for engine in sorted({key[0] for key in self._counters}):
            self._emit(sink, engine)

    def _emit(self, sink: Sink, engine: str) -> None:
        drafts = self._total(engine, "drafts")
        for kind, quantity in (
            ("draft_tokens", Q.NUM_DRAFTED),
            ("accepted", Q.NUM_ACCEPTED),
            ("drafts", Q.NUM_CYCLES),
        ):
            if (found := self._total(engine, kind)) is not None:
                self._place(sink, engine, kind).add(quantity, int(found))
        accepted, drafted = self._total(engine, "accepted"), self._total(engine, "draft_tokens")
        if drafts:
            if accepted is not None:
                self._place(sink, engine, "accepted").add(Q.TOKENS_PER_CYCLE, 1.0 + accepted / drafts)
            if drafted and drafted % drafts == 0:
                self._place(sink, engine, "draft_tokens").add(Q.STEPS, int(drafted / drafts))
            for _, kind, label in [key for key in self._counters if key[:2] == (engine, "per_position")]:
                share = (self._total(engine, kind, label) or 0.0) / drafts
                if label.isdecimal() and share <= 1.0:
                    self._place(sink, engine, kind, label).add(Q.ACCEPTANCE, share, position=int(label[:4]))
        self._phases(sink, engine)
        for name, quantity in _HISTOGRAMS.items():
            seconds, count = self._total(engine, f"{name}_sum"), self._total(engine, f"{name}_count")
            if seconds and count:
                self._place(sink, engine, f"{name}_sum").add(quantity, 1000.0 * seconds / count)

    def _phases(self, sink: Sink, engine: str) -> None:
        for category, quantity in _CATEGORIES.items():
            seconds, calls = self._total(engine, "forward_s", category), self._total(engine, "forward_n", category)
            calls = calls or (self._total(engine, "verify_calls") if category == "target_verify" else None)
            if seconds and calls:
                self._place(sink, engine, "forward_s", category).add(quantity, 1000.0 * seconds / calls)

    def _total(self, engine: str, kind: str, label: str = "") -> float | None:
        found = self._counters.get((engine, kind, label))
        return sum(one[0] for one in found.values()) if found else None

    def _place(self, sink: Sink, engine: str, kind: str, label: str = "") -> Place:
        _, line, text = next(iter(self._counters[engine, kind, label].values()))
        return Place(sink, READER, line, text, engine)


def _gauge(place: Place, quantity: Quantity, value: float) -> None:
    if (quantity is Q.TOKENS_PER_CYCLE and value < 1.0) or value < 0:  # 0: no request since the start
        return
    if quantity in (Q.STEPS, Q.NUM_DRAFT_TOKENS):
        if value > 0:
            place.add(quantity, int(value))
    elif quantity is not Q.TOKENS_PER_S or value > 0:
        place.sample(quantity, value)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None
