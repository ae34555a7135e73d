"""Issue 3's rows against a document of the GPU suite: what was asked, what was measured, whether it is met.

Reads figures; computes none that the document could not be checked for. What was not measured is not met.
"""

from __future__ import annotations

from typing import Any

from gpu_report import say, table
from gpu_scale import LARGE, SMALL

AT_MOST, AT_LEAST = "<=", ">="


def rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row that the issue says must show. A dry run's figures are not judged."""
    found = _rows(document)
    return [{**row, "first_met": None, "then_met": None} for row in found] if document.get("dry") else found


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    sections = document["sections"]
    large, small = sections.get(LARGE, {}), sections.get(SMALL, {})
    real, first = sections.get("real", {}), _replay(large, 0)
    served = _served(large, 1)
    cycle = _larger(_at(first, "cycle_over_plain"), _at(served, "cycle_over_plain"))
    host = _larger(_at(served, "cycle", "host_over_device"), _at(served, "cycle", "wall_over_device"))
    twelve = _at(real, "twelve")
    note = f"k = {_at(twelve, 'best_k')}; plain step served {_number(_at(twelve, 'plain_ms'))} ms"
    # The ratio counts only over a plain step that meets its own row.
    plain_ms = _larger(_at(twelve, "plain_ms"), _at(_replay(small, 0), "plain", "ms"))
    return [
        _row("8B plain step / floor", AT_MOST, 1.20, 1.10, _at(first, "plain", "over_floor"), _served_note(served)),
        _row("8B verify(4) / plain step", AT_MOST, 1.04, 1.02, _at(first, "verify_over_plain")),
        _row("8B k = 3 cycle / plain step, wall", AT_MOST, 1.25, 1.18, cycle, _cycle_note(first, served)),
        _row(
            "8B tokens/s at a forced 2.8", AT_LEAST, 505, 585, _at(served, "cycle", "tokens_per_s"), _mean(served)
        ),
        _row("8B cycle, wall / device phases", AT_MOST, 1.05, None, host, "the larger of record and host clock"),
        _row("SmolLM2 plain step, ms", AT_MOST, 0.45, 0.25, plain_ms, _small_note(small)),
        _row(
            "SmolLM2 EAGLE-3 / plain, twelve", AT_LEAST, 1.6, 1.9, _if(_at(twelve, "best_speedup"), plain_ms), note
        ),
        _row(
            *("8B plain step, batch 16, KV 512 / floor", AT_MOST, 1.35, 1.20),
            _at(_replay(large, 0, batch=16), "plain", "over_floor"),
        ),
        _row("SmolLM2 mismatched tokens", AT_MOST, 0, 0, _mismatched(real), "twelve prompts, 64 prompts, all ways"),
        _row(
            "8B logits of other bits", AT_MOST, 0, 0, _at(large, "bits", "differing"), "batch 1, 4, 7, widths 1-9"
        ),
        _row("SmolLM2 random head, auto / plain", AT_LEAST, 0.95, 0.98, _auto(sections, "auto-small")),
        _row("8B random head, auto / plain", AT_LEAST, 0.95, 0.98, _auto(sections, "auto-large")),
        _row("8B ready after its weights, s", AT_MOST, 60, None, _at(large, "start_up", "seconds_after_weights")),
        _row("phases of decoding without a graph", AT_MOST, 0, None, _eager(large, small, real)),
        _row("the whole suite, s", AT_MOST, 480, None, document.get("seconds")),
    ]


def show(document: dict[str, Any]) -> None:
    """Computes the rows into the document and prints them."""
    document["must_show"] = found = rows(document)
    say("=== what issue 3 must show" + (" (a dry run: the figures mean nothing)" if document.get("dry") else ""))
    table(
        ("figure", "first", "then", "measured", "first met", "then met", ""),
        [
            (
                row["figure"],
                *(None if row[key] is None else f"{row['sense']} {row[key]:g}" for key in ("first", "then")),
                row["measured"],
                *(row["first_met"], row["then_met"], row["note"]),
            )
            for row in found
        ],
    )


def _row(
    figure: str, sense: str, first: float, then: float | None, measured: float | None, note: str = ""
) -> dict[str, Any]:
    def met(target: float | None) -> str | None:
        if target is None:
            return None
        if measured is None:
            return "not measured"
        return "yes" if (measured <= target if sense == AT_MOST else measured >= target) else "no"

    return {
        "figure": figure,
        "sense": sense,
        "first": first,
        "then": then,
        "measured": measured,
        "first_met": met(first),
        "then_met": met(then),
        "note": note,
    }


def _at(tree: Any, *path: str) -> Any:
    """A value deep in the document; None where anything on the way is missing."""
    for key in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return tree


def _replay(section: dict[str, Any], kv_index: int, batch: int = 1) -> Any:
    """The replays at the shortest KV length."""
    found = section.get("replays")
    if not isinstance(found, list):
        return None
    shortest = min(row["kv_tokens"] for row in found)
    return next((row for row in found if row["kv_tokens"] == shortest and row["batch"] == batch), None)


def _served(section: dict[str, Any], batch: int) -> Any:
    """What was served at the shortest KV length."""
    found = [
        value
        for key, value in section.items()
        if key.startswith("served_") and key.endswith(f"_batch{batch}") and "cycle" in value
    ]
    return min(found, key=lambda value: value["kv_tokens"], default=None)


def _larger(*values: float | None) -> float | None:
    """None where one is missing: the other might be the smaller."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _if(speedup: float | None, plain_ms: float | None) -> float | None:
    return speedup if plain_ms is not None and plain_ms <= 0.45 else None


def _mismatched(real: dict[str, Any]) -> int | None:
    counts = [_at(real, name, "mismatched_tokens") for name in ("twelve", "exactness")]
    return None if None in counts else sum(counts)


def _auto(sections: dict[str, Any], name: str) -> float | None:
    return _at(sections.get(name), "tokens", "auto_over_plain")


def _eager(large: dict[str, Any], small: dict[str, Any], real: dict[str, Any]) -> int | None:
    """Phases that served decode cycles ran eagerly, over everything that was served."""
    sides = [
        value[side]
        for section in (large, small)
        for key, value in section.items()
        if key.startswith("served_") and "cycle" in value
        for side in ("plain", "cycle")
    ]
    sides += [row[side] for row in _at(real, "twelve", "rows") or [] for side in ("plain", "cycle")]
    return sum(len(side["eager"]) for side in sides) if sides else None


def _served_note(served: Any) -> str:
    return f"served {_number(_at(served, 'plain', 'over_floor'))}"


def _small_note(small: Any) -> str:
    served = _number(_at(_served(small, 1), "plain", "host_ms"))
    return f"the larger of replayed at KV 512 and real, served; the shape served around KV 512: {served}"


def _cycle_note(first: Any, served: Any) -> str:
    replayed = _number(_at(first, "cycle_over_plain"))
    return f"the larger of replayed {replayed} and served {_number(_at(served, 'cycle_over_plain'))}"


def _mean(served: Any) -> str:
    return f"{_number(_at(served, 'cycle', 'tokens_per_cycle'))} over {_at(served, 'cycle', 'cycles')} cycles"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
