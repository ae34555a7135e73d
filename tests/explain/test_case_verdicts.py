"""What must be said of each public report's evidence, as it stands and with everything changed that must not matter.

Expected are ids of findings with their status; that other findings stand beside them is fine, unless they are named in
`_NEVER`. The texts are ours, in the formats of the tools (case_texts.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from case_texts import CASES
from evidence_builder import finding
from reading import read

from alula.explain.finding import Status
from alula.explain.judge import explain
from alula.explain.verdict import Verdict

C, U = Status.CONFIRMED, Status.UNDECIDED

WANTED: dict[str, list[tuple[str, Status]]] = {
    "01": [("verify_without_graph", C), ("known.backend_lowers_graph_mode", C)],
    "02": [("draft_without_graph", C), ("verify_without_graph", C)],
    "04": [("batch_over_captured_graph", C)],
    "05": [("batch_over_captured_graph", C), ("not_like_for_like", C), ("random_prompts", C)],
    "07": [("break_even_above_ceiling", C), ("fixed_or_per_draft_cost", C)],
    "10": [("batch_over_captured_graph", C), ("batch_too_large", C), ("random_prompts", C)],
    "11": [("allreduce_backend_refused", C)],
    "12": [("allreduce_paths_differ", U)],
    "16": [("protocol_wrong_for_size", C)],
    "19": [("p2p_off", C), ("allreduce_backend_refused", C)],
    "24": [("p2p_off", C)],
    "28": [("variables_not_in_force", C)],
    "31": [("head_broken", C)],
    "32": [("head_broken", U)],
    "33": [("head_broken", U)],
    "37": [("acceptance_too_good", C), ("random_prompts", C)],
    "40": [("known.v0_acceptance_rate", C)],
    "41": [("acceptance_below_break_even", C), ("draft_length", C)],
    "43": [("expert_union", C)],
    "45": [("break_even_above_ceiling", C)],
    "46": [("queueing_or_pages", C)],
    "51": [("draft_tensor_parallel", U)],
    "55": [("break_even_above_ceiling", C), ("fixed_or_per_draft_cost", C)],
    "57": [("draft_length", C)],
    "61": [("clocks_held_down", C)],
}
# Names and numbers of releases that no verdict may hang on. Versions stay on their side of what is bound to them.
_NAMES = {
    "Llama-3.1-8B": "Some-7B",
    "Qwen3": "Foo4",
    "Qwen2.5": "Bar1",
    "DeepSeek-R1": "Deep-Thing",
    "org/": "/mnt/models/",
    "pid=": "pid=9",
    "node1:": "gpu-box-07:",
    "box:": "h3:",
}
_NOISE = (
    'INFO:     127.0.0.1:44312 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    "WARNING: this line is about something else: accepted 3 of 4 parcels in 12 ms\n\n"
)


def _as_it_stands(text: str) -> str:
    return text


def _renamed(text: str) -> str:
    for old, new in _NAMES.items():
        text = text.replace(old, new)
    return text


def _between_other_lines(text: str) -> str:
    return text if _whole_document(text) else _NOISE + text + "\n" + _NOISE


def _from_a_windows_terminal(text: str) -> str:
    if _whole_document(text):
        return text.replace("\n", "\r\n")
    return "".join(f"\x1b[32m{line}\x1b[0m\r\n" if "|" not in line else f"{line}\r\n" for line in text.splitlines())


def _in_markdown(text: str) -> str:
    return (
        text
        if _whole_document(text) or text.lstrip().startswith("|")
        else f"Here is my log:\n\n```text\n{text}\n```\nAny idea?\n"
    )


def _whole_document(text: str) -> bool:
    return text.lstrip().startswith(("{", "[{"))


VARIATIONS: tuple[Callable[[str], str], ...] = (
    _as_it_stands,
    _renamed,
    _between_other_lines,
    _from_a_windows_terminal,
    _in_markdown,
)


def _verdict(text: str) -> Verdict:
    return explain([read(text)])


@pytest.mark.parametrize("change", VARIATIONS, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("name", WANTED)
def test_the_verdict_holds_what_it_must(name: str, change: Callable[[str], str]) -> None:
    verdict = _verdict(change(CASES[name]))
    for wanted, status in WANTED[name]:
        judged = finding(verdict, wanted)
        assert judged.status is status, (wanted, judged.text)
        assert judged.suspect
        assert judged.fix or judged.next_step or wanted.startswith("known.")
        assert judged.evidence
        assert all(one.line for one in judged.evidence if one.source != "typed"), judged.evidence


def test_the_first_named_is_the_first_wanted() -> None:
    for name in ("01", "02", "04", "05", "07", "10", "11", "16", "19", "31", "37", "43", "45", "46", "55", "61"):
        findings = _verdict(CASES[name]).findings
        wanted = {id_ for id_, _ in WANTED[name]}
        assert findings[0].id in wanted, (name, findings[0].id)


def test_a_drafter_with_many_steps_outranks_the_one_verify() -> None:
    order = [one.id for one in _verdict(CASES["02"]).findings]
    assert order.index("draft_without_graph") < order.index("verify_without_graph")


def test_numbers_scaled_alike_change_no_verdict() -> None:
    text = CASES["07"]
    for factor in (0.31, 2.0, 17.0):
        scaled = text
        for rate in ("57.0", "40.6", "36.0", "32.7"):
            scaled = scaled.replace(rate, f"{float(rate) * factor:.2f}")
        verdict = _verdict(scaled)
        assert verdict.exit_code == 3
        assert finding(verdict, "break_even_above_ceiling").status is C


@pytest.mark.parametrize("name", sorted(CASES))
def test_cut_and_shuffled_texts_never_crash(name: str) -> None:
    text = CASES[name]
    for end in range(0, len(text), max(1, len(text) // 23)):
        assert 0.0 <= max(one.confidence for one in _verdict(text[:end]).findings) <= 1.0
    assert _verdict("\n".join(reversed(text.splitlines()))).answer
