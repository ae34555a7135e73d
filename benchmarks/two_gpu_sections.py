"""Sections of the two-GPU suite: collectives, decode and verify of a shape, environment plans, exactness, faults.

Reaches into a loaded engine's pool of ranks on purpose. R rows, H hidden.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_engines
import msgspec
import torch
import two_gpu_workers
from gpu_report import Section, say, table
from two_gpu_scale import LINKS, LOW_LATENCY, Scale
from two_gpu_workers import Eager, Replays

from alula import LLM, SamplingParams
from alula.bench.prompts import random_prompts
from alula.comm.backends.protocol import SUM_ONTO
from alula.comm.host_plan import plan_for_host
from alula.comm.rules import Rules, choose
from alula.comm.table import MeasuredTable, crossovers
from alula.comm.trial_worker import NamesCommand, ProbeCommand, TimeCommand, TrialPayload, VerdictsCommand
from alula.comm.tuning_plan import Message, TuningPlan
from alula.core.config import EngineConfig, ParallelConfig
from alula.core.environment import inherited
from alula.core.errors import AlulaError, RankFailure
from alula.core.shape import parse_shape
from alula.engine.ranks import RankPool
from alula.models.source import ModelSource

_TRIAL_S = 60.0
LAYER_SUMS = 2  # sums over ranks in a decoder layer


def collectives(section: Section, scale: Scale, folder: Path) -> None:
    """Every backend at rows of 4096 and 7168, eager and captured; over each kind of link, and with the low-latency plan
    over the slow one."""
    for link in LINKS:
        section.part(link, lambda link=link: _collectives(scale, scale.parallel(link)))
    low = {**LINKS["pcie_like"].get("nccl", {}), **LOW_LATENCY}
    section.part("pcie_like_low_latency", lambda: _collectives(scale, scale.parallel("pcie_like", nccl=low)))


def _collectives(scale: Scale, parallel: ParallelConfig) -> dict[str, Any]:
    messages = tuple(
        Message(
            op=op,
            num_bytes=rows * size * _item_bytes(scale.dtype),
            dtype=scale.dtype,
            num_rows=rows,
            captured=not scale.dry,
        )
        for op in (("all_reduce",) if scale.dry else ("all_reduce", "all_gather", SUM_ONTO))
        for size in scale.sizes
        for rows in scale.rows
    )
    plan = plan_for_host(parallel, scale.device, inherited())
    payload = TrialPayload(messages=messages, device=scale.device, prove=True)
    pool = RankPool("two_gpu_workers:build_trial", 2, payload, plan, _TRIAL_S, TuningPlan(trial=True))
    refused: dict[str, str] = {}
    timings: list[Any] = []
    eager: dict[str, dict[str, float]] = {}
    with pool:
        for name in (name for name in pool.call(NamesCommand()) if name not in parallel.without):
            reason = pool.call(ProbeCommand(name))
            if reason is not None:
                refused[name] = reason
                continue
            if parallel.share_gpus:
                continue
            timings += pool.call(TimeCommand(name)).timings
            if not scale.dry:
                eager[name] = {f"{op} {size}": us for (op, size), us in pool.call(Eager(name)).items()}
        verdicts = pool.call(VerdictsCommand())
        environment = pool.environment_records
    found = MeasuredTable(timings=tuple(sorted(timings)), captured=not scale.dry)
    _print_times(found)
    return {
        "variables": {name: value for name, value in sorted(plan.alike().items()) if name.startswith("NCCL_")},
        "left_out": list(parallel.without),
        "refused": refused,
        "not_admitted": sorted({(name, reason) for _, name, reason in verdicts if reason is not None}),
        "captured_us": [msgspec.to_builtins(timing) for timing in found.timings],
        "eager_us": eager,
        "crossovers": [msgspec.to_builtins(crossing) for crossing in crossovers(found)] if timings else [],
        "chosen": _chosen(found, messages),
        "environment": [msgspec.to_builtins(record) for record in environment],
    }


def _chosen(found: MeasuredTable, messages: tuple[Message, ...]) -> dict[str, str]:
    """What the dispatcher would take of those that were timed: the pure decision, over stand-ins by name."""
    names = sorted({timing.backend for timing in found.timings})
    stands = [_Timed(name, found) for name in names]
    chosen = {}
    for message in messages if names else ():
        decision = choose(message.call(2, "cuda"), stands, Rules(table=found))
        chosen[f"{message.op} {message.num_bytes}"] = names[decision.index]
    return chosen


class _Timed:
    """A backend as far as a decision asks: it takes what it was timed with."""

    capturable = True
    ops = ("all_reduce", "all_gather", SUM_ONTO)
    fixed_order = True

    def __init__(self, name: str, found: MeasuredTable) -> None:
        self.name = name
        self._found = found

    def admits(self, call: Any) -> Any:
        from alula.comm.backends.protocol import YES, no

        sizes = {t.num_bytes for t in self._found.timings if (t.backend, t.op) == (self.name, call.op)}
        return YES if call.num_bytes in sizes else no("was not timed at this size")


def _print_times(found: MeasuredTable) -> None:
    names = sorted({timing.backend for timing in found.timings})
    us = {(t.op, t.num_bytes, t.backend): t.us for t in found.timings}
    rows = [
        (op, size, *(us.get((op, size, name)) for name in names)) for op in found.ops() for size in found.sizes(op)
    ]
    table(("call", "bytes", *names), rows)


def shape(section: Section, scale: Scale, folder: Path, name: str) -> None:
    """A shape over both kinds of link: replays by width, cycles of k = 2 and 3, the share of collectives."""
    source = scale.source(name, folder)
    for link in LINKS:
        section.part(link, lambda link=link: _steps(source, scale, scale.parallel(link)))
    if name.endswith("8b"):
        named = scale.parallel("nvlink", without=LINKS["pcie_like"].get("without", ()))
        section.part("nvlink_by_nccl", lambda: _steps(source, scale, named, served=False))
        section.part("nvlink_eager", lambda: _steps(source, scale, scale.parallel("nvlink"), graphs=False))
        low = {**LINKS["pcie_like"].get("nccl", {}), **LOW_LATENCY}
        plan = scale.parallel("pcie_like", nccl=low)
        section.part("pcie_like_low_latency", lambda: _steps(source, scale, plan, served=False))


def _steps(
    source: ModelSource, scale: Scale, parallel: ParallelConfig, graphs: bool = True, served: bool = True
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with _engine(source, scale, scale.config(parallel, steps=3, graphs=graphs)) as llm:
        found["ready"] = llm.describe().facts.get("graphs")
        found["collectives"] = llm.describe().facts["collectives"]
        replays = {}
        for width in scale.widths:
            by_rank = _pool(llm).call_all(Replays(scale.kv, 1, width, scale.repeats))
            replays[width] = max(by_rank, key=lambda one: one["ms"])
        found["replays"] = {str(width): one for width, one in replays.items()}
        plain, verify = replays[1]["ms"], replays[3]["phases_ms"]["verify"]
        found["plain_ms"], found["verify_3_rows_over_plain"] = plain, verify / plain
        shares = _collective_share(llm, source, scale, parallel)
        found["collectives_ms"] = shares
        if served:
            for steps in (2, 3):
                found[f"served_k{steps}"] = _served(llm, source, scale, steps)
            found["served_plain"] = _served(llm, source, scale, 0)
            dispatched = llm.collectives()
            found["paths"] = [msgspec.to_builtins(record) for record in dispatched.records()] if dispatched else []
    table(
        ("width", "verify ms", "whole cycle ms"),
        [(width, one["phases_ms"]["verify"], one["ms"]) for width, one in replays.items()],
    )
    say(f"plain {plain:.3f} ms, verify(3)/plain {verify / plain:.3f}, collectives {shares}")
    return found


def _collective_share(llm: LLM, source: ModelSource, scale: Scale, parallel: ParallelConfig) -> dict[str, Any]:
    """Milliseconds of a forward that are collectives, by the table's own times of what is chosen: two sums a layer, the
    embedding's, and the gathered logits. An estimate from isolated calls; the rest of the step is the other part."""
    facts = llm.describe().facts["collectives"]
    if facts["table"] is None:
        return {}
    known = msgspec.convert(facts["table"], MeasuredTable)
    model = parse_shape(source.shape_config or {})
    found = {}
    for rows in (1, 3):
        hidden = rows * model.hidden_size * _item_bytes(scale.dtype)
        share = rows * -(-model.vocab_size // 2) * _item_bytes(scale.dtype)
        onto = _least(known, SUM_ONTO, hidden) or _least(known, "all_reduce", hidden)
        total = LAYER_SUMS * model.num_layers * (onto or 0.0)
        total += (_least(known, "all_reduce", hidden) or 0.0) + (_least(known, "all_gather", share) or 0.0)
        found[str(rows)] = total / 1e3
    return found


def _least(known: MeasuredTable, op: str, num_bytes: int) -> float | None:
    names = {t.backend for t in known.timings if t.op == op}
    times = [us for name in names if (us := known.us(name, op, num_bytes)) is not None]
    return min(times, default=None)


def _served(llm: LLM, source: ModelSource, scale: Scale, steps: int) -> dict[str, Any]:
    tokens = _prompts(source, 1, scale.kv, seed=1)
    wanted = (scale.cycles + 8) * (steps + 1)
    return gpu_engines.time_served(llm, tokens, wanted, steps, scale.cycles)


def exact(section: Section, scale: Scale, folder: Path) -> None:
    """Tokens of 32 prompts with and without speculation over two ranks, greedy and seeded."""
    source = scale.source("llama-3.1-8b", folder)
    section.part("bf16_tokens", lambda: _exact_tokens(source, scale))


def one_rank(section: Section, scale: Scale, folder: Path) -> None:
    """fp32: tokens and log probabilities of two ranks against one's."""
    section.part("fp32", lambda: _against_one_rank(scale, folder))


def _exact_tokens(source: ModelSource, scale: Scale) -> dict[str, Any]:
    config = scale.config(scale.parallel("nvlink"), steps=3, batch=scale.exact_batch)
    prompts = _prompts(source, scale.exact_prompts, 48, seed=3)
    found = {}
    with _engine(source, scale, config) as llm:
        found["exactness_off"] = llm.describe().facts["exactness"]["off"]
        for name, temperature in (("greedy", 0.0), ("seeded", 1.0)):
            params = SamplingParams(max_tokens=scale.exact_tokens, temperature=temperature, seed=7, ignore_eos=True)
            plain, drafted = (
                [list(answer.token_ids) for answer in llm.generate(prompts, params, steps=steps)]
                for steps in (0, 3)
            )
            found[name] = {
                "tokens": sum(map(len, plain)),
                "mismatched_tokens": sum(_mismatched(a, b) for a, b in zip(plain, drafted, strict=True)),
            }
    say(f"mismatched tokens: {found}")
    return found


def _against_one_rank(scale: Scale, folder: Path) -> dict[str, Any]:
    """A small shape in fp32, greedy with log probabilities: two ranks against one."""
    source = scale.source("llama-3.2-1b", folder)
    prompts = _prompts(source, 4, 32, seed=4)
    params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=1)
    answers = {}
    for ranks in (1, 2):
        parallel = scale.parallel("nvlink") if ranks == 2 else ParallelConfig()
        config = msgspec.structs.replace(scale.config(parallel, steps=3, batch=4), dtype="float32")
        with _engine(source, scale, config) as llm:
            answers[ranks] = llm.generate(prompts, params, steps=0)
    apart = [
        abs(one.logprob - two.logprob)
        for a, b in zip(answers[1], answers[2], strict=True)
        for one, two in zip(a.logprobs, b.logprobs, strict=True)
    ]
    same = sum(_mismatched(a.token_ids, b.token_ids) for a, b in zip(answers[1], answers[2], strict=True))
    return {"mismatched_tokens": same, "largest_logprob_difference": max(apart), "tokens": len(apart)}


def plans(section: Section, scale: Scale, folder: Path) -> None:
    """A plan that is planted wrong on rank 1: refused under strict, told under warn."""
    for mode in ("strict", "warn"):
        section.part(mode, lambda mode=mode: _planted(scale, mode))


def _planted(scale: Scale, mode: str) -> dict[str, Any]:
    """Rank 1's process is started with another protocol than the plan's."""
    parallel = scale.parallel("nvlink", nccl=LOW_LATENCY, comm_proof=mode)
    plan = plan_for_host(parallel, scale.device, inherited())
    other = tuple({**own, "NCCL_PROTO": "Simple"} if rank == 1 else own for rank, own in enumerate(plan.own))

    def for_rank(rank: int) -> dict[str, str]:
        return {**plan.base, **plan.shared, **other[rank]}

    with mock.patch.object(type(plan), "for_rank", lambda self, rank: for_rank(rank)):
        messages = (Message(op="all_reduce", num_bytes=8192, dtype="bfloat16", captured=not scale.dry),)
        payload = TrialPayload(messages=messages, device=scale.device, prove=True)
        pool, trial = None, TuningPlan(trial=True)
        try:
            pool = RankPool("two_gpu_workers:build_trial", 2, payload, plan, scale.deadline_s, trial)
            probe = None if scale.dry else pool.call(ProbeCommand("nccl"))
        except AlulaError as error:
            say(f"{mode}: {error}")
            probe = str(error)
        finally:
            if pool is not None:
                pool.close()
    records = () if pool is None else pool.environment_records
    return {
        "started": pool is not None,
        "probe_of_nccl": probe,
        "findings": [f"rank {r.rank} {finding.text()}" for r in records for finding in r.mismatches],
        "environment": [msgspec.to_builtins(record) for record in records],
    }


def faults(section: Section, scale: Scale, folder: Path) -> None:
    """A rank that is killed, and one that is stopped, in the middle of decoding."""
    source = scale.source("llama-3.2-1b", folder)
    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        section.part(name, lambda name=name, number=number: _fault(source, scale, number))


def _fault(source: ModelSource, scale: Scale, number: int) -> dict[str, Any]:
    prompts = _prompts(source, 1, 48, seed=5)
    config = scale.config(scale.parallel("nvlink"), steps=3)
    before = _memory_used(scale)
    try:
        with _engine(source, scale, config) as llm:
            pids = _pool(llm).process_ids()
            hit: list[float] = []

            def strike() -> None:
                hit.append(time.monotonic())
                os.kill(pids[1], number)

            timer = threading.Timer(1.0, strike)
            timer.start()
            try:
                while True:
                    llm.generate(prompts, SamplingParams(max_tokens=400, ignore_eos=True), steps=3)
            finally:
                timer.cancel()
                seconds = time.monotonic() - (hit[0] if hit else float("nan"))
    except RankFailure as error:
        time.sleep(1.0)
        say(f"after {seconds:.1f} s: {error}")
        return {
            "seconds_to_end": seconds,
            "message": str(error),
            "rank": error.rank,
            "ranks_left": [pid for pid in pids if _alive(pid)],
            "bytes_used_before": before,
            "bytes_used_after": _memory_used(scale),
        }
    raise AssertionError("the run did not end")


def judge(document: dict[str, Any]) -> None:
    """Issue 9's figures beside what was measured; None where it was not."""
    found = document["sections"]
    figures = {
        "nccl_over_choice_1_to_4_rows": _speed_of_choice(found),
        "verify_3_rows_over_plain_8b_nvlink": _get(found, "8b", "nvlink", "verify_3_rows_over_plain"),
        "collective_share_of_verify_8b_pcie_like": _share(found),
        "mismatched_tokens": [
            _get(found, "exact", "bf16_tokens", kind, "mismatched_tokens") for kind in ("greedy", "seeded")
        ],
    }
    document["figures"] = figures
    table(("figure", "measured"), [(name, str(value)) for name, value in figures.items()])


def _speed_of_choice(found: dict[str, Any]) -> float | None:
    """The least ratio, over 1-4 rows of both sizes, of NCCL's time in a graph to the chosen backend's."""
    timings = _get(found, "collectives", "nvlink", "captured_us") or []
    us: dict[int, dict[str, float]] = {}
    for one in timings:
        if one["op"] == "all_reduce":
            us.setdefault(one["num_bytes"], {})[one["backend"]] = one["us"]
    small = [size for size in us if "nccl" in us[size]][:8]
    return min((us[size]["nccl"] / min(us[size].values()) for size in small), default=None)


def _share(found: dict[str, Any]) -> float | None:
    share = _get(found, "8b", "pcie_like", "collectives_ms", "3")
    verify = _get(found, "8b", "pcie_like", "replays", "3", "phases_ms", "verify")
    return None if share is None or verify is None else share / verify


def _get(found: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


@contextmanager
def _engine(source: ModelSource, scale: Scale, config: EngineConfig) -> Iterator[LLM]:
    """An LLM whose ranks can be timed in isolation."""
    with mock.patch("alula.engine.backends.build_rank_worker", two_gpu_workers.build_engine_worker):
        llm = LLM(source, draft="auto", config=config, progress=_note)
    try:
        yield llm
    finally:
        llm.close()


def _note(message: str) -> None:
    if not message.startswith(("loading weights", "capturing")):
        say(f"  .. {message}")


def _pool(llm: LLM) -> RankPool:
    backend: Any = llm._backend
    pool: RankPool = backend._pool
    return pool


def _prompts(source: ModelSource, count: int, num_tokens: int, seed: int) -> list[list[int]]:
    vocab_size = parse_shape(source.shape_config or {}).vocab_size
    return [list(prompt.token_ids) for prompt in random_prompts(count, num_tokens, vocab_size, seed)]


def _mismatched(one: Any, other: Any) -> int:
    """Tokens from the first difference on."""
    length = max(len(one), len(other))
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return length - same


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text()


def _memory_used(scale: Scale) -> list[int]:
    if scale.dry:
        return []
    return [torch.cuda.mem_get_info(i)[1] - torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def _item_bytes(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)
