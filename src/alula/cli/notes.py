"""What a loaded engine does other than its user may think, a line each: a shorter context, a GPU that is not used in
full, graphs that could not be captured, ranks that do not run as planned, options without effect. Knows no engine, only
what it says of itself.
"""

from __future__ import annotations

from typing import Any

from alula.cli.options import EngineOptions

_SHOWN_FAILURES = 3


def notes(device: str, facts: dict[str, Any], options: EngineOptions) -> list[str]:
    """Everything there is to say before the first request."""
    return [
        *_forced(options),
        *_one_rank(options),
        *_short_context(facts, options),
        *_environment(facts),
        *_graphs(device, facts, options),
    ]


def _forced(options: EngineOptions) -> list[str]:
    if options.tokens_per_cycle is None:
        return []
    return [
        f"acceptance is forced to {options.tokens_per_cycle:g} tokens per cycle (--tokens-per-cycle): figures "
        "are about costs, the text is meaningless"
    ]


def _one_rank(options: EngineOptions) -> list[str]:
    """Options about communication, where there is none."""
    names = {"--nccl": options.nccl, "--comm-profile": options.comm_profile, "--share-gpus": options.share_gpus}
    given = ", ".join(name for name, value in names.items() if value)
    return [f"{given}: no effect with --tp 1, which communicates with nobody"] if given and options.tp == 1 else []


def _environment(facts: dict[str, Any]) -> list[str]:
    """What --comm-proof let through."""
    found = facts.get("environment") or {}
    if found.get("mode") == "off":
        return ["the environment of the ranks was not looked at (--comm-proof off)"]
    count = found.get("num_mismatches", 0)
    told = f"{count} mismatch{'es' if count > 1 else ''} between the planned environment and that of the ranks"
    return [f"{told} (--record writes them down)"] if count else []


def _short_context(facts: dict[str, Any], options: EngineOptions) -> list[str]:
    """Where memory, and not the caller, made the context shorter than the model's."""
    held, limit = facts.get("context_tokens", 0), facts.get("model_context_tokens", 0)
    if options.context is not None or held >= limit:
        return []
    return [
        f"the KV cache holds {held} tokens, the model's context is {limit}: answers end there "
        "(--kv-memory gives it more)"
    ]


def _graphs(device: str, facts: dict[str, Any], options: EngineOptions) -> list[str]:
    refusal = (facts.get("device_cycle") or {}).get("refusal")
    given = ", ".join(options.graph_options())
    if device == "cpu":
        return [f"{given}: no effect on a CPU, which has no CUDA graphs"] if given else []
    if refusal is None:
        return _failures((facts.get("graphs") or {}).get("failures") or {})
    said = [_led_by_host(refusal, options)]
    return [*said, f"{given}: no effect, since no graphs are captured"] if given else said


def _led_by_host(refusal: str, options: EngineOptions) -> str:
    if options.tp > 1:
        return (
            f"--tp {options.tp} on GPUs: every phase runs eagerly, without CUDA graphs, and is slower for it "
            f"({refusal}); use --tp 1 where the model fits one GPU"
        )
    return (
        f"the GPU's own kernels cannot be used: {refusal}. Plain torch runs instead, without CUDA graphs: slower, "
        "and not exact (docs/gpu.md)"
    )


def _failures(failures: dict[str, str]) -> list[str]:
    """Captures that failed; what they were of runs eagerly."""
    if not failures:
        return []
    shown = [f"{key}: {why}" for key, why in list(failures.items())[:_SHOWN_FAILURES]]
    more = len(failures) - len(shown)
    shown += [f"and {more} more (facts.graphs in the JSON)"] if more else []
    return [f"CUDA graphs that could not be captured run eagerly, slower: {'; '.join(shown)}"]
