"""The verdict's first line: one sentence with numbers. Says what is not known instead of guessing it."""

from __future__ import annotations

from collections.abc import Sequence

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import Figure, shown
from alula.explain.finding import Finding, Status, Tier
from alula.profile.quantities import Quantity

NOTHING = (
    "Nothing was recognised: alula reads logs, launch commands, bench tables, NCCL output, traces and "
    "environments of SGLang, "
    "vLLM, TensorRT-LLM and llama.cpp, its own records, and numbers typed with --plain-tps and the like."
)
_NAMED = 2  # causes in the sentence


def answer(case: Case, findings: Sequence[Finding]) -> str:
    """One sentence, or two. findings: ranked."""
    if case.empty:
        return NOTHING
    said = [_what(case), _why(case, findings)]
    void = any(one.status is Status.CONFIRMED and one.tier is Tier.VOID for one in findings)
    if void or (case.sums.pays is None and any(_names_a_cause(one) for one in findings)):
        said.reverse()  # what is known, or makes everything else void, comes first
    return " ".join(filter(None, [*said, _contradiction(case)]))


def _contradiction(case: Case) -> str:
    """Beside any verdict: the evidence does not fit together."""
    told = [*case.conflicts, *(one.words() for one in case.contradictions)]
    return f"But the evidence contradicts itself: {told[0]}." if told else ""


def _what(case: Case) -> str:
    sums = case.sums
    detail = _detail(case)
    if sums.pays is None and sums.plain_ms is not None and not len(case.spec):
        return _plain_alone(case, sums.plain_ms)
    if sums.pays is None:
        known = f" {detail[:1].upper()}{detail[1:]}." if detail else ""
        return f"Whether speculation pays cannot be said: {_missing(case)}.{known}"
    verb = "pays" if sums.pays else "does not pay"
    faster = f"it is {shown(sums.speedup.value)}x" if sums.speedup is not None else ""
    return f"Speculation {verb}: {': '.join(filter(None, [faster, detail]))}."


def _plain_alone(case: Case, step: Figure) -> str:
    """Where nothing speculates: the plain step, and how far it is from its floor."""
    floor = case.plain.number(Quantity.FLOOR_MS, phase="decode")
    far = f", {shown(step.value / floor)} times the {shown(floor)} ms that its bytes need" if floor else ""
    return (
        f"Nothing speculates here, so there is nothing to compare: a plain step takes {shown(step.value)} ms{far}."
    )


def _detail(case: Case) -> str:
    """What a cycle costs and yields."""
    sums = case.sums
    tokens, needed = sums.tokens_per_cycle, sums.break_even
    if needed is None:
        return f"a cycle yields {_bounded(tokens, 'tokens')}" if tokens else ""
    if needed.at_least and sums.verify_steps is not None:
        return _verify_alone(sums.verify_steps, needed, tokens)
    cost = f"a cycle costs {_bounded(needed, 'plain steps')}"
    return f"{cost} and yields {_bounded(tokens, 'tokens')}" if tokens else cost


def _verify_alone(verify: Figure, needed: Figure, tokens: Figure | None) -> str:
    """Where only part of the cycle is known: bounds, and what they imply."""
    whose = "verify alone costs" if verify.value == needed.value else "the phases known cost"
    text = f"{whose} {shown(needed.value)} plain steps, so break-even lies above that"
    if tokens is None:
        return text
    if tokens.at_least:
        below = ", below break-even" if tokens.value < needed.value else ""
        more = " (more with the draft's time)" if verify.value == needed.value else ""
        return f"{text}; the rate implies at least {shown(tokens.value)} tokens per cycle{more}{below}"
    return f"{text}; a cycle yields {shown(tokens.value)} tokens"


def _bounded(figure: Figure, unit: str) -> str:
    return f"{'at least ' if figure.at_least else ''}{shown(figure.value)} {unit}"


def _missing(case: Case) -> str:
    sums = case.sums
    if sums.loads is not None:
        plain, spec = map(shown, sums.loads)
        return (
            f"the plain run has {plain} requests at once and the other {spec}, and numbers compare at one load only "
            "(give a --baseline of the same load)"
        )
    if sums.other_speedup is not None and sums.speedup is not None:
        ways = (
            f"{shown(sums.speedup.value)}x by the rates, {shown(sums.other_speedup.value)}x by what a cycle costs"
        )
        return f"two ways to work it out disagree ({ways})"
    if sums.plain_ms is None and sums.speedup is None:
        return "there is no plain rate or step to compare with (give --baseline FILE, --plain-tps or --plain-ms)"
    if sums.known_cycle_ms is None and sums.speedup is None:
        return "the rate with speculation or the cycle's time is not known"
    if sums.tokens_per_cycle is None:
        return "the tokens per cycle are not known (accepted drafts + 1; give --tokens-per-cycle or --spec-tps)"
    return "the numbers are bounds that do not decide it"


def _why(case: Case, findings: Sequence[Finding]) -> str:
    causes = [one for one in findings if _names_a_cause(one)]
    if case.sums.pays:
        causes = [one for one in causes if one.tier is not Tier.TUNING]
    named = [
        one for one in causes if one.id != "acceptance_below_break_even"
    ]  # the first sentence says that already
    if named:
        return " ".join(_cause(one) for one in named[:_NAMED])
    if case.sums.pays:
        return "" if case.contradicts_itself else "Nothing wrong was found."
    suspects = _suspects(findings)
    if not suspects and case.sums.pays is False:
        suspects = f"Next: {advise(case, 'acceptance' if case.sums.tokens_per_cycle is None else 'phase_times')}."
    return " ".join(filter(None, [_traffic(findings), suspects]))


def _names_a_cause(finding: Finding) -> bool:
    return finding.status is Status.CONFIRMED and finding.tier < Tier.READING


def _traffic(findings: Sequence[Finding]) -> str:
    """What the extra experts explain, where that was worked out and is not the cause."""
    found = next((one for one in findings if one.id == "expert_union" and one.status is Status.REFUTED), None)
    return found.text.split(". ", 1)[0] + "." if found is not None and found.ms is not None else ""


def _suspects(findings: Sequence[Finding]) -> str:
    open_ones = [one for one in findings if one.status is Status.UNDECIDED and one.suspect]
    if not open_ones:
        return ""
    named = "; ".join(_lower(one.title) for one in open_ones[:3])
    step = next((one.next_step for one in open_ones if one.next_step), None)
    return f"Open suspects: {named}.{f' Next: {step}.' if step else ''}"


def _cause(finding: Finding) -> str:
    ms = f" ({shown(finding.ms)} ms)" if finding.ms is not None else ""
    text = f"{finding.title}{ms}"
    if finding.fix:
        text += f"; fix: {finding.fix}"
    if finding.predicted_speedup is not None:
        text += f"; expected after: {shown(finding.predicted_speedup)}x"
    return f"{text}."


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
