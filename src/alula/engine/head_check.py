"""Runs the self-check of an EAGLE-3 head: lets the target answer a few prompts, then scores the head along them.

Knows how to load and generate; the scoring is spec/head_check.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from alula.comm.group import single_group
from alula.core.errors import InvalidOption, UserError
from alula.core.sampling import SamplingParams
from alula.engine.engine import Engine
from alula.engine.request import RequestSpec
from alula.engine.setup import EngineSpec, Parts, Progress, load_parts
from alula.layers.slot_table import SlotTable
from alula.spec.head_check import HeadChecker, HeadReport

_PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a short letter to a friend about a trip to the mountains.",
    "List five ways to save water at home and say why each works.",
    "What is the difference between a virus and a bacterium?",
    "Write a Python function that reverses a list, and explain it.",
    "Tell a story about a lighthouse keeper who finds a map.",
)
_ANSWER_TOKENS = 96


def run_head_check(spec: EngineSpec, progress: Progress | None = None) -> HeadReport:
    """Loads target and head on one rank and checks them against each other. Raises UserErrors as loading does."""
    parts = load_parts(spec, single_group(), progress)
    if parts.drafter is None:
        raise InvalidOption("no head to check: give one with --head")
    if progress:
        progress("the target answers the check's prompts")
    texts = _answers(parts)
    if progress:
        progress("scoring the head along the answers")
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    num_pages = -(-longest // parts.config.page_tokens)
    table = SlotTable(parts.config.page_tokens, list(range(1, num_pages + 1)))
    return HeadChecker(parts.target, parts.geometry, parts.drafter, table).check(texts)


def score_readings(
    engine: Engine, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], readings: Sequence[tuple[int, ...]]
) -> list[list[list[bool]]]:
    """[reading][text]: for each answer token after the first, whether the first draft is right. An experiment on an
    idle engine: texts (prompt, answer) are read into its caches."""
    parts = engine.parts
    if parts.drafter is None:
        raise InvalidOption("no head to check: give one with --draft")
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    num_pages = -(-longest // parts.config.page_tokens)
    table = SlotTable(parts.config.page_tokens, list(range(1, num_pages + 1)))
    checker = HeadChecker(parts.target, parts.geometry, parts.drafter, table)
    return [
        [checker.first_drafts_right(prompt, answer, reading) for prompt, answer in texts] for reading in readings
    ]


def _answers(parts: Parts) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    engine = Engine(parts)
    sampling = SamplingParams(max_tokens=_ANSWER_TOKENS)
    prompts = {str(i): tuple(_encode(parts, text)) for i, text in enumerate(_PROMPTS)}
    for request_id, prompt_ids in prompts.items():
        engine.add(RequestSpec(request_id=request_id, prompt_ids=prompt_ids, sampling=sampling, steps=0))
    answers: dict[str, list[int]] = {request_id: [] for request_id in prompts}
    while engine.has_work:
        for update in engine.step().updates:
            answers[update.request_id] += update.token_ids
    return [(prompts[i], tuple(answers[i])) for i in prompts if len(answers[i]) > 1]


def _encode(parts: Parts, text: str) -> list[int]:
    try:
        return parts.tokenizer.encode_chat([{"role": "user", "content": text}])
    except UserError:  # no chat template: a base model continues the text
        return parts.tokenizer.encode(text)
