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
    """What one token brought.

    text: new text to show. stop: the stop string that ends the request, else None. num_kept_tokens: tokens of the
    request so far; after a stop, without those that begin at the stop or behind it (one that it cuts through stays).
    """

    text: str
    stop: str | None
    num_kept_tokens: int

    @property
    def stopped(self) -> bool:
        return self.stop is not None


class TextStream:
    """Feed it every emitted token in order, one at a time, until a piece has stopped; else call `flush` at the end.

    A token that ends the request and has no text of its own (end of sequence) is not pushed.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), prompt_ids: Sequence[int] = ()) -> None:
        self._detokenizer = Detokenizer(decode, prompt_ids)
        self._stops = StopMatcher(stops)
        self._num_shown = 0
        self._num_decoded = 0
        self._starts: list[int] = []  # for each token, the characters that were certain before it

    def push(self, token_id: int) -> TextPiece:
        """The text that this token makes certain, up to a stop."""
        self._starts.append(self._num_decoded)
        decoded = self._detokenizer.push(token_id)
        self._num_decoded += len(decoded)
        text, stop = self._stops.push(decoded)
        self._num_shown += len(text)
        num_kept = len(self._starts) if stop is None else bisect_left(self._starts, self._num_shown)
        return TextPiece(text, stop, num_kept)

    def flush(self) -> str:
        """The rest: what was held back for a stop that was not completed, and marks for a character that was not.

        Should those marks complete a stop, the text still ends before it.
        """
        text, stop = self._stops.push(self._detokenizer.flush())
        return text if stop is not None else text + self._stops.flush()
