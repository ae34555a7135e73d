"""What the command line says of several ranks: bench's table of collectives, a late rank, the ranks' deadline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alula.core.dispatch_paths import Collectives
from alula.core.records import DispatchRecord, RankWaitRecord, Refusal
from fake_llm import CTRL_C, FakeLLM

Alula = Callable[..., Any]
REASON = "610.0 us, nccl 300.0 us"


def record(work: str, num_bytes: int, backend: str, refused: tuple[Refusal, ...] = ()) -> DispatchRecord:
    return DispatchRecord(
        op="all_reduce",
        num_bytes=num_bytes,
        dtype="bfloat16",
        num_ranks=2,
        phase="verify",
        backend=backend,
        refused=refused,
        num_calls=4,
        work=work,
    )


TOLD = Collectives(
    dispatched=(
        record("decode", 1024, "one_shot"),
        record("verify", 4096, "nccl", (Refusal(backend="one_shot", reason=REASON),)),
    ),
    waits=tuple(
        RankWaitRecord(rank=rank, num_calls=9, waited_ms=1.0, share=share) for rank, share in enumerate((0.4, 0.02))
    ),
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("hi\n")
    return path


def test_bench_tells_of_collectives(
    alula: Alula, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompts: Path
) -> None:
    monkeypatch.setattr(FakeLLM, "ranked", TOLD)
    page = tmp_path / "page.html"
    outcome = alula("bench", "m", "--prompts", prompts, "--tp", "2", "--json", "-", "--html", page)
    assert outcome.code == 0
    assert outcome.json["collectives"]["differences"][0]["verify_because"] == REASON
    assert [path["backend"] for path in outcome.json["collectives"]["paths"]] == ["one_shot", "nccl"]
    assert "Collectives" in outcome.err and REASON in outcome.err
    assert "The other ranks wait for rank 1" in outcome.err
    assert "<h2>Collectives</h2>" in page.read_text() and "<td>one_shot</td>" in page.read_text()


def test_a_single_rank_has_none(alula: Alula, tmp_path: Path, prompts: Path) -> None:
    page = tmp_path / "page.html"
    outcome = alula("bench", "m", "--prompts", prompts, "--json", "-", "--html", page)
    assert outcome.json["collectives"] is None
    assert "Collectives" not in outcome.err and "<h2>Collectives</h2>" not in page.read_text()


def test_ranks_are_not_asked_after_an_interruption(
    alula: Alula, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers may be under way then, and the pool has ended."""

    def gone(llm: FakeLLM) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(FakeLLM, "collectives", gone)
    path = tmp_path / "prompts.txt"
    path.write_text(f"hi\n{CTRL_C}\n")
    outcome = alula("bench", "m", "--prompts", path, "--json", "-")
    assert outcome.code == 130 and outcome.json["collectives"] is None


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_deadline_is_some_seconds(alula: Alula, seconds: str) -> None:
    outcome = alula("run", "m", "--prompt", "hi", "--rank-deadline", seconds)
    assert outcome.code == 2
    assert "--rank-deadline is" in outcome.err and "expected seconds above 0" in outcome.err


def test_the_deadline_reaches_the_engine(alula: Alula) -> None:
    assert alula("run", "m", "--prompt", "hi", "--rank-deadline", "2.5").code == 0
    assert FakeLLM.closed[-1].config.parallel.rank_deadline_s == 2.5
    assert alula("run", "m", "--prompt", "hi").code == 0
    assert FakeLLM.closed[-1].config.parallel.rank_deadline_s == 10.0
