"""Ctrl-C from the first moment on, and one that an import swallowed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from alula.cli.start import InterruptHandler, main, raise_if_interrupted


@pytest.fixture
def handler() -> Iterator[InterruptHandler]:
    before = signal.getsignal(signal.SIGINT)
    own = InterruptHandler()
    signal.signal(signal.SIGINT, own)
    yield own
    signal.signal(signal.SIGINT, before)


def test_a_swallowed_interrupt_is_not_lost(handler: InterruptHandler) -> None:
    raise_if_interrupted()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        raise_if_interrupted()


def test_without_our_handler_nothing_is_raised() -> None:
    raise_if_interrupted()


def test_what_fails_after_a_swallowed_interrupt_is_the_interrupt(
    handler: InterruptHandler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """numpy's import swallowed one and was left without half of its functions."""

    def broken() -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("module 'numpy' has no attribute 'multiply'")

    monkeypatch.setattr("alula.cli.main.main", broken)
    assert main() == 130
    assert capsys.readouterr().err == "alula: interrupted\n"


def test_without_an_interrupt_a_fault_stays_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise AttributeError("ours")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("alula.cli.main.main", broken)
    try:
        with pytest.raises(AttributeError, match="ours"):
            main()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("delay_s", [0.1, 0.2, 0.4, 0.8])
def test_an_interrupt_during_start_up_ends_with_130_and_no_traceback(delay_s: float) -> None:
    code = "import sys; print('up', flush=True); from alula.cli.start import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "smollm2-135m", "--prompt", "hi", "--max-tokens", "2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
