"""The decision which backend runs a call: pure, of the call, the backends' own admission, and the rules. Knows no
backend by name, makes no call.

Exactness (DESIGN 4.5): the sum of two numbers has no order, that of three has. From three ranks on a row's bits would
depend on how many rows come with it if the order of adding changed with the size, or if one size went through another
backend than the next. So all widths of a graph family (what decode and verify sum) use one backend of fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from alula.comm.backends.protocol import SUM_ONTO, Backend, admission, has_fixed_order
from alula.comm.call import CollectiveCall
from alula.comm.capture import is_capturable
from alula.comm.table import MeasuredTable
from alula.core.errors import InvalidOption
from alula.core.records import Refusal

AUTO, FASTEST = "auto", "fastest"
ORDERED_FROM_RANKS = 3
SUMS = ("all_reduce", SUM_ONTO)
_INEXACT = ("float", "bfloat", "complex")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision depends on besides the call. The same on every rank.

    mode: --collectives. table: None before anything was measured; then the order of the backends decides. unusable:
    backends that are not to be used, whatever they admit. families: by operation, the one that every width of a graph
    family uses.
    """

    mode: str = AUTO
    table: MeasuredTable | None = None
    unusable: tuple[Refusal, ...] = ()
    families: dict[str, str] = {}

    def excluded(self, name: str) -> str | None:
        """Why a backend must not be used; None where it may be."""
        return next((refusal.reason for refusal in self.unusable if refusal.backend == name), None)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's place in the list that was given, and the refusals of the others that were asked."""

    index: int
    refused: tuple[Refusal, ...] = ()
    measured_us: float | None = None
    rule: str | None = None


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What admission said: places of those that take the call, refusals of the others, and whether order had to go."""

    admitted: tuple[int, ...]
    refused: tuple[Refusal, ...]
    unordered: bool = False


NO_RULES = Rules()


def needs_order(call: CollectiveCall) -> bool:
    """Whether the order of adding can change the bits of this call's result. The fused sum and its twin add up a row's
    squares in different orders, at any number of ranks."""
    from_ranks = 2 if call.op == SUM_ONTO else ORDERED_FROM_RANKS
    return call.op in SUMS and call.num_ranks >= from_ranks and call.dtype.startswith(_INEXACT)


def choose(call: CollectiveCall, backends: Sequence[Backend], rules: Rules = NO_RULES) -> Decision:
    """The backend for a call. Pure. Raises InvalidOption with every reason where none takes it.

    Without a table the first that takes it, and those behind it are not asked. With one the fastest; those that were
    not timed come after those that were, in the given order.
    """
    asked = _ask(call, backends, rules)
    if not asked.admitted:
        raise _none_takes(call, asked.refused)
    names = [backend.name for backend in backends]
    times = _times(call, rules.table, names)
    ranked = sorted(asked.admitted, key=lambda i: (times[i] is None, times[i] or 0.0, i))
    family = rules.families.get(call.op)
    bound = [i for i in ranked if names[i] == family] if _keeps_order(call, rules) else []
    chosen = bound[0] if bound else ranked[0]
    losers = [
        Refusal(backend=names[i], reason=_why_not(names[chosen], times[chosen], times[i], bool(bound)))
        for i in asked.admitted
        if i != chosen and rules.table is not None
    ]
    order = {name: place for place, name in enumerate(names)}
    refused = sorted((*asked.refused, *losers), key=lambda refusal: order[refusal.backend])
    return Decision(
        index=chosen,
        refused=tuple(refused),
        measured_us=times[chosen],
        rule=_rule(call, rules, asked.unordered, bool(bound)),
    )


def choose_families(calls: Sequence[CollectiveCall], backends: Sequence[Backend], rules: Rules) -> dict[str, str]:
    """For each kind of sum the backend of fixed order that takes all of a family's sizes in the least time.

    None where no order is needed (one or two ranks, --collectives fastest), or where no backend can do it.
    """
    found = {}
    for op in SUMS:
        sums = [call for call in _family(calls, op) if _keeps_order(call, rules)]
        able = [
            backend
            for backend in backends
            if has_fixed_order(backend)
            and rules.excluded(backend.name) is None
            and all(admission(backend, call).admitted for call in sums)
        ]
        if sums and able:
            found[op] = min(able, key=lambda backend: _total(backend.name, sums, rules.table)).name
    return found


def order_refusal(calls: Sequence[CollectiveCall], backends: Sequence[Backend], rules: Rules) -> str | None:
    """Why a row's sums may depend on how many rows come with it; None where they cannot."""
    ranks = calls[0].num_ranks if calls else 1
    for op in SUMS:
        chosen = {choose(call, backends, rules).index for call in _family(calls, op) if needs_order(call)}
        names = ", ".join(sorted(backends[i].name for i in chosen))
        if len(chosen) > 1:
            return f"collectives_of_{ranks}_ranks_change_with_the_size: {names}"
        if any(not has_fixed_order(backends[i]) for i in chosen):
            return f"collectives_of_{ranks}_ranks_have_no_fixed_order: {names}"
    return None


def _family(calls: Sequence[CollectiveCall], op: str) -> list[CollectiveCall]:
    """The sums of decode and verify: the captured ones, where there are graphs. A prompt's are no row's neighbours."""
    sums = [call for call in calls if call.op == op]
    return [call for call in sums if call.captured] or sums


def _keeps_order(call: CollectiveCall, rules: Rules) -> bool:
    return needs_order(call) and rules.mode != FASTEST


def _ask(call: CollectiveCall, backends: Sequence[Backend], rules: Rules) -> _Asked:
    """Asks in the given order; where order must be kept and nobody can, once more without it."""
    found = _ask_once(call, backends, rules, _keeps_order(call, rules))
    if found.admitted or not _keeps_order(call, rules):
        return found
    return msgspec.structs.replace(_ask_once(call, backends, rules, False), unordered=True)


def _ask_once(call: CollectiveCall, backends: Sequence[Backend], rules: Rules, ordered: bool) -> _Asked:
    admitted: list[int] = []
    refused: list[Refusal] = []
    for index, backend in enumerate(backends):
        reason = rules.excluded(backend.name) or admission(backend, call).reason
        if reason is None and call.captured and not is_capturable(backend):
            reason = "waits for the host, which a graph cannot"
        if reason is None and ordered and not has_fixed_order(backend):
            reason = (
                f"its order of adding may change with the size, and {call.num_ranks} ranks must give a row the same "
                "bits at every width (--collectives fastest lets it)"
            )
        if reason is not None:
            refused.append(Refusal(backend=backend.name, reason=reason))
            continue
        admitted.append(index)
        if rules.table is None and call.op not in rules.families:
            break
    return _Asked(admitted=tuple(admitted), refused=tuple(refused))


def _times(call: CollectiveCall, table: MeasuredTable | None, names: Sequence[str]) -> list[float | None]:
    return [None if table is None else table.us(name, call.op, call.num_bytes) for name in names]


def _total(name: str, calls: Sequence[CollectiveCall], table: MeasuredTable | None) -> float:
    """Summed microseconds; without a table 0 for all, so that the first in order wins."""
    if table is None:
        return 0.0
    times = [table.us(name, call.op, call.num_bytes) for call in calls]
    return sum(float("inf") if us is None else us for us in times)


def _why_not(chosen: str, chosen_us: float | None, us: float | None, bound: bool) -> str:
    if bound and (chosen_us is None or (us is not None and us < chosen_us)):
        return f"{_us(us)}, {chosen} {_us(chosen_us)}, but all widths of a graph family use one backend"
    if us is None:
        return f"never timed here; {chosen} was" if chosen_us is not None else f"{chosen} comes before it"
    return f"{_us(us)}, {chosen} {_us(chosen_us)}"


def _us(us: float | None) -> str:
    return "never timed here" if us is None else f"{us:.1f} us"


def _rule(call: CollectiveCall, rules: Rules, unordered: bool, bound: bool) -> str | None:
    if not needs_order(call):
        return None
    if rules.mode == FASTEST:
        return "the fastest for each size, whatever its order of adding (--collectives fastest)"
    if unordered:
        return "no backend of fixed rank order takes it: its bits may depend on the size"
    return "one backend of fixed rank order for every width" if bound else "a backend of fixed rank order"


def _none_takes(call: CollectiveCall, refused: Sequence[Refusal]) -> InvalidOption:
    reasons = "; ".join(f"{refusal.backend}: {refusal.reason}" for refusal in refused)
    return InvalidOption(
        f"no collective backend takes {call.op} of {call.num_bytes} bytes of {call.dtype} on {call.device} over "
        f"{call.num_ranks} ranks ({reasons}); choose another with --collectives, or leave out fewer with --without"
    )
