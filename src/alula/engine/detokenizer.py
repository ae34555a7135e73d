"""Token ids to text, one token at a time, never half a character. Knows nothing of stop strings or of a tokenizer's
kind: it is given a function that decodes a list of ids.

Only a short window of ids is decoded at each step, the tokens of the character under way and those of the one before
(which give a SentencePiece decoder the context in which it keeps a leading space), so a token costs the same wherever
it stands in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoders put where bytes are not, or not yet, a character

# A character has at most 4 bytes, and a token that matters has at least one. So at most 3 marks at the end of a text
# may still become characters, and after 4 tokens without a character the marks before them stand for good.
_MAX_UNDECIDED = 3
_MAX_WAIT_TOKENS = 4
# Broken bytes may go on without ever ending a character. Then the window is cut to its last tokens: enough for the 3
# undecided marks (9 bytes) and for the decoder to fall into step before them (3 more).
_MAX_WINDOW, _CUT_WINDOW = 32, 16
_PROMPT_CONTEXT = 8

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """The text of one request's output, as it grows.

    What `push` and `flush` return, joined, is `decode(all ids)` (with a prompt: what the output adds to the prompt's
    text). `decode` must not rewrite earlier text when ids are added, apart from replacement marks at the end: switch
    off clean-up of spaces. One exception is left: a decoder with byte fallback that voids a whole run of byte tokens
    for one broken byte would also void characters that were already complete, and emitted, here.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = _prompt_context(decode, prompt_ids)
        self._text = decode(self._window) if self._window else ""
        self._num_emitted = len(self._text)  # characters of the window's text
        self._num_context = len(self._window)  # tokens whose characters are complete

    def push(self, token_id: int) -> str:
        """The text that has become certain with this token; often one word, sometimes nothing."""
        text = self._decode([*self._window, token_id])
        if text == self._text and self._is_silent(token_id):
            return ""
        self._window.append(token_id)
        self._text = text
        new = self._take(self._num_certain())
        if not text.endswith(REPLACEMENT):
            self._shrink(self._num_context)
            self._num_emitted, self._num_context = len(self._text), len(self._window)
        elif len(self._window) > _MAX_WINDOW:
            self._shrink(len(self._window) - _CUT_WINDOW)
        return new

    def flush(self) -> str:
        """What is left at the end: replacement marks for a character that was never completed."""
        return self._take(len(self._text))

    def _num_certain(self) -> int:
        certain = len(self._text.rstrip(REPLACEMENT))
        if len(self._window) - self._num_context >= _MAX_WAIT_TOKENS:
            certain = max(certain, len(self._text) - _MAX_UNDECIDED)
        return certain

    def _take(self, end: int) -> str:
        new = self._text[self._num_emitted : end]
        self._num_emitted = max(self._num_emitted, end)
        return new

    def _shrink(self, num_tokens: int) -> None:
        """Drops the first tokens of the window. What is not emitted is at the end, and stays there."""
        num_held = len(self._text) - self._num_emitted
        del self._window[:num_tokens]
        self._num_context = max(0, self._num_context - num_tokens)
        self._text = self._decode(self._window)
        self._num_emitted = len(self._text) - num_held

    def _is_silent(self, token_id: int) -> bool:
        """Whether a token never adds text, such as a special token that `decode` leaves out. A part of a character
        shows as a mark when alone, and a lone space that is trimmed at the start shows when doubled."""
        return self._decode([token_id]) == "" and self._decode([token_id, token_id]) == ""


def _prompt_context(decode: Decode, prompt_ids: Sequence[int]) -> list[int]:
    """The shortest end of the prompt that has text, whole characters if possible; of at least 8 tokens if it can be."""
    for size in range(_PROMPT_CONTEXT, len(prompt_ids) + 1):
        context = list(prompt_ids[-size:])
        text = decode(context)
        if text and not (text.endswith(REPLACEMENT) and size < _PROMPT_CONTEXT + _MAX_WAIT_TOKENS):
            return context
    return list(prompt_ids)
