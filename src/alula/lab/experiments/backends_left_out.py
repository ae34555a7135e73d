"""The same cycles with the backend in use left out, so that the next best one carries the collectives."""

from __future__ import annotations

from functools import partial

from alula.core.errors import InvalidOption
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.lab.second_engine import Served, Variation, serve
from alula.profile.quantities import Quantity

FEWEST_TOKENS, MOST_TOKENS = 12, 64


class BackendsLeftOut(Experiment):
    name = "backends_left_out"
    least_s = 5.0

    def refusal(self, laboratory: Laboratory) -> str | None:
        if laboratory.described.tp == 1:
            return "there is one rank"
        return None if _in_use(laboratory) else "no all-reduce was recorded"

    def run(self, laboratory: Laboratory, share: Share) -> None:
        each_ms = 4.0 * (laboratory.cycle_ms() or laboratory.plain_ms() or 50.0)
        tokens = max(FEWEST_TOKENS, min(MOST_TOKENS, int(1e3 * share.left_s / each_ms)))
        for name in _in_use(laboratory):
            specs = laboratory.specs(f"without-{name}", 1, tokens, laboratory.steps)
            try:
                work = partial(serve, specs=specs, variation=Variation(without=(name,)))
                served: Served = laboratory.llm.experiment(work)[0]
            except InvalidOption as error:  # nothing else takes these calls
                laboratory.sink(self.name).note(f"without {name}: {error}")
                continue
            drafted = bool(laboratory.steps)
            times = [one.wall_ms for one in served.cycles if one.drafted is drafted and _decodes(one.requests)]
            quantity = Quantity.CYCLE_MS if drafted else Quantity.STEP_MS
            laboratory.times(self.name, quantity, times, variant=f"without {name}")


def _in_use(laboratory: Laboratory) -> tuple[str, ...]:
    found = laboratory.llm.collectives()
    names = [one.backend for one in found.dispatched if one.op == "all_reduce" and one.work] if found else []
    return tuple(dict.fromkeys(names))


def _decodes(requests: tuple[object, ...]) -> bool:
    return bool(requests) and not any(getattr(request, "num_prefill", 0) for request in requests)
