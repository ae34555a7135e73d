"""Stop strings in a growing text. Knows nothing of tokens.

The text is judged as if it came character by character: the stop that is complete first ends it, and of several
that are complete at the same character the longest. So the result does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on up to the first stop string, and holds back an end that may become one.

    At most the longest stop's length less one is ever held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that can be shown, the stop that was found). The text ends just before the stop. Nothing may be pushed
        after a stop."""
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            _, start, stop = min(found)
            return text[:start], stop
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def flush(self) -> str:
        """What was held back, once it is known that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
