"""Version-bound faults and misleading fields of engines: what, which versions, where it was read, how to tell.

Facts about releases, each with its source; none is a case. What is bound to versions applies only where the version is
known to lie in the range.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from alula.explain.case import Case
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity


class KnownFault(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. engine: part of the engine's name, "" for any. since, before: versions, () for no limit.

    tell: the evidence in a case that shows it; () where it does not apply. misleading: a field to read with care, not
    something that costs time. routine: stands in every log of that engine, so it is a note and no finding.
    """

    id: str
    engine: str
    what: str
    source: str
    tell: Callable[[Case], tuple[Evidence, ...]]
    fix: str = ""
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    misleading: bool = True
    routine: bool = False
    confidence: float = 0.7

    def found_in(self, case: Case) -> tuple[Evidence, ...]:
        """The evidence that shows it in this case; () where engine or version is another, or nothing shows it."""
        if self.engine not in case.engine:
            return ()
        if (self.since or self.before) and not case.version:
            return ()
        if case.version < self.since or (self.before and case.version >= self.before):
            return ()
        return self.tell(case)


def _text(*words: str) -> Callable[[Case], tuple[Evidence, ...]]:
    """Lines that hold all of the words."""

    def tell(case: Case) -> tuple[Evidence, ...]:
        found = (one for run in (case.spec, case.plain) for one in run if all(word in one.text for word in words))
        return tuple(one for one, _ in zip(found, range(2), strict=False))

    return tell


def _planned(name: str) -> Callable[[Case], tuple[Evidence, ...]]:
    return lambda case: case.both(Quantity.VARIABLE_PLANNED, name=name)


def _capture_too_small(case: Case) -> tuple[Evidence, ...]:
    """The default largest capture is min(2 x max_num_seqs, 512) rows; verify has k + 1 a request."""
    width, seats = case.sums.width, case.spec.first(Quantity.MAX_RUNNING)
    if width is None or seats is None or not seats.number or case.spec.all(Quantity.GRAPH_MAX_TOKENS):
        return ()
    return (seats,) if seats.number * width > min(2 * seats.number, 512) else ()


def _decays(case: Case) -> tuple[Evidence, ...]:
    return tuple(
        one
        for one in case.spec.all(Quantity.TOKENS_PER_CYCLE)
        if one.early is not None and one.late is not None and one.late - 1 < 0.85 * (one.early - 1)
    )


def _draft_tp_asked(case: Case) -> tuple[Evidence, ...]:
    asked = tuple(one for one in case.spec.all(Quantity.DRAFT_TP) if one.number == 1)
    return asked if (case.tp or 1) > 1 and not case.spec.all(Quantity.DRAFT_TP_IN_FORCE) else ()


def _inherited_quantization(case: Case) -> tuple[Evidence, ...]:
    low = case.sums.by_position[:1] or (
        (case.sums.tokens_per_cycle.value - 1,) if case.sums.tokens_per_cycle is not None else ()
    )
    if not low or low[0] > 0.2 or case.spec.all(Quantity.DRAFT_QUANTIZATION):
        return ()
    return tuple(
        one for one in case.spec.all(Quantity.QUANTIZATION) if str(one.value).lower() not in ("none", "null", "")
    )


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        id="allreduce_order_as_printed",
        routine=True,
        engine="vllm",
        what='The printed list of all-reduce backends "in dispatch order" is not the order of the code, is '
        "printed once, and "
        "the choice depends on each tensor: it proves nothing about a path.",
        source="vLLM 0.33.0, cuda_communicator.py against its start-up line",
        tell=_text("in dispatch order"),
    ),
    KnownFault(
        id="accept_rate_changed",
        routine=True,
        engine="sglang",
        what="`accept rate` changed its meaning: tokens per cycle over num_draft_tokens in 0.5.3, accepted "
        "over proposed drafts "
        "in 2026. It is left out; `accept len` (bonus token included) is used.",
        source="arithmetic on Decode lines of 0.5.3 and 2026-08",
        tell=_text("accept rate:"),
    ),
    KnownFault(
        id="cuda_graph_field",
        routine=True,
        engine="sglang",
        what="`cuda graph:` tells of the target verify of the last batch in the window alone; draft and "
        "extend are not in it, "
        "and a piecewise prefill graph also counts as True.",
        source="SGLang 0.5.23, metrics_reporter.py and decode_cuda_graph_runner.py",
        tell=_text("accept len:", "cuda graph:"),
    ),
    KnownFault(
        id="kernel_name_is_no_protocol",
        routine=True,
        engine="",
        what="An NCCL kernel name that ends in _LL proves no protocol, nor RING an algorithm: since 2.19 "
        "every all-reduce kernel "
        "is named so.",
        source="NCCL src/device/generate.py 2.19.4 to 2.30.7; NCCL issues 1595, 2196",
        tell=_text("ncclDevKernel_", "_LL"),
    ),
    KnownFault(
        id="v0_acceptance_rate",
        engine="vllm",
        what='The V0 engine\'s "draft acceptance rate" also counts matches after a rejection, and its '
        "counters are cumulative: "
        "it is not tokens per cycle. Tokens per cycle = 1 + accepted / cycles.",
        source="vLLM issue 9565 (comment), V0 metrics",
        tell=_text("System efficiency"),
    ),
    KnownFault(
        id="peak_counts_chunks",
        routine=True,
        engine="",
        what='"Peak output token throughput" counts streamed chunks, not tokens, when speculation is on; time '
        "between chunks "
        "over time per token estimates the tokens per cycle.",
        source="arithmetic on a vllm bench serve table",
        tell=_text("Peak output token throughput"),
    ),
    KnownFault(
        id="mfu_counts_tokens",
        routine=True,
        engine="sglang",
        what="The estimated read bandwidth charges weight bytes for each generated token, with dense sizes "
        "and no MLA or expert "
        "choice: it is no roofline.",
        source="SGLang 0.5.23, --enable-mfu-metrics",
        tell=_text("est. read BW"),
    ),
    KnownFault(
        id="iteration_latency_overlap",
        routine=True,
        engine="tensorrt",
        what="iterLatencyMS spans about two loops under overlap scheduling: it is not a cycle's time.",
        source="TensorRT-LLM, the note in its own profiler source",
        tell=_text("iterLatencyMS"),
    ),
    KnownFault(
        id="gate_is_one_way",
        engine="",
        what="The speculation gate switched speculation off for good, by acceptance alone and without looking "
        "at time: what is "
        "measured after it is plain decoding.",
        source="TensorRT-LLM, speculation_gate.py",
        tell=_text("[SpeculationGate]", "disabled"),
        fix="raise acceptance_length_threshold's window, or leave the gate off while measuring",
        misleading=False,
    ),
    KnownFault(
        id="capture_default_too_small",
        engine="vllm",
        before=(0, 12),
        what="The default largest capture is min(2 x max_num_seqs, 512) rows, but a full batch verifies "
        "max_num_seqs x (k + 1): "
        "full batches run eagerly without a word.",
        source="vLLM issue 27325",
        tell=_capture_too_small,
        fix="--cuda-graph-sizes with at least max_num_seqs x (k + 1)",
        misleading=False,
        confidence=0.6,
    ),
    KnownFault(
        id="backend_lowers_graph_mode",
        engine="vllm",
        what="An attention backend without graphs for uniform batches lowers FULL_AND_PIECEWISE as soon as "
        "there is a draft; one "
        "warning tells it, without its cost. (SM12x with FlashInfer: captured from 0.28 on.)",
        source="vLLM issue 49547, PR 49550",
        tell=_text("is not supported with spec-decode for attention backend"),
        fix="--attention-backend FLASH_ATTN, or a release that captures this backend",
        misleading=False,
        confidence=0.8,
    ),
    KnownFault(
        id="draft_tp_without_effect",
        engine="vllm",
        before=(0, 14),
        what="draft_tensor_parallel_size = 1 was accepted and not applied in several releases: look at the "
        "drafter's printed "
        "tp_size.",
        source="vLLM PR 31886, vllm-ascend PR 6097",
        tell=_draft_tp_asked,
        misleading=False,
        confidence=0.5,
    ),
    KnownFault(
        id="acceptance_decays_with_reuse",
        engine="vllm",
        since=(0, 17),
        before=(0, 19, 1),
        what="Acceptance of EAGLE heads fell over hours of traffic with reused prefixes in these releases.",
        source="vLLM issue 41838, PR 42359",
        tell=_decays,
        fix="a release from 0.19.1 on",
        misleading=False,
        confidence=0.6,
    ),
    KnownFault(
        id="connections_overwritten",
        engine="sglang",
        what="SGLang always overwrites CUDA_DEVICE_MAX_CONNECTIONS with 8: the value given has no effect.",
        source="SGLang 0.5.23, engine.py",
        tell=_planned("CUDA_DEVICE_MAX_CONNECTIONS"),
    ),
    KnownFault(
        id="ray_setdefault",
        routine=True,
        engine="vllm",
        what="Variables reach Ray workers with setdefault: a value that the worker's own environment already "
        "has wins silently, "
        "and only names are logged.",
        source="vLLM 0.33.0, ray_executor_v2.py",
        tell=lambda case: case.both(Quantity.VARIABLES_COPIED),
    ),
    KnownFault(
        id="draft_inherits_quantization",
        engine="sglang",
        what="Without --speculative-draft-model-quantization the draft inherits the target's quantisation, "
        "which ruins heads in "
        "bf16.",
        source="SGLang 0.5.23, spec.py; rtx6kpro PR 10",
        tell=_inherited_quantization,
        fix="--speculative-draft-model-quantization unquant",
        misleading=False,
        confidence=0.45,
    ),
)


def fields_to_read_with_care(case: Case) -> tuple[str, ...]:
    """Of the fields that stand in this case's evidence, those that do not mean what they seem to."""
    return tuple(
        f"{fault.what} ({fault.source})" for fault in KNOWN_FAULTS if fault.routine and fault.found_in(case)
    )


# SGLang captures the draft's extend for these attention backends only (0.5.23); fa3 was not among them in 0.5.17.
_CAPTURED_EXTEND = ("triton", "trtllm", "flashinfer", "flashmla", "dsa", "nsa", "qwen")
_FLASH_ATTENTION, _FLASH_ATTENTION_SINCE, _FLASH_ATTENTION_NOT = ("fa3", "fa4"), (0, 5, 23), (0, 5, 17)


def extend_is_captured(backend: str, version: tuple[int, ...]) -> bool | None:
    """Whether SGLang of this version captures the draft's extend for an attention backend; None where not known."""
    name = backend.lower()
    if any(word in name for word in _CAPTURED_EXTEND):
        return True
    if any(word in name for word in _FLASH_ATTENTION):
        if version >= _FLASH_ATTENTION_SINCE:
            return True
        return False if version and version <= _FLASH_ATTENTION_NOT else None
    return None
