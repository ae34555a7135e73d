"""Reading graph evidence: how often a phase was replayed, in which mode, what eager costs. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.explain.case import Case
from alula.explain.facts import RunFacts
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity


class Replays(msgspec.Struct, frozen=True):
    """What was said of a phase's forwards: with a graph, without."""

    replayed: tuple[Evidence, ...]
    eager: tuple[Evidence, ...]

    @property
    def share_eager(self) -> float:
        eager, all_of_them = (
            sum(one.num_samples for one in part) for part in (self.eager, self.replayed + self.eager)
        )
        return eager / all_of_them if all_of_them else 0.0

    @property
    def only_eager(self) -> bool:
        return bool(self.eager) and not self.replayed


def replays(run: RunFacts, phases: Sequence[str]) -> Replays:
    found = [one for phase in phases for one in run.all(Quantity.GRAPH_REPLAYED, phase=phase)]
    return Replays(
        replayed=tuple(one for one in found if one.value is True),
        eager=tuple(one for one in found if one.value is False),
    )


def has_graphs(case: Case) -> bool:
    """Whether the device is one that could have graphs, as far as known."""
    return not (case.text(Quantity.GPU) or "").lower().startswith("cpu")


def graph_modes(run: RunFacts, phases: Sequence[str | None], wanted: Sequence[str]) -> tuple[Evidence, ...]:
    """Evidence of these modes. A mode said of an earlier phase in `phases` hides what is said of later ones: a
    downgrade for verify stands against the configured mode of the target.
    """
    for phase in phases:
        found = run.all(Quantity.GRAPH_MODE, phase=phase)
        if found:
            return tuple(one for one in found if str(one.value).lower() in wanted)
    return ()


def eager_cost(case: Case, phases: Sequence[str]) -> float | None:
    """Milliseconds between the phase run eagerly and as a graph, where an experiment measured both."""
    for phase in phases:
        eager = case.spec.number(Quantity.FORWARD_MS, phase=phase, variant="eager")
        graph = case.spec.number(Quantity.FORWARD_MS, phase=phase, variant="graph")
        if eager is not None and graph is not None:
            return max(0.0, eager - graph)
    return None
