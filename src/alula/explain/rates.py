"""One side of the comparison as numbers: its rate, its step, its tokens per cycle, at one load.

Normalises what tools print differently: tokens per cycle counts accepted drafts and the bonus token, whatever the tool
called it; rates are those of all requests together. Derives nothing across the two sides.
"""

from __future__ import annotations

import msgspec

from alula.explain.facts import RunFacts
from alula.explain.figures import Figure, derived, measured, shown
from alula.profile.evidence import WINDOW_MEAN, Evidence
from alula.profile.quantities import Quantity

_APPROXIMATE = 0.8  # of a rate over a whole benchmark, which holds prompts and waiting too


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the plain or of the speculative run. batch: requests at once; 1 where nothing says it."""

    speculative: bool
    run: RunFacts
    other: RunFacts
    batch: float = 1.0
    batch_known: bool = False
    rate: Figure | None = None
    token_ms: Figure | None = None
    tokens_per_cycle: Figure | None = None
    steps: int | None = None
    steps_evidence: Evidence | None = None
    width: int | None = None

    def at_batch(self, batch: float) -> Side:
        return msgspec.structs.replace(self, batch=batch, batch_known=True)

    def comparable(self, other: Side, tolerance: float = 0.1) -> bool:
        """Whether the two were measured at the same load, as far as known."""
        if not (self.batch_known and other.batch_known):
            return True
        return abs(self.batch - other.batch) <= tolerance * max(self.batch, other.batch)

    def figure(self, name: str, quantity: Quantity, unit: str) -> Figure | None:
        found = best(self.run, quantity, self.batch) or best(self.other, quantity, self.batch)
        return measured(name, found, unit) if found else None

    def step_ms(self) -> Figure | None:
        """A plain step, or a whole cycle."""
        name = "cycle" if self.speculative else "plain step"
        own = Quantity.CYCLE_MS if self.speculative else Quantity.PLAIN_STEP_MS
        if (found := self.figure(name, own, "ms")) is not None:
            return found
        step = best(self.run, Quantity.STEP_MS, self.batch)
        if step is not None and not (self.speculative and self.rate is not None):
            return measured(name, step, "ms")  # beside a rate of a run that drafts it is a time per token, no cycle
        tokens = self.tokens_per_cycle if self.speculative else None
        if self.speculative and tokens is None:
            return None
        count = tokens.value if tokens else 1.0
        times = f"{shown(count)} x " if self.speculative else ""
        if self.token_ms is not None:
            text = f"{times}{shown(self.token_ms.value)} ms per token"
            return derived(name, count * self.token_ms.value, "ms", text, self.token_ms, tokens)
        if self.rate is None:
            return None
        text = f"{times}1000 x {shown(self.batch)} / {shown(self.rate.value)} tokens/s"
        return derived(name, count * 1000.0 * self.batch / self.rate.value, "ms", text, self.rate, tokens)


def read_side(run: RunFacts, other: RunFacts, *, speculative: bool) -> Side:
    """The numbers of `run`. other: the other side, which may hold a value that names its side (a typed one)."""
    batch, batch_known = _batch(run, other)
    own = Quantity.SPEC_TOKENS_PER_S if speculative else Quantity.PLAIN_TOKENS_PER_S
    rate = best(run, own, batch) or best(other, own, batch) or best(run, Quantity.TOKENS_PER_S, batch)
    token = best(run, Quantity.TOKEN_MS, batch)
    name = "EAGLE rate" if speculative else "plain rate"
    steps, cited = _steps(run)
    return Side(
        speculative=speculative,
        run=run,
        other=other,
        batch=batch,
        batch_known=batch_known,
        rate=_rate(name, rate),
        token_ms=measured("time per token", token, "ms") if token else None,
        tokens_per_cycle=tokens_per_cycle(run, steps) if speculative else None,
        steps=steps,
        steps_evidence=cited,
        width=_width(run, steps),
    )


def best(run: RunFacts, quantity: Quantity, batch: float | None = None) -> Evidence | None:
    """The piece of evidence to use: of this batch where there is one, without a sweep's scope, with most samples."""
    found = [one for one in run.all(quantity) if one.number is not None]
    found = [one for one in found if one.scope.variant is None] or found
    if len({one.scope.variant for one in found}) > 1:
        return None  # rows of a table with names of their own: none of them is the run
    plain = [one for one in found if one.scope.steps is None and one.scope.rank in (None, 0)] or found
    at_batch = [one for one in plain if batch is not None and one.scope.batch == batch]
    unscoped = [one for one in plain if one.scope.batch is None]
    chosen = at_batch or unscoped or plain
    return max(chosen, key=lambda one: one.num_samples) if chosen else None


def tokens_per_cycle(run: RunFacts, steps: int | None) -> Figure | None:
    """Accepted drafts + 1, from whatever form the run has it in; the formula says which."""
    printed = best(run, Quantity.TOKENS_PER_CYCLE)
    name = "tokens per cycle"
    if (
        printed is not None
        and printed.scope.variant != WINDOW_MEAN
        and (figure := measured(name, printed, "")) is not None
    ):
        return figure
    cycles, accepted = run.first(Quantity.NUM_CYCLES), run.first(Quantity.NUM_ACCEPTED)
    drafted, share = run.first(Quantity.NUM_DRAFTED), run.first(Quantity.ACCEPTED_PER_DRAFTED)
    if accepted and cycles and (of := cycles.number):
        return _from(name, 1 + (accepted.number or 0) / of, "1 + accepted / cycles", accepted, cycles)
    if accepted and drafted and steps and (of := drafted.number):
        text = f"1 + {steps} x accepted / drafted"
        return _from(name, 1 + steps * (accepted.number or 0) / of, text, accepted, drafted)
    positions = acceptance_by_position(run)
    if positions:
        cited = run.all(Quantity.ACCEPTANCE)
        return _from(name, 1 + sum(positions), "1 + the sum of the acceptance by position", *cited)
    if share is not None and share.number is not None and steps:
        return _from(name, 1 + steps * share.number, f"1 + {steps} x accepted per drafted", share)
    chunk, token = run.first(Quantity.CHUNK_MS), run.first(Quantity.TOKEN_MS)
    if chunk and token and chunk.number and token.number and steps and chunk.number / token.number <= steps + 1.05:
        return _from(name, max(1.0, chunk.number / token.number), "time per chunk / time per token", chunk, token)
    return None


def acceptance_by_position(run: RunFacts) -> tuple[float, ...]:
    """Share of cycles that accepted the draft at position 0, 1, ...; empty where it is not known from 0 on."""
    known: dict[int, Evidence] = {}
    for one in run.all(Quantity.ACCEPTANCE):
        position = one.scope.position
        if position is None or one.number is None or not 0.0 <= one.number <= 1.0 or one.scope.variant is not None:
            continue
        if position not in known or one.num_samples > known[position].num_samples:
            known[position] = one
    count = next((position for position in range(len(known) + 1) if position not in known), 0)
    return tuple(known[position].number or 0.0 for position in range(count))


def _from(name: str, value: float, formula: str, *cited: Evidence) -> Figure:
    return Figure(name=name, value=value, unit="", formula=formula, evidence=cited)


def _rate(name: str, found: Evidence | None) -> Figure | None:
    figure = measured(name, found, "tokens/s") if found else None
    if figure is None or found is None:
        return None
    whole_benchmark = found.quantity is Quantity.TOKENS_PER_S and found.num_samples == 1
    return msgspec.structs.replace(figure, confidence=_APPROXIMATE if whole_benchmark else 1.0)


def _steps(run: RunFacts) -> tuple[int | None, Evidence | None]:
    """k: drafts in a chain. Where only the rows of verify are known and the tree is a chain, one less."""
    for quantity, less in ((Quantity.STEPS, 0), (Quantity.NUM_DRAFT_TOKENS, 1)):
        found = run.first(quantity)
        if found is None or found.number is None or found.number - less < 1:
            continue
        if quantity is Quantity.NUM_DRAFT_TOKENS and (run.number(Quantity.TOPK) or 1) > 1:
            continue
        return int(found.number) - less, found
    return None, None


def _width(run: RunFacts, steps: int | None) -> int | None:
    rows = run.number(Quantity.NUM_DRAFT_TOKENS)
    if rows is not None and rows >= 1:
        return int(rows)
    return steps + 1 if steps is not None else None


def _batch(run: RunFacts, other: RunFacts) -> tuple[float, bool]:
    """The load at which this run is looked at: one that both sides were measured at, where there is one."""
    own, theirs = batches(run), batches(other)
    if own:
        common = {batch: count for batch, count in own.items() if batch in theirs}
        chosen = common or own
        return float(max(chosen, key=lambda batch: (chosen[batch], -batch))), True
    for quantity in (Quantity.BATCH, Quantity.CONCURRENCY, Quantity.NUM_RUNNING):
        number = run.number(quantity)
        if number is not None and number >= 1:
            return number, True
    return 1.0, False


def batches(run: RunFacts) -> dict[int, int]:
    """Batch -> number of rate or time samples at it."""
    found: dict[int, int] = {}
    rates = (Quantity.TOKENS_PER_S, Quantity.CYCLE_MS, Quantity.STEP_MS, Quantity.TOKEN_MS)
    for quantity in (*rates, Quantity.PLAIN_STEP_MS, Quantity.PLAIN_TOKENS_PER_S, Quantity.SPEC_TOKENS_PER_S):
        for one in run.all(quantity):
            if one.scope.batch:
                found[one.scope.batch] = found.get(one.scope.batch, 0) + one.num_samples
    return found
