"""A case: which runs were found, which is the plain one and which speculates, and what their numbers imply.

Merges what several files say of one run, keeps two engines and two settings apart, and draws no conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.explain.arithmetic import Arithmetic, work_out
from alula.explain.facts import Contradiction, RunFacts, same_value
from alula.explain.rates import batches, read_side
from alula.explain.sink import Sink
from alula.explain.sweep import SweepPoint, focused, sweep_of
from alula.explain.typed import CONFLICT
from alula.profile.evidence import Evidence, Label
from alula.profile.quantities import Quantity

_RATES = (
    Quantity.TOKENS_PER_S,
    Quantity.SPEC_TOKENS_PER_S,
    Quantity.STEP_MS,
    Quantity.CYCLE_MS,
    Quantity.TOKEN_MS,
    Quantity.PLAIN_STEP_MS,
    Quantity.PLAIN_TOKENS_PER_S,
)
# Two runs with rates of their own that differ in one of these are two runs, not one that contradicts itself.
_TELLS_APART = (
    Quantity.ENGINE,
    Quantity.STEPS,
    Quantity.NUM_DRAFT_TOKENS,
    Quantity.TOPK,
    Quantity.ALGORITHM,
    Quantity.TP,
    Quantity.ATTENTION_BACKEND,
)
# Runs of several draft lengths are one sweep only of the same thing.
_SUBJECT = (Quantity.ENGINE, Quantity.MODEL, Quantity.GPU, Quantity.TP, Quantity.DRAFT_MODEL)
_ONLY_SPECULATIVE = (
    Quantity.TOKENS_PER_CYCLE,
    Quantity.NUM_DRAFTED,
    Quantity.NUM_ACCEPTED,
    Quantity.ACCEPTANCE,
    Quantity.ACCEPTED_PER_DRAFTED,
    Quantity.CYCLE_MS,
    Quantity.VERIFY_MS,
    Quantity.DRAFT_MS,
    Quantity.DRAFT_STEP_MS,
    Quantity.EXTEND_MS,
    Quantity.STEPS,
    Quantity.NUM_DRAFT_TOKENS,
    Quantity.DRAFT_MODEL,
    Quantity.SPEC_TOKENS_PER_S,
)
_SAME_SPEED = 0.03
_FEW = 0.2  # of the lines of the run beside them
_OFF = ("", "none", "null", "false", "off")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that hypotheses look at.

    plain, spec: the two sides; either may be empty. others: further runs (another engine, another k). sources: what
    was read, recognised: reader -> values found; notes: what readers had to say.
    """

    plain: RunFacts
    spec: RunFacts
    others: tuple[RunFacts, ...] = ()
    sums: Arithmetic = Arithmetic()
    sweep: tuple[SweepPoint, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    recognised: dict[str, int] = {}
    notes: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """The engine's name in lower case; "" where nothing tells it."""
        return (self.spec.text(Quantity.ENGINE) or self.plain.text(Quantity.ENGINE) or "").lower()

    @property
    def version(self) -> tuple[int, ...]:
        """Leading numbers of the engine's version; () where unknown."""
        text = self.spec.text(Quantity.ENGINE_VERSION) or self.plain.text(Quantity.ENGINE_VERSION) or ""
        return version_numbers(text)

    def all(self, quantity: Quantity, **scope: object) -> tuple[Evidence, ...]:
        """Of the speculative run, or of the plain one where that has none: for facts about the machine."""
        return self.spec.all(quantity, **scope) or self.plain.all(quantity, **scope)

    def both(self, quantity: Quantity, **scope: object) -> tuple[Evidence, ...]:
        return (*self.spec.all(quantity, **scope), *self.plain.all(quantity, **scope))

    def number(self, quantity: Quantity, **scope: object) -> float | None:
        found = self.spec.number(quantity, **scope)
        return found if found is not None else self.plain.number(quantity, **scope)

    def text(self, quantity: Quantity, **scope: object) -> str | None:
        return self.spec.text(quantity, **scope) or self.plain.text(quantity, **scope)

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Numbers that cannot all be of these two runs, in words."""
        typed = tuple(note.removeprefix(CONFLICT) for note in self.notes if note.startswith(CONFLICT))
        first, second = self.sums.speedup, self.sums.other_speedup
        if typed or first is None or second is None:
            return typed
        return (f"{first.words()}, but {second.words()}",)

    @property
    def contradicts_itself(self) -> bool:
        return bool(self.contradictions or self.conflicts)

    @property
    def tp(self) -> int | None:
        number = self.number(Quantity.TP)
        return int(number) if number and number >= 1 else None

    @property
    def empty(self) -> bool:
        return not len(self.plain) and not len(self.spec)


def version_numbers(text: str) -> tuple[int, ...]:
    """ "v0.5.3.post3" -> (0, 5, 3)."""
    numbers: list[int] = []
    for part in text.strip().lstrip("vV").split("."):
        digits = "".join(char for char in part if char.isdecimal()) if part[:1].isdecimal() else ""
        if not digits or len(digits) > 9:
            break
        leading = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(leading))
        if leading != part:
            break
    return tuple(numbers)


def assemble(sinks: Sequence[Sink]) -> Case:
    """The case that these sources make. What a user said of a source (--baseline) stands in its sink's label."""
    found = [run for sink in sinks for run in sink.runs()]
    plain, spec, others = _sides(found)
    recognised: dict[str, int] = {}
    for sink in sinks:
        for reader, count in sink.recognised.items():
            recognised[reader] = recognised.get(reader, 0) + count
    alike = [run for run in others if run.label is not Label.BASELINE and _same_subject(spec, run)]
    sweep = sweep_of(plain, [spec, *alike])
    return Case(
        plain=plain,
        spec=spec,
        others=tuple(others),
        sums=work_out(plain, focused(spec, sweep)),
        sweep=sweep,
        contradictions=(*spec.contradictions(), *plain.contradictions()),
        recognised=recognised,
        notes=tuple(note for sink in sinks for note in sink.notes),
    )


def _sides(found: list[RunFacts]) -> tuple[RunFacts, RunFacts, list[RunFacts]]:
    """The plain run, the speculative run, and further ones."""
    labelled = {id(run): _label(run) for run in found}
    any_speculative = Label.SPECULATIVE in labelled.values()
    specs = [run for run in found if labelled[id(run)] is Label.SPECULATIVE]
    plains = [run for run in found if labelled[id(run)] is Label.BASELINE]
    # Windows of one log in which nothing was drafted: another load, or lines out of order. No baseline.
    pieces = [run for run in plains if _piece_of_a_log(run, specs)]
    plains = [run for run in plains if run not in pieces]
    loose = []
    for run in (run for run in found if labelled[id(run)] is Label.UNKNOWN):
        if any_speculative and _has_rate(run) and _rate_elsewhere(run, found) and not _piece_of_a_log(run, specs):
            plains.append(run)  # a rate without a word of speculation, beside a run that speculates
        else:
            loose.append(run)
    spec_groups, plain_groups = _merge(specs, Label.SPECULATIVE), _merge(plains, Label.BASELINE)
    spec = _primary(spec_groups, plain_groups)
    plain = _primary(plain_groups, [spec] if spec is not None else [])
    spec = spec if spec is not None else RunFacts(label=Label.SPECULATIVE)
    plain = plain if plain is not None else RunFacts(label=Label.BASELINE)
    for run in loose:  # with no run that speculates, what nobody claims is the plain run's
        _take(plain if plain_groups and not spec_groups else spec, run)
    others = [run for run in (*spec_groups, *plain_groups, *pieces) if run is not spec and run is not plain]
    return plain, spec, others


def _label(run: RunFacts) -> Label:
    if run.label is not Label.UNKNOWN:
        return run.label
    algorithms = {str(one.value).strip().lower() for one in run.all(Quantity.ALGORITHM)}
    if algorithms and algorithms <= set(_OFF):
        return Label.BASELINE
    if algorithms or any(run.all(quantity) for quantity in _ONLY_SPECULATIVE):
        return Label.SPECULATIVE
    return Label.UNKNOWN


def _has_rate(run: RunFacts) -> bool:
    return any(run.all(quantity) for quantity in _RATES)


def _rate_elsewhere(run: RunFacts, found: list[RunFacts]) -> bool:
    """Whether another run, one that speculates, has a rate of its own; else this rate may be that run's."""
    return any(_has_rate(one) and _label(one) is Label.SPECULATIVE for one in found if one is not run)


def _piece_of_a_log(run: RunFacts, specs: list[RunFacts]) -> bool:
    """Whether it is but a stretch of a log that also tells of a run that speculates, not a run of its own.

    Lines that say themselves that nothing was drafted make a run where they are more than a few stray ones and of
    another speed: damaged lines of the other run are as fast as that run.
    """
    if any(run.all(quantity) for quantity in (Quantity.COMMAND, Quantity.MODEL, Quantity.TP)):
        return False
    same_source = [spec for spec in specs if {one.source for one in spec} & {one.source for one in run}]
    of_a_log = (
        any(run.all(quantity) for quantity in (Quantity.NUM_RUNNING, Quantity.STEP_MS)) or _num_rates(run) > 1
    )
    if not same_source or not of_a_log:
        return False
    if not run.all(Quantity.ALGORITHM) or _num_rates(run) < _FEW * max(map(_num_rates, same_source)):
        return True
    own = run.number(Quantity.TOKENS_PER_S)
    rates = [rate for spec in same_source if (rate := spec.number(Quantity.TOKENS_PER_S))]
    return own is not None and any(abs(own / rate - 1) < _SAME_SPEED for rate in rates)


def _num_rates(run: RunFacts) -> int:
    return max((one.num_samples for quantity in _RATES for one in run.all(quantity)), default=0)


def _merge(runs: list[RunFacts], label: Label) -> list[RunFacts]:
    groups: list[RunFacts] = []
    for run in runs:
        home = next((group for group in groups if _same_run(group, run)), None)
        if home is None:
            home = RunFacts(label=label, name=run.name)
            groups.append(home)
        _take(home, run)
    return groups


def _same_run(group: RunFacts, run: RunFacts) -> bool:
    engines = [{str(one.value).lower() for one in side.all(Quantity.ENGINE)} for side in (group, run)]
    if engines[0] and engines[1] and not engines[0] & engines[1]:
        return False
    if not (_has_rate(group) and _has_rate(run)):
        return not (_is_command(group) and _is_command(run) and _differ(group, run))
    return not _differ(group, run)


def _is_command(run: RunFacts) -> bool:
    return bool(run.all(Quantity.COMMAND))


def _differ(first: RunFacts, second: RunFacts) -> bool:
    for quantity in _TELLS_APART:
        values = [{str(one.value).lower() for one in side.all(quantity)} for side in (first, second)]
        if values[0] and values[1] and not values[0] & values[1]:
            return True
    return False


def _same_subject(first: RunFacts, second: RunFacts) -> bool:
    """Whether two runs may be two settings of one thing: nothing known of both tells them apart, load included."""
    for quantity in _SUBJECT:
        left, right = first.all(quantity), second.all(quantity)
        if left and right and not any(same_value(one.value, two.value) for one in left for two in right):
            return False
    sides = [read_side(run, RunFacts(), speculative=True) for run in (first, second)]
    return sides[0].comparable(sides[1]) or bool(batches(first).keys() & batches(second).keys())


def _take(home: RunFacts, run: RunFacts) -> None:
    for one in run:
        home.add(one)


def _primary(groups: list[RunFacts], beside: list[RunFacts]) -> RunFacts | None:
    """The run to talk about: of the other side's engine where there is one, then the one with most evidence."""
    engines = {str(one.value).lower() for run in beside for one in run.all(Quantity.ENGINE)}

    def rank(run: RunFacts) -> tuple[bool, bool, int]:
        own = {str(one.value).lower() for one in run.all(Quantity.ENGINE)}
        return bool(own & engines), _has_rate(run), sum(one.num_samples for one in run)

    return max(groups, key=rank, default=None)
