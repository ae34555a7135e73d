"""Sections of the GPU suite over real requests: SmolLM2 with its head, exactness, `--speculate auto`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_prompts
import msgspec
from gpu_engines import Loaded, Served, loaded, served_figures, watched
from gpu_report import Section, say, table
from gpu_scale import LARGE, SMALL, STEPS, Scale

from alula import LLM, SamplingParams
from alula.bench.prompts import random_prompts
from alula.bench.results import Answer, PromptRun, count_speculation, mismatched_tokens, summarise
from alula.core.config import SpeculationConfig
from alula.models.source import ModelSource


@dataclass
class Side:
    """One way to decode, over several answers."""

    answers: list[Answer] = field(default_factory=list)
    served: Served = field(default_factory=Served)

    def decode(self, llm: LLM, ids: Sequence[int], params: SamplingParams, steps: int | None) -> Answer:
        with watched(llm) as watching:
            completion = llm.generate([list(ids)], params, steps=steps)[0]
        if completion.finish_reason == "error":
            raise RuntimeError(f"a request failed: {completion.error}")
        answer = Answer(
            token_ids=completion.token_ids,
            finish_reason=completion.finish_reason,
            cycles=tuple(watching.cycles),
        )
        self.answers.append(answer)
        self.served.cycles += watching.cycles
        self.served.host_ms += watching.host_ms
        return answer

    def tokens_per_s(self, kept: Sequence[bool] | None = None) -> float:
        """Tokens of decode cycles over their time by the host's clock; kept: which answers count."""
        wanted = {
            id(cycle)
            for answer, keep in zip(self.answers, kept or [True] * len(self.answers), strict=True)
            for cycle in answer.cycles
            if keep
        }
        pairs = [pair for pair in self.served.decoding() if id(pair[0]) in wanted]
        emitted = sum(request.emitted for cycle, _ in pairs for request in cycle.requests)
        return 1e3 * emitted / sum(ms for _, ms in pairs)


def real(section: Section, scale: Scale, model: str, head: str) -> None:
    """The real model with its head: the twelve prompts by number of drafts, then exactness."""
    speculation = SpeculationConfig(steps=STEPS, speculate="always")
    config = scale.config(speculation, kv_gib=8.0, max_batch=scale.served_batch)
    with loaded(model, head, config) as own:
        section.entry["start_up"] = own.start_up
        section.part("twelve", lambda: twelve(own, scale))
        section.part("exactness", lambda: exactness(own, scale))


def twelve(own: Loaded, scale: Scale) -> dict[str, Any]:
    """Greedy, batch 1: plain beside every number of drafts. Answers that loop are left out as docs/metrics.md says, and
    figures with them stand beside."""
    prompts = gpu_prompts.twelve(own.llm, scale)
    params = SamplingParams(max_tokens=scale.answer_tokens)
    rows = [_with_drafts(own.llm, prompts, params, k) for k in scale.ks]
    summary = against_plain(rows)
    table(
        (
            "k",
            "plain tokens/s",
            "plain ms",
            "EAGLE-3 tokens/s",
            "cycle ms",
            "speed-up",
            "with loops",
            "tokens/cycle",
        ),
        [
            (
                *(row["k"], row["plain_tokens_per_s"], row["plain"]["host_ms"], row["tokens_per_s"]),
                *(row["cycle"]["host_ms"], row["speedup"], row["speedup_with_looping"], row["tokens_per_cycle"]),
            )
            for row in rows
        ],
    )
    mismatched = sum(row["mismatched_tokens"] for row in rows)
    say(
        f"  best k = {summary['best_k']}; {rows[0]['looping']} of {len(prompts)} loop; mismatched tokens {mismatched}"
    )
    return {
        "prompts": len(prompts),
        "max_tokens": scale.answer_tokens,
        **summary,
        "plain_ms": statistics.median(row["plain"]["host_ms"] for row in rows),
        "mismatched_tokens": mismatched,
        "rows": rows,
    }


def against_plain(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sets each row's speed-up against the median of all rows' plain tokens/s: the plain side is the same for every k,
    and a hiccup beside one of them must not flatter it (one was seen: 1923 beside three of 2270 to 2276)."""
    plain = statistics.median(row["plain_tokens_per_s"] for row in rows)
    for row in rows:
        row["speedup"] = row["tokens_per_s"] / plain
    best = max(rows, key=lambda row: row["speedup"])
    return {"plain_tokens_per_s": plain, "best_k": best["k"], "best_speedup": best["speedup"]}


def _with_drafts(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, k: int) -> dict[str, Any]:
    plain, drafted = Side(), Side()
    short = msgspec.structs.replace(params, max_tokens=min(32, params.max_tokens))
    for steps in (0, k):  # what is captured at its first use is so here
        Side().decode(llm, prompts[0], short, steps)
    for index, ids in enumerate(prompts):
        for side, steps in ((plain, 0), (drafted, k))[:: 1 if index % 2 == 0 else -1]:
            side.decode(llm, ids, params, steps)
    runs = [
        PromptRun(prompt_id=str(i), plain=one, eagle3=other)
        for i, (one, other) in enumerate(zip(plain.answers, drafted.answers, strict=True))
    ]
    kept = [not run.looping for run in runs]
    figures = summarise(runs, k)
    assert figures.eagle3 is not None
    every = plain.tokens_per_s(), drafted.tokens_per_s()
    # Where every answer loops (a model of noise), all of them count: figures of none would be none.
    without = (plain.tokens_per_s(kept), drafted.tokens_per_s(kept)) if any(kept) else every
    return {
        "k": k,
        "looping": figures.num_looping,
        "mismatched_tokens": figures.mismatched_tokens,
        "plain_tokens_per_s": without[0],
        "tokens_per_s": without[1],
        "speedup_beside_its_plain": without[1] / without[0],
        "speedup_with_looping": every[1] / every[0],
        "speedup_of_records": figures.speedup,
        "tokens_per_cycle": figures.eagle3.tokens_per_cycle,
        "acceptance_per_position": list(figures.eagle3.acceptance_per_position),
        "plain": served_figures(plain.served.decoding()),
        "cycle": served_figures(drafted.served.decoding()),
    }


def exactness(own: Loaded, scale: Scale) -> dict[str, Any]:
    """Tokens of the same requests: plain and drafted, alone and beside others that join and leave."""
    prompts = gpu_prompts.many(own.llm, scale)
    count = scale.answer_tokens
    ways = {
        "greedy": [SamplingParams(max_tokens=count, ignore_eos=True) for _ in prompts],
        "seeded": [
            SamplingParams(max_tokens=count, ignore_eos=True, temperature=0.8, seed=index)
            for index in range(len(prompts))
        ],
    }
    rows = [row for way, params in ways.items() for row in _compare(own.llm, prompts, params, way, count)]
    table(
        ("", "tokens", "mismatched", "exactness off"),
        [(row["what"], row["tokens"], row["mismatched_tokens"], row["exactness_off"] or "-") for row in rows],
    )
    return {"prompts": len(prompts), "mismatched_tokens": sum(r["mismatched_tokens"] for r in rows), "rows": rows}


def _compare(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], way: str, count: int
) -> list[dict[str, Any]]:
    # Lengths from half of `count` to all of it, so that requests leave, and others join, at different times.
    lengths = [count - (index * 37) % (count // 2 + 1) for index in range(len(params))]
    shorter = [msgspec.structs.replace(p, max_tokens=n) for p, n in zip(params, lengths, strict=True)]
    llm.take_cycles()
    alone = {
        k: [_tokens(llm, [ids], [own], k)[0] for ids, own in zip(prompts, params, strict=True)] for k in (0, STEPS)
    }
    off_alone = _off(llm)
    together = {k: _tokens(llm, prompts, shorter, k) for k in (0, STEPS)}
    off_together = _off(llm)
    cut = [tokens[:n] for tokens, n in zip(alone[0], lengths, strict=True)]
    pairs = (
        ("batch 1, drafted against plain", alone[0], alone[STEPS], off_alone),
        ("together, drafted against plain", together[0], together[STEPS], off_together),
        ("plain, together against batch 1", cut, together[0], off_together),
        ("drafted, together against plain batch 1", cut, together[STEPS], off_together),
    )
    return [
        {
            "what": f"{way}: {what}",
            "tokens": sum(map(len, one)),
            "mismatched_tokens": sum(mismatched_tokens(a, b) for a, b in zip(one, other, strict=True)),
            "exactness_off": off,
        }
        for what, one, other, off in pairs
    ]


def _tokens(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], steps: int
) -> list[tuple[int, ...]]:
    answers = llm.generate([list(ids) for ids in prompts], list(params), steps=steps)
    for answer, own in zip(answers, params, strict=True):
        if answer.finish_reason == "error" or len(answer.token_ids) != own.max_tokens:
            raise RuntimeError(f"an answer of {len(answer.token_ids)} of {own.max_tokens} tokens: {answer.error}")
    return [answer.token_ids for answer in answers]


def _off(llm: LLM) -> list[str]:
    return sorted({cycle.exactness for cycle in llm.take_cycles() if cycle.exactness})


def auto_small(section: Section, scale: Scale, model: str | None, head: str | None, folder: Path) -> None:
    """A random head on SmolLM2, `--speculate auto`: what it costs beside plain decoding."""
    if model is None:
        _auto(section, scale, scale.source(SMALL, folder), "auto", scale.auto_answers)
    else:
        _auto(section, scale, model, head, scale.auto_answers)


def auto_large(section: Section, scale: Scale, folder: Path) -> None:
    """The same of the 8B shape, a few answers."""
    _auto(section, scale, scale.source(LARGE, folder), "auto", scale.auto_large_answers)


def _auto(section: Section, scale: Scale, model: str | ModelSource, draft: str | None, count: int) -> None:
    speculation = SpeculationConfig(steps=STEPS, head="random", speculate="auto")
    config = scale.config(speculation, kv_gib=8.0, max_batch=1, context=4096)
    with loaded(model, draft, config) as own:
        section.entry["start_up"] = own.start_up
        section.part("tokens", lambda: _auto_tokens(own, scale, count))


def _auto_tokens(own: Loaded, scale: Scale, count: int) -> dict[str, Any]:
    llm = own.llm
    if llm.tokenizer.has_text:
        prompts = (gpu_prompts.built_in(llm, scale) * count)[:count]
    else:
        prompts = [list(p.token_ids) for p in random_prompts(count, 64, own.parts.shape.vocab_size, seed=5)]
    params = SamplingParams(max_tokens=scale.answer_tokens, ignore_eos=True)
    plain, auto = Side(), Side()
    Side().decode(llm, prompts[0], msgspec.structs.replace(params, max_tokens=8), 0)
    for index, ids in enumerate(prompts):
        for side, steps in ((plain, 0), (auto, None))[:: 1 if index % 2 == 0 else -1]:
            side.decode(llm, ids, params, steps)
    mismatched = sum(
        mismatched_tokens(a.token_ids, b.token_ids) for a, b in zip(plain.answers, auto.answers, strict=True)
    )
    result = {
        "answers": count,
        "tokens_each": scale.answer_tokens,
        "plain_tokens_per_s": plain.tokens_per_s(),
        "auto_tokens_per_s": auto.tokens_per_s(),
        "auto_over_plain": auto.tokens_per_s() / plain.tokens_per_s(),
        "mismatched_tokens": mismatched,
        "speculation": msgspec.to_builtins(count_speculation(auto.served.cycles)),
        "plain": served_figures(plain.served.decoding()),
    }
    say(
        f"  random head, auto over plain: {result['auto_over_plain']:.4f} of {result['plain_tokens_per_s']:.1f} "
        f"tokens/s; mismatched {mismatched}; {result['speculation']}"
    )
    return result
