"""NCCL's protocol against the size of the message: LL for small ones, Simple or LL128 for large ones.

Thresholds from measurements over PCIe-like paths: LL is faster up to about 128 KiB and loses clearly from about 512 KiB
on, since its flags double the bytes; Simple costs half as much again below 128 KiB.
"""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, kilobytes, message_bytes, verify_rows
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_SMALL_BYTES, _LARGE_BYTES = 128 * 1024, 512 * 1024
_LARGEST_BYTES = 64 * 2**20  # a verify of hundreds of rows; beyond are prompts
_ALL = "NCCL_PROTO=LL,LL128,Simple (not LL alone)"


class ProtocolForSize(Hypothesis):
    id = "protocol_wrong_for_size"
    title = "NCCL's protocol does not suit the message size"
    predicts = "LL for messages of half a megabyte and more, or Simple for those of a few rows"
    refuted_by = "LL for small and Simple or LL128 for large messages"
    needs = ("nccl_protocol", "variable_seen", "allreduce_bytes")

    def judge(self, case: Case) -> Finding:
        if case.tp == 1:
            return self.refuted("One rank: there are no messages.", evidence=cited(case.both(Quantity.TP)))
        size = message_bytes(case, verify_rows(case)) or _known_size(case)
        decode = message_bytes(case, round(case.sums.batch)) or size
        protocol, source = _protocol(case, size)
        step = advise(case, "nccl_tuning")
        if size is None and (told_by_nccl := _unfitting(case)) is not None:
            text, evidence = told_by_nccl
            return self.confirmed(text, evidence=evidence, part="verify", fix=_ALL, confidence=0.6)
        if protocol is None or size is None or decode is None:
            what = "The protocol" if protocol is None else "The size of a message"
            return self.unknown(
                f"{what} is not known (kernel names do not tell it).", evidence=source, next_step=step
            )
        told = f"A verify message is {kilobytes(size)}, a decode message {kilobytes(decode)}; NCCL uses {protocol}."
        fields = {"evidence": source, "next_step": step, "part": "verify", "weight": 1.0}
        if protocol == "LL" and size >= _LARGE_BYTES:
            return self.confirmed(
                f"{told} LL sends a flag with every word: half of the bandwidth for messages of this size.",
                confidence=0.7,
                fix=_ALL,
                **fields,
            )
        if protocol == "SIMPLE" and size <= _SMALL_BYTES:
            return self.confirmed(
                f"{told} Simple has the highest latency, and messages this small are all latency.",
                confidence=0.65,
                fix="NCCL_PROTO=LL for these messages (or unset, or LL,LL128,Simple where larger ones occur too)",
                **fields,
            )
        if protocol == "LL" and size > _SMALL_BYTES:
            return self.suspected(f"{told} Near the size where LL begins to lose: measure both.", **fields)
        if protocol == "LL128" and "P" in {str(one.value)[:1] for one in case.both(Quantity.LINK)}:
            return self.suspected(
                f"{told} LL128 forced over PCIe is documented to risk corrupted data; watch the acceptance.",
                **fields,
            )
        return self.refuted(f"{told} That suits it.", evidence=source)


def _known_size(case: Case) -> int | None:
    found = case.number(Quantity.ALLREDUCE_BYTES, phase="verify") or case.number(Quantity.ALLREDUCE_BYTES)
    return round(found) if found else None


def _protocol(case: Case, size: int | None) -> tuple[str | None, tuple[Evidence, ...]]:
    """Of the message nearest in size, as NCCL's tuning lines tell; else what NCCL_PROTO forces."""
    lines = [one for one in case.both(Quantity.NCCL_PROTOCOL) if one.scope.num_bytes]
    if lines and size is not None:
        nearest = min(lines, key=lambda one: abs((one.scope.num_bytes or 0) - size))
        return str(nearest.value).upper(), (nearest,)
    for quantity in (Quantity.VARIABLE_SEEN, Quantity.VARIABLE_PLANNED):
        for one in case.both(quantity, name="NCCL_PROTO"):
            value = str(one.value).strip(" '\"").upper()
            if value in ("LL", "LL128", "SIMPLE"):
                return value, (one,)
    unsized = case.both(Quantity.NCCL_PROTOCOL)
    return (str(unsized[0].value).upper(), unsized[:1]) if len({one.value for one in unsized}) == 1 else (None, ())


def _unfitting(case: Case) -> tuple[str, tuple[Evidence, ...]] | None:
    """Where the model's messages are not known: a size in NCCL's own lines that its protocol does not suit."""
    for one in case.both(Quantity.NCCL_PROTOCOL):
        size, protocol = one.scope.num_bytes or 0, str(one.value).upper()
        if protocol == "LL" and _LARGE_BYTES <= size <= _LARGEST_BYTES:
            text = f"NCCL uses LL for messages of {kilobytes(size)}: half of the bandwidth at this size."
            return text, (one,)
    return None
