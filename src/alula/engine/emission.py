"""Adds accepted tokens to a request one by one, and ends it where its stops, its length or its context say so.

Knows nothing of drafts: what it gets was drawn by the target.
"""

from __future__ import annotations

from collections.abc import Sequence

from alula.engine.request import LENGTH, STOP, Request, TokenLogprob, Update
from alula.engine.setup import Parts


def emit(request: Request, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], engine: Parts) -> Update:
    """Appends tokens until one ends the request; the rest are dropped and never seen again.

    A stop inside the budget wins over the length, because tokens are looked at in order.
    """
    texts: list[str] = []
    emitted: list[int] = []
    for token in tokens:
        emitted.append(token)
        request.tokens.append(token)
        texts.append(_take(request, token, engine))
        if request.finished:
            break
    if request.counts is not None:
        request.counts.append(emitted)
    return Update(
        request_id=request.spec.request_id,
        text="".join(texts),
        token_ids=tuple(emitted),
        logprobs=tuple(logprobs[: len(emitted)]),
        finish_reason=request.finish_reason,
        num_kept_tokens=request.num_kept_tokens,
    )


def _take(request: Request, token: int, engine: Parts) -> str:
    """One token's text, and whether it ends the request."""
    sampling = request.spec.sampling
    is_eos = token in engine.tokenizer.eos_token_ids and not sampling.ignore_eos
    if is_eos or token in sampling.stop_token_ids:
        return _finish(request, STOP, request.num_output, request.stream.flush())
    piece = request.stream.push(token)
    if piece.stopped:
        return _finish(request, STOP, piece.num_kept_tokens, piece.text)
    if request.remaining <= 0 or len(request.tokens) >= engine.context_tokens:
        return _finish(request, LENGTH, request.num_output, piece.text + request.stream.flush())
    return piece.text


def _finish(request: Request, reason: str, num_kept: int, text: str) -> str:
    request.num_kept_tokens = num_kept
    request.finish(reason)
    return text
