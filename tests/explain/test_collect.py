"""`alula collect` and reading live servers: real processes, a real HTTP server, archives read back, no secret in them."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from alula.cli.main import main
from alula.core.errors import InvalidOption, ModelNotFound, RecordWriteError
from alula.explain.collect import Collected, Item, collect, write_archive
from alula.explain.live import read_url
from alula.explain.readers.inputs import read_inputs
from alula.explain.redact import Redactor
from alula.profile.evidence import Evidence, Label
from alula.profile.quantities import Quantity as Q

PAGES = {
    "/server_info": json.dumps({
        "model_path": "org/m", "tp_size": 8, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "version": "0.5.10",
        "api_key": "sk-secretsecret1", "internal_states": [{"avg_spec_accept_length": 2.31}],
    }),
    "/metrics": 'sglang:spec_accept_length{model_name="org/m"} 2.4\nsglang:num_running_reqs{model_name="org/m"} 3\n',
    "/v1/models": json.dumps({"data": [{"id": "org/m", "owned_by": "sglang"}]}),
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[str]:
    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = PAGES.get(self.path)
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write((page or "nothing").encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def _found(path: Path) -> list[Evidence]:
    return [
        one
        for sink in read_inputs([str(path)], Label.UNKNOWN, lambda text: None)
        for run in sink.runs()
        for one in run
    ]


def test_a_live_server_is_read(server: str) -> None:
    (sink,) = read_url(server, Label.UNKNOWN, lambda text: None)
    (run,) = sink.runs()
    assert (run.text(Q.ENGINE), run.text(Q.ENGINE_VERSION), run.number(Q.STEPS)) == ("sglang", "0.5.10", 3)
    assert {one.value for one in run.all(Q.TOKENS_PER_CYCLE)} == {2.31, 2.4}
    assert run.number(Q.NUM_RUNNING) == 3
    assert (
        read_inputs([f"{server}/metrics"], Label.BASELINE, lambda text: None)[0].runs()[0].label is Label.BASELINE
    )


def test_no_server_is_the_users_error() -> None:
    with pytest.raises(InvalidOption, match="no information from"):
        read_url("http://127.0.0.1:9", Label.UNKNOWN, lambda text: None)


def test_a_server_that_does_not_answer_is_missing_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that hangs is a reason to collect."""
    log, out, document = tmp_path / "my.log", tmp_path / "out.tar.gz", tmp_path / "out.json"
    log.write_text("a line\n")
    command = ["collect", "--pid", str(os.getpid()), "--log", str(log), "--out", str(out), "--json", str(document)]
    assert main([*command, "--url", "http://127.0.0.1:9"]) == 0
    result = json.loads(document.read_text())
    assert "logs/my.log" in [one["name"] for one in result["taken"]]
    assert next(one["reason"] for one in result["missing"] if one["name"] == "server").startswith("no information")
    assert main([*command, "--url", "127.0.0.1:9"]) == 2
    assert "--url" in capsys.readouterr().err


@pytest.mark.parametrize(
    "before,after",
    [
        ("distributed_init_method=tcp://node-a7:29500", "distributed_init_method=tcp://HOST1:29500"),
        ("db postgres://bob:pw1234@db3.example.org:5432/x", "db postgres://***@HOST1:5432/x"),
        ("host gpu-17.corp.example.com is up", "host HOST1 is up"),
        ("node7:581:590 [0] NCCL INFO Init", "HOST1:581:590 [0] NCCL INFO Init"),
        ("(RayWorkerWrapper pid=581) node7:581:581 [0] NCCL INFO x", "(RayWorkerWrapper pid=581) HOST1:581:581 [0] NCCL INFO x"),
        ("[2026-03-12 14:17:56] node7:5:5 [0] enqueue.cc:1694 NCCL WARN x", "[2026-03-12 14:17:56] HOST1:5:5 [0] enqueue.cc:1694 NCCL WARN x"),
        ("http://localhost:30000 https://huggingface.co/org/m http://0.0.0.0:8000", None),
        ("http://127.0.0.1:30000/metrics file:///data/x torch.cuda.graphs x.py:12:3 [0] y", None),
    ],
)  # fmt: skip
def test_names_of_other_machines_go(before: str, after: str | None) -> None:
    assert Redactor(("box",)).text(f"{before}\n") == f"{after or before}\n"


@pytest.mark.parametrize("piece", ["AbC9/+", "aGVsbG8", "x.y", "token"])
def test_one_word_of_a_megabyte_is_no_trap(piece: str) -> None:
    """An image in base64 in a log of requests. Backtracking over it would take hours, not seconds."""
    word = piece * ((1 << 20) // len(piece))
    assert Redactor(("box",)).text(f"before {word} after\n") == f"before {word} after\n"


def test_nodes_are_still_told_apart() -> None:
    lines = [
        f"node{node}:{rank}:{rank} [0] NCCL INFO NCCL_PROTO set by environment to LL"
        for node in (3, 8)
        for rank in (1, 2)
    ]
    text = Redactor(("box",)).text("\n".join(lines))
    assert [line.split(":")[0] for line in text.splitlines()] == ["HOST1", "HOST1", "HOST2", "HOST2"]


def test_a_process_and_its_children_are_collected_without_secrets(tmp_path: Path, server: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 186, token usage: 0.02, accept len: 2.00, accept rate: 0.49, cuda graph: "
        "True, gen throughput (token/s): 100.00, #queue-req: 0, \nconnect to 10.20.30.40 with Authorization: Bearer abcdefgh1234\n"
    )
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'])"
    environment = {
        **os.environ,
        "NCCL_PROTO": "LL",
        "VLLM_API_KEY": "verysecret1",
        "HF_TOKEN": "hf_verysecret2",
        "HOME": str(tmp_path),
    }
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\n")
    with subprocess.Popen(
        [sys.executable, "-c", child], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"  # the child runs
        collected = collect([process.pid], server, [str(log)], lambda text: None)
        process.communicate(timeout=30)
    path = tmp_path / "out.tar.gz"
    write_archive(collected, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        text = "".join(archive.extractfile(one).read().decode() for one in archive if one.isfile())  # type: ignore[union-attr]
    assert not any(secret in text for secret in ("verysecret", "secretsecret", "abcdefgh1234", "10.20.30.40"))
    found = _found(path)
    seen = [one for one in found if one.quantity is Q.VARIABLE_SEEN and one.scope.name == "NCCL_PROTO"]
    assert {one.value for one in seen} == {"LL"}
    assert len({one.scope.worker for one in seen}) == 2, "the child's environment was taken too"
    assert any(one.quantity is Q.VARIABLE_PLANNED and one.scope.name == "NCCL_ALGO" for one in found)
    assert any(one.quantity is Q.TOKENS_PER_CYCLE and one.value == 2.0 for one in found), (
        "the log is readable as before"
    )
    assert any(one.quantity is Q.STEPS and one.value == 3 for one in found), "and so is the server's information"


def test_an_environment_without_variables_of_interest_was_read_all_the_same(tmp_path: Path) -> None:
    proc = tmp_path / "proc" / "77"
    proc.mkdir(parents=True)
    (proc / "environ").write_bytes(b"PATH=/bin\0USER=me\0")
    (proc / "cmdline").write_bytes(b"python3\0-m\0sglang.launch_server\0--model-path\0org/m-1\0--tp\0002\0")
    (proc / "stat").write_text("77 (a) b) S 1 77 77 0")
    (proc / "maps").write_text("7f-8f r-xp 0 0 0 /usr/lib/libnccl.so.2.28.9\n")
    collected = collect([], None, [], lambda text: None, tmp_path / "proc")
    path = tmp_path / "out.tar.gz"
    write_archive(collected, path)
    found = _found(path)
    assert [one.scope.worker for one in found if one.quantity is Q.ENVIRONMENT_READ] == ["pid=77"]
    assert [one.value for one in found if one.quantity is Q.TP] == [2]
    assert [one.value for one in found if one.quantity is Q.NCCL_VERSION] == ["2.28.9"]
    assert "libnccl.so.2.28.9" in next(item.text for item in collected.items if item.name.endswith("libraries.txt"))


def test_a_long_log_gives_its_start_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alula.explain import collect as module

    monkeypatch.setattr(module, "_LOG_HEAD_BYTES", 100)
    monkeypatch.setattr(module, "_LOG_TAIL_BYTES", 100)
    log = tmp_path / "log"
    log.write_text("start\n" + "x" * 1000 + "\nend\n")
    text = next(
        item.text
        for item in collect([], None, [str(log)], lambda text: None, tmp_path).items
        if item.name == "logs/log"
    )
    assert text.startswith("start")
    assert text.endswith("end\n")
    assert "left out by alula collect" in text


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="--log"):
        collect([], None, [str(tmp_path / "none")], lambda text: None, tmp_path)
    with pytest.raises(InvalidOption, match="--pid"):
        collect([4_000_000], None, [], lambda text: None)
    with pytest.raises(RecordWriteError, match="--out"):
        write_archive(Collected((Item("a", "b"),), 0), tmp_path / "none" / "x.tar.gz")


def test_the_command_shows_what_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out, document = tmp_path / "my.log", tmp_path / "out.tar.gz", tmp_path / "out.json"
    log.write_text("a line\n")
    assert (
        main(["collect", "--pid", str(os.getpid()), "--log", str(log), "--out", str(out), "--json", str(document)])
        == 0
    )
    shown = capsys.readouterr().out
    assert "logs/my.log" in shown
    assert "alula explain --from" in shown
    result = json.loads(document.read_text())
    assert result["command"] == "collect"
    assert "logs/my.log" in [one["name"] for one in result["taken"]]
    assert main(["collect", "--pid", str(os.getpid()), "--out", str(tmp_path / "none" / "x")]) == 2


@pytest.mark.parametrize(
    "secret",
    ["--api-key sk-abcdefgh1234", "api_key='verysecret'", '"hf_token": "abcdefghijk"', "password=verysecret", "https://me:pass@host/x", "hf_abcdefghijklm",
     "Authorization: Bearer abcdefghijk", "10.1.2.3:30000", "fe80::1a2b:3c4d:5e6f:7a8b", "3c:ec:ef:12:34:56", "me@example.org", "/home/alice/x", "myhost.lan",
     "GPU-12345678-1234-1234-1234-123456789abc", "Serial Number : 1324"],
)  # fmt: skip
def test_secrets_and_addresses_go(secret: str) -> None:
    redactor = Redactor(("myhost.lan", "myhost"))
    text = redactor.text(f"before {secret} after\n" if "Serial" not in secret else f"    {secret}\n")
    for part in (
        "sk-abc",
        "verysecret",
        "abcdefgh",
        "me:pass",
        "10.1.2.3",
        "1a2b",
        "3c:ec",
        "example",
        "alice",
        "myhost",
        "12345678-",
        "1324",
    ):
        assert part not in text
    assert redactor.num_replaced >= 1
    assert "Serial" in secret or (text.startswith("before") and text.rstrip().endswith("after"))


@pytest.mark.parametrize(
    "line",
    ["[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 186, token usage: 0.02, accept len: 2.00, gen throughput (token/s): 100.00, #queue-req: 0, ",
     "NCCL INFO NCCL version 2.29.2+cuda12.8", "GPU 0000:3b:00.0 on bus", "Driver Version : 580.126.09", "--max-tokens 100 --num-speculative-tokens 3",
     "max_total_num_tokens=123456, chunked_prefill_size=8192", "tokenizer_path='org/m'", "http://127.0.0.1:30000", "INFO 05-15 03:15:44 [utils.py:240]",
     "Output token throughput (tok/s):         160.95", "skip_tokenizer_init=False, auth=None", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"],
)  # fmt: skip
def test_evidence_stays(line: str) -> None:
    assert Redactor(("box",)).text(line) == line
