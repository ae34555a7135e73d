"""What the `alula` command calls: the command line, with Ctrl-C answered from the first moment on.

Imports nothing before it is ready to be interrupted. Knows no command.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130


class InterruptHandler:
    """Raises KeyboardInterrupt as Python does, and remembers it: an import somewhere may swallow the exception."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if a Ctrl-C came and somebody swallowed it."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, InterruptHandler) and handler.seen:
        raise KeyboardInterrupt


def main() -> int:
    """Runs the command line; returns the exit code."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # who starts us with nohup or in the background
            signal.signal(signal.SIGINT, InterruptHandler())
        from alula.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("alula: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
