"""The command line against the fake engine, in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fake_llm
from alula.cli.main import main

FAKE = Path(fake_llm.__file__)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


@pytest.fixture
def alula(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command here and returns its exit code and words."""
    monkeypatch.setitem(sys.modules, "alula.engine.llm", None)  # restored afterwards, whatever install() puts there
    fake_llm.install()

    def call(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def alula_process() -> Callable[..., Outcome]:
    """Runs a command in its own process, with `stdin` as text."""

    def call(*arguments: object, stdin: str = "", **options: Any) -> Outcome:
        command = [sys.executable, str(FAKE), *map(str, arguments)]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=60, **options
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call
