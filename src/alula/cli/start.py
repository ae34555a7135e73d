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


def interrupted() -> bool:
    """Whether a Ctrl-C came, whatever became of its exception."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, InterruptHandler) and handler.seen


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if a Ctrl-C came and somebody swallowed it."""
    if interrupted():
        raise KeyboardInterrupt


def main() -> int:
    """Runs the command line; returns the exit code."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # who starts us with nohup or in the background
            signal.signal(signal.SIGINT, InterruptHandler())
        from alula.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return _say_so()
    except Exception:
        # An import that a Ctrl-C cut short, and that swallowed it, leaves half a module: what fails then is the Ctrl-C.
        if not interrupted():
            raise
        return _say_so()


def _say_so() -> int:
    print("alula: interrupted", file=sys.stderr)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
