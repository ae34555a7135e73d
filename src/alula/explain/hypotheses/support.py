"""What several hypotheses need: rows of a verify, the excess to explain, bytes of a message. Judges nothing."""

from __future__ import annotations

import re

from alula.explain.case import Case
from alula.explain.figures import Figure
from alula.plan.messages import allreduce_bytes, num_allreduces
from alula.plan.served import ServedShape
from alula.plan.served_models import find_shape
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

FORCED_ACCEPTANCE = "tokens-per-cycle"  # name of a FLAG: how many drafts count was decided beforehand
SLOW_VERIFY = 1.3  # plain steps above which a verify of a few rows is in need of an explanation


def shape_of(case: Case) -> ServedShape | None:
    """The built-in shape of the case's model."""
    model = case.text(Quantity.MODEL)
    return find_shape(model, case.text(Quantity.QUANTIZATION) or "") if model else None


def hidden_size(case: Case) -> int | None:
    shape = shape_of(case)
    known = case.number(Quantity.HIDDEN_SIZE)
    return int(known) if known else shape.hidden_size if shape else None


def verify_rows(case: Case) -> int | None:
    """Rows of a verify over all requests."""
    return round(case.sums.batch * case.sums.width) if case.sums.width else None


def message_bytes(case: Case, rows: int | None) -> int | None:
    """Bytes of an all-reduce over `rows` rows of bf16."""
    hidden = hidden_size(case)
    return allreduce_bytes(hidden, rows) if hidden and rows else None


def reductions(case: Case) -> int | None:
    """All-reduces of one target forward: counted where a trace did, else from the number of layers."""
    counted = case.number(Quantity.NUM_ALLREDUCES, phase="verify") or case.number(Quantity.NUM_ALLREDUCES)
    if counted:
        return round(counted)
    shape = shape_of(case)
    layers = case.number(Quantity.NUM_LAYERS) or (shape.num_layers if shape else None)
    return num_allreduces(int(layers)) if layers else None


def excess(case: Case) -> Figure | None:
    """What of the cycle needs an explanation, and is known: verify's time, else the cycle's. See `excess_ms`."""
    return case.sums.verify_ms or case.sums.known_cycle_ms


def excess_ms(case: Case) -> float | None:
    """Milliseconds of verify (else of the cycle) beyond a plain step."""
    time, plain = excess(case), case.sums.plain_ms
    return time.value - plain.value if time and plain else None


def slow_verify(case: Case) -> bool:
    """Whether verify is known to cost clearly more than a plain step, or the cycle more than two."""
    if case.sums.verify_steps is not None:
        return case.sums.verify_steps.value > SLOW_VERIFY
    return case.sums.break_even is not None and case.sums.break_even.value > 2.0


def looks_sparse(case: Case) -> bool:
    """Whether the model is, or by its name seems to be, a mixture of experts."""
    shape = shape_of(case)
    if shape is not None:
        return shape.sparse
    if (case.number(Quantity.NUM_EXPERTS) or 0) > 1:
        return True
    name = case.text(Quantity.MODEL) or ""
    return bool(re.search(r"\d+b[-.]?a\d+([.]\d+)?b|moe|mixtral|deepseek-v|kimi|a\d+b(\b|-)", name, re.IGNORECASE))


def matters(case: Case) -> bool:
    """Whether what is only likely is worth a suspicion: speculation does not pay, or verify is slow."""
    return case.sums.pays is False or slow_verify(case)


def cited(*groups: tuple[Evidence, ...] | Evidence | None) -> tuple[Evidence, ...]:
    """Evidence in one tuple, each once, no more than a report can show."""
    found: list[Evidence] = []
    for group in groups:
        for one in (group,) if isinstance(group, Evidence) else group or ():
            if one not in found:
                found.append(one)
    return tuple(found[:12])


def of_figures(*figures: Figure | None) -> tuple[Evidence, ...]:
    return cited(*(figure.evidence for figure in figures if figure is not None))


def number_of(evidence: tuple[Evidence, ...]) -> float | None:
    """The largest number among them."""
    return max((one.number for one in evidence if one.number is not None), default=None)


def kilobytes(num_bytes: float) -> str:
    return f"{num_bytes / 1024:.0f} KiB" if num_bytes < 2**20 else f"{num_bytes / 2**20:.1f} MiB"
