"""What the labels of benchmark tables mean: a column's head, a JSON key, the words in front of a number.

Labels of all tools at once, since people paste and rename columns. Knows nothing of the layout around a label.
"""

from __future__ import annotations

import re

import msgspec

from alula.profile.quantities import Quantity

Q = Quantity


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """quantity: what a value under the label is; axis: or which coordinate of a row it is (batch, steps, ...)."""

    quantity: Quantity | None = None
    axis: str | None = None
    factor: float = 1.0  # value as printed -> value in the quantity's unit
    position: int | None = None


# Tried in order on the label in lower case with single spaces in place of underscores.
_PATTERNS: tuple[tuple[str, Meaning], ...] = (
    (
        r"speed ?up|wall|total token|input token throughput|peak|duration|request throughput"
        r"|prompt throughput|std|p9\d|p50"
        r"|break.?even|ceiling|\bneeded\b|required|predicted|theoretical|\bdelta\b|δ|\bgain\b|improvement|\bchange\b",
        Meaning(),
    ),
    (r"^(?:min|max)\b(?!.*concurren)", Meaning()),
    (r"position (\d+)", Meaning(quantity=Q.ACCEPTANCE)),
    (
        r"accept(?:ed|ance)?[ _/]*(?:rate)? ?\(?%|(?:draft )?accept(?:ance|ed)? ?rate|accepted ?/ ?drafted|accept %",
        Meaning(quantity=Q.ACCEPTED_PER_DRAFTED),
    ),
    (
        r"acc(?:ept(?:ed|ance)?)?[ .]*(?:len(?:gth)?)\b|tokens? ?(?:/|per) ?(?:step|cycle|iter|verify"
        r"|forward)|^tau$|mean accepted|^acc ?len$"
        r"|^al$|^τ$",
        Meaning(quantity=Q.TOKENS_PER_CYCLE),
    ),
    (r"accepted tokens|num accepted|n accept", Meaning(quantity=Q.NUM_ACCEPTED)),
    (r"draft(?:ed)? tokens (?:total|drafted)|num draft tokens|n drafted", Meaning(quantity=Q.NUM_DRAFTED)),
    (r"num drafts", Meaning(quantity=Q.NUM_CYCLES)),
    (r"\btpot\b|time per output token|ms ?/ ?tok", Meaning(quantity=Q.TOKEN_MS)),
    (r"\bitl\b|inter.?token", Meaning(quantity=Q.CHUNK_MS)),
    (r"\bttft\b|time to first", Meaning(quantity=Q.TTFT_MS)),
    (r"e2e|end.to.end|mean latency ?\(ms", Meaning(quantity=Q.REQUEST_MS)),
    (r"verify.*\bms\b|\bms\b.*verify", Meaning(quantity=Q.VERIFY_MS)),
    (r"draft.*\bms\b(?! ?/ ?step)|\bms\b.*draft", Meaning(quantity=Q.DRAFT_MS)),
    (r"ms ?/ ?cyc|cycle.*\bms\b", Meaning(quantity=Q.CYCLE_MS)),
    (r"ms ?/ ?step|step.*\bms\b|\bms\b ?per step|step time", Meaning(quantity=Q.STEP_MS)),
    (
        r"tok(?:en)?s? ?(?:/|per) ?s(?:ec(?:ond)?)?\b|\bt/s\b|\btps\b|output throughput"
        r"|gen(?:eration)? throughput|^throughput|decode speed"
        r"|^speed\b|tok/sec",
        Meaning(quantity=Q.TOKENS_PER_S),
    ),
    (
        r"concurren|^parallel|num parallel|^streams?$|^users$|^clients$",
        Meaning(axis="batch", quantity=Q.CONCURRENCY),
    ),
    (r"^(?:batch(?: size)?|bs|num prompts in flight|running)$", Meaning(axis="batch")),
    (r"^(?:n )?ubatch$|^n_ubatch$|^rows$|^width$", Meaning(axis="width")),
    (
        r"^(?:k|n|mtp(?: ?n)?|depth|draft ?(?:depth|len(?:gth)?|tokens?|n|max)"
        r"|num spec(?:ulative)?(?: tokens)?|spec(?:ulative)? ?(?:num ?)?steps?"
        r"|num steps|steps|n ?max|speculative tokens|k \(drafts\))$",
        Meaning(axis="steps"),
    ),
    (r"^(?:size|bytes|message|message size|num bytes)$|\(b\)$", Meaning(axis="num_bytes")),
    (r"^(?:model|target)$", Meaning(quantity=Q.MODEL)),
    (r"^dataset(?: name)?$", Meaning(quantity=Q.DATASET)),
    (
        r"^(?:test|config(?:uration)?|setting|mode|variant|run|name|method|algorithm|backend|engine|case"
        r"|nccl proto|category|#|metric"
        r"|steps ?, ?topk ?, ?tokens|steps/topk/tokens|\(steps, ?topk, ?tokens\))$",
        Meaning(axis="label"),
    ),
)
_COMPILED = tuple((re.compile(pattern), meaning) for pattern, meaning in _PATTERNS)
PLAIN_WORDS = re.compile(
    r"\b(?:baseline|base(?!d)|plain|vanilla|none|off|autoregressive|no[- ]?(?:spec\w*|mtp|eagle\w*"
    r"|draft)|non[- ](?:spec\w*|mtp)"
    r"|w/?o|without|disabled|normal)\b",
    re.I,
)
SPEC_WORDS = re.compile(
    r"\b(?:spec(?:ulat\w+)?|eagle\d?|eagle-\d|mtp\d?|draft\w*|medusa|dflash|ngram|nextn|dspark)\b", re.I
)


def meaning_of(label: str) -> Meaning | None:
    """What values under a label are; None for a label nobody knows, a Meaning without fields for one to ignore."""
    text = " ".join(label.lower().replace("_", " ").replace("*", "").replace("`", "").split())
    if not text or len(text) > 80:
        return None
    for pattern, meaning in _COMPILED:
        if match := pattern.search(text):
            if meaning.quantity is Q.ACCEPTANCE:
                return msgspec.structs.replace(meaning, position=int(match[1][:4]), factor=_share(text))
            if meaning.quantity is Q.ACCEPTED_PER_DRAFTED:
                return msgspec.structs.replace(meaning, factor=_share(text))
            if meaning.quantity in _MILLISECONDS and re.search(r"\(s\)|\bsec\b|latency \(s", text):
                return msgspec.structs.replace(meaning, factor=1000.0)
            return meaning
    return None


_MILLISECONDS = {Q.TOKEN_MS, Q.CHUNK_MS, Q.TTFT_MS, Q.REQUEST_MS}


def _share(text: str) -> float:
    return 0.01 if "%" in text else 1.0


def side_of(text: str) -> Quantity | None:
    """The side that words name, as the quantity of its rate; None where they say neither."""
    text = text.replace("_", " ")
    plain, spec = PLAIN_WORDS.search(text), SPEC_WORDS.search(text)
    if plain and (not spec or plain.start() < spec.start()):
        return Q.PLAIN_TOKENS_PER_S
    return Q.SPEC_TOKENS_PER_S if spec else None
