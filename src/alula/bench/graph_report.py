"""How phases ran, in words: as replays of CUDA graphs, or eagerly and why. Formats counts; computes none.

On a CPU there is nothing to say: it has no graphs.
"""

from __future__ import annotations

from typing import Any

from alula.bench.results import Figures, PhaseRuns
from alula.core.records import RunRecord


def graph_sentences(run: RunRecord, figures: Figures) -> list[str]:
    """A sentence for each side, and one of what the graphs took."""
    if run.device == "cpu":
        return []
    sides = [("plain", figures.plain), ("EAGLE-3", figures.eagle3)]
    said = [
        f"On the {name} side: {how_phases_ran(side.outcomes)}." for name, side in sides if side and side.outcomes
    ]
    return [*said, *captured(run.facts)]


def captured(facts: dict[str, Any]) -> list[str]:
    """What the graphs took before the first request, and captures that failed then."""
    graphs = facts.get("graphs")
    if graphs is None:
        refusal = (facts.get("device_cycle") or {}).get("refusal")
        return [f"The host leads every cycle: {refusal}."] if refusal else []
    if graphs["refusal"]:
        return [f"No CUDA graphs: {graphs['refusal']}."]
    taken = f"{graphs['captured']} CUDA graphs, captured in {graphs['seconds']:.1f} s, take "
    said = [f"{taken}{graphs['memory_bytes'] / 2**20:.0f} MiB."]
    return [*said, *(f"Not captured: {key}: {why}." for key, why in graphs["failures"].items())]


def how_phases_ran(outcomes: dict[str, PhaseRuns]) -> str:
    """A clause such as "draft, verify replayed; extend eager (eager_by_option 12)"."""
    whole = [phase for phase, runs in outcomes.items() if runs.replayed == runs.cycles]
    parts = [f"{', '.join(whole)} replayed"] if whole else []
    for phase, runs in outcomes.items():
        if phase not in whole:
            why = ", ".join(f"{reason} {count}" for reason, count in runs.eager_because.items())
            share = f"{runs.replayed_share:.1%} replayed, else " if runs.replayed else ""
            parts.append(f"{phase} {share}eager ({why})")
    return "; ".join(parts)
