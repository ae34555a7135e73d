"""What only a real process shows: pipes that close, Ctrl-C, closed streams, a base install without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fake_llm
from fake_llm import ANSWER, CTRL_C, SLOW

AlulaProcess = Callable[..., Any]
COMMAND = [sys.executable, fake_llm.__file__]


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    script = f"set -o pipefail; {line}"
    environment = {**os.environ, "ALULA": " ".join(COMMAND)}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60, env=environment
    )


@pytest.mark.parametrize(
    "command", [f"run m --prompt {SLOW}", "bench m --limit 1", "bench m --limit 1 --json -", "--help"]
)
def test_a_reader_that_leaves_early(command: str) -> None:
    done = _shell(f"$ALULA {command} | true")
    assert done.returncode == 0 and "Traceback" not in done.stderr and "Broken" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not run: this system has no /dev/full")
@pytest.mark.parametrize("command", ["run m --prompt hi", "bench m --limit 1", "--help"])
def test_a_full_disk_behind_stdout(command: str) -> None:
    done = _shell(f"$ALULA {command} > /dev/full")
    assert done.returncode == 1 and "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_keeps_the_partial_answer(alula_process: AlulaProcess, tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    outcome = alula_process("run", "m", "--prompt", CTRL_C, "--json", result)
    assert outcome.code == 130 and outcome.out == ANSWER[:10] + "\n"
    assert "10 tokens (abort)" in outcome.err and outcome.err.endswith("alula: interrupted\n")
    written = json.loads(result.read_text(encoding="utf-8"))
    assert written["answers"][0]["text"] == ANSWER[:10] and written["error"]["kind"] == "Interrupted"


def test_ctrl_c_in_a_bench_keeps_the_prompts_before(alula_process: AlulaProcess, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(f"fine\n{CTRL_C}\n", encoding="utf-8")
    outcome = alula_process("bench", "m", "--prompts", tmp_path / "p.txt")
    assert outcome.code == 130 and "Stopped after 1 prompts: interrupted." in outcome.out
    assert "Traceback" not in outcome.err


def test_ctrl_c_while_typing() -> None:
    import pty

    main_end, other_end = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", "m"], stdin=other_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    os.write(main_end, b"hello\n")
    seen = ""
    while "tokens (stop)" not in seen:
        seen += process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    os.close(main_end)
    os.close(other_end)
    assert process.returncode == 130 and out == ANSWER + "\n" and "Traceback" not in err


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(redirect: str) -> None:
    done = _shell(f"$ALULA run m --prompt hi {redirect}")
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_stdin_closed_and_no_prompt() -> None:
    done = _shell("$ALULA run m <&-")
    assert done.returncode == 2 and "stdin is closed" in done.stderr


def test_a_terminal_without_utf_8(alula_process: AlulaProcess) -> None:
    outcome = alula_process("run", "m", "--prompt", "hi", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert outcome.code == 0 and "red, ? and ? too" in outcome.out


@pytest.mark.parametrize("command", ["run m --prompt hi", "bench m", "check"])
def test_without_torch_the_extra_is_named(command: str) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\nfrom alula.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2 and "install alula's extra `run`" in done.stderr and "Traceback" not in done.stderr
