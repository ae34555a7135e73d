"""How fast and in how much memory `explain --from` reads: a long SGLang log, a long mixed log, a long trace.

Makes its own inputs in a temporary folder (`--mebibytes`, `--events`), reads each in a fresh process and prints
seconds, MiB a second and the highest resident size. Needs no torch and no GPU. Goal: 1 GB of log in 60 s and 500 MB on
2 cores, hundreds of thousands of trace events in 20 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ACCESS = 'INFO:     127.0.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
_DECODE = (
    "[2026-10-22 10:{minute:02d}:{second:02d} TP0] Decode batch, #running-req: {running}, #token: {tokens}, "
    "token usage: 0.02, accept len: {accept:.2f}, accept rate: 0.49, cuda graph: True, "
    "gen throughput (token/s): {rate:.2f}, #queue-req: 0, \n"
)
_NOISE = (
    "(Worker_TP{rank} pid={pid}) INFO 05-15 03:15:44 [module_{rank}.py:{line}] step {line}: the cache holds {tokens} "
    "blocks and the scheduler is content with what it sees\n"
)


def _decode_lines(randomness: random.Random) -> Iterator[str]:
    while True:
        running = randomness.choice((1, 1, 1, 2, 4, 8))
        yield _DECODE.format(
            minute=randomness.randrange(60),
            second=randomness.randrange(60),
            running=running,
            tokens=randomness.randrange(10_000),
            accept=randomness.uniform(1.6, 2.6),
            rate=running * randomness.uniform(60, 180),
        )


def _mixed_lines(randomness: random.Random) -> Iterator[str]:
    decode = _decode_lines(randomness)
    while True:
        yield next(decode)
        for _ in range(4):
            yield _ACCESS.format(port=randomness.randrange(65536))
            yield _NOISE.format(
                rank=randomness.randrange(8),
                pid=randomness.randrange(99999),
                line=randomness.randrange(9999),
                tokens=randomness.randrange(9999),
            )


def _write_log(path: Path, lines: Iterator[str], mebibytes: int) -> None:
    """A few mebibytes of random lines, repeated to the wanted size."""
    block = "".join(next(lines) for _ in range(20_000)).encode()
    with path.open("wb") as file:
        while file.tell() < mebibytes << 20:
            file.write(block)


def _write_trace(path: Path, num_events: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [\n')
        now, written = 1000.0, 0
        while written < num_events:
            graph, start = written, now
            _event(file, "cuda_runtime", "cudaGraphLaunch", now - 900, 800.0, {"correlation": graph})
            for node in range(400):
                _event(
                    file,
                    "kernel",
                    f"kernel_{node % 20}",
                    now,
                    20.0,
                    {"device": 0, "stream": 7, "correlation": graph, "graph node id": node + 1, "grid": [1, 2, 3]},
                )
                now += 21.0
            _event(file, "gpu_user_annotation", "step[TARGET_VERIFY bs=1]", start, now - start, {})
            written += 402
        file.write('{"ph": "M", "name": "end", "pid": 0}\n], "traceName": "made"}\n')


def _event(
    file: object, category: str, name: str, start: float, duration: float, arguments: dict[str, object]
) -> None:
    one = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": arguments,
    }
    print(json.dumps(one) + ",", file=file)  # type: ignore[call-overload]


def _measure(path: Path) -> dict[str, float]:
    """Reads one file in a process of its own, so that the highest memory is its alone."""
    done = subprocess.run(
        [sys.executable, __file__, "--read", str(path)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _read(path: str) -> None:
    from alula.explain.readers.inputs import read_inputs
    from alula.profile.evidence import Label

    start, start_cpu = time.perf_counter(), time.process_time()
    sinks = read_inputs([path], Label.UNKNOWN, lambda text: None)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    found = sum(len(run) for sink in sinks for run in sink.runs())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak, "evidence": found}))


def _row(path: Path) -> dict[str, Any]:
    found, gigabytes = _measure(path), path.stat().st_size / 1e9
    per_gb = {f"{name}_per_gb": found[name] / gigabytes for name in ("seconds", "cpu_seconds")}
    return {"input": path.name, "mib": path.stat().st_size / 2**20, **found, **per_gb}


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the readers on made logs and a made trace.")
    parser.add_argument("--mebibytes", type=int, default=200, help="size of each log (default: 200)")
    parser.add_argument("--events", type=int, default=500_000, help="events of the trace (default: 500000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        _read(arguments.read)
        return 0
    randomness = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        dense, mixed, trace = (Path(folder) / name for name in ("dense.log", "mixed.log", "trace.json"))
        _write_log(dense, _decode_lines(randomness), arguments.mebibytes)
        _write_log(mixed, _mixed_lines(randomness), arguments.mebibytes)
        _write_trace(trace, arguments.events)
        rows = [_row(path) for path in (dense, mixed, trace)]
    print(f"{'input':<12} {'MiB':>6} {'s':>7} {'CPU s':>7} {'s per GB':>9} {'CPU s/GB':>9} {'peak MiB':>9}")
    for row in rows:
        print(
            f"{row['input']:<12} {row['mib']:6.0f} {row['seconds']:7.2f} {row['cpu_seconds']:7.2f} "
            f"{row['seconds_per_gb']:9.1f} {row['cpu_seconds_per_gb']:9.1f} {row['peak_mib']:9.0f}"
        )
    if arguments.json:
        facts = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
