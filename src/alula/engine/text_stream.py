"""The text of one request: tokens in, text out, up to a stop string. Joins detokenizer and stop strings, and counts
which tokens belong to the text that was kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from alula.engine.detokenizer import Decode, Detokenizer
from alula.engine.stops import StopMatcher


@dataclass(frozen=True)
class TextPiece:
    """What one token, or the end, brought.

    text: new text to show. stop: the stop string that ended the request, else None. num_tokens: tokens of the request
    so far; after a stop, without those that begin at the stop or behind it (a token that the stop cuts through stays).
    """

    text: str
    stop: str | None
    num_tokens: int


class TextStream:
    """Feed it every emitted token in order, one at a time, until a piece names a stop; else call `finish` at the end.

    A token that ends the request and has no text of its own (end of sequence) is not pushed.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode, prompt_ids)
        self._stops = StopMatcher(stops)
        self._num_shown = 0
        self._num_decoded = 0
        self._starts: list[int] = []  # for each token, the characters that were certain before it

    def push(self, token_id: int) -> TextPiece:
        """The piece of text that this token makes certain."""
        self._starts.append(self._num_decoded)
        return self._advance(self._detokenizer.push(token_id))

    def finish(self) -> TextPiece:
        """The rest: what was held back for a stop or a character that never came. It may complete a stop itself."""
        piece = self._advance(self._detokenizer.flush())
        if piece.stop is not None:
            return piece
        return TextPiece(piece.text + self._stops.flush(), None, piece.num_tokens)

    def _advance(self, decoded: str) -> TextPiece:
        self._num_decoded += len(decoded)
        text, stop = self._stops.push(decoded)
        self._num_shown += len(text)
        num_tokens = len(self._starts) if stop is None else bisect_left(self._starts, self._num_shown)
        return TextPiece(text, stop, num_tokens)
