"""What a bench says of collectives: the lines of its table, sentences, and the part of its JSON."""

from __future__ import annotations

from typing import Any

from alula.bench.collectives_report import COLUMNS, as_document, collective_sentences, path_rows
from alula.core.dispatch_paths import Collectives
from alula.core.records import DispatchRecord, RankWaitRecord, Refusal

REASON = "610.0 us, nccl 300.0 us"


def record(work: str, num_bytes: int, backend: str, **changes: Any) -> DispatchRecord:
    fields = {"op": "all_reduce", "dtype": "bfloat16", "num_ranks": 2, "phase": "verify", "num_calls": 4, **changes}
    return DispatchRecord(work=work, num_bytes=num_bytes, backend=backend, **fields)


def told(*shares: float) -> Collectives:
    dispatched = (
        record("decode", 1024, "one_shot", measured_us=9.25),
        record("decode", 1024, "one_shot", captured=True, num_calls=1, num_replays=96, measured_us=9.25),
        record("verify", 4096, "nccl", refused=(Refusal(backend="one_shot", reason=REASON),)),
        record("verify", 1024, "one_shot", phase="draft", measured_us=9.25),
        record("verify", 2048, "one_shot", phase="draft", measured_us=11.0),
        record("prefill", 1 << 16, "nccl"),
        record("verify", 8192, "nccl", captured=True, num_calls=1),  # a graph that was never replayed
    )
    waits = [RankWaitRecord(rank=i, num_calls=9, waited_ms=1.0, share=share) for i, share in enumerate(shares)]
    return Collectives(dispatched=dispatched, waits=tuple(waits))


def test_decode_stands_beside_verify() -> None:
    rows = path_rows(told())
    assert rows == [
        ("all_reduce", "draft", "-", "-", "-", "-", "1024-2048", "one_shot", "8", "9.2-11.0"),
        ("all_reduce", "verify", "1024", "one_shot", "100", "9.2", "4096", "nccl", "4", "-"),
    ]
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_a_sentence_for_each_difference_and_one_for_a_late_rank() -> None:
    difference, late = collective_sentences(told(0.4, 0.02))
    assert "decode's 1024 bytes went through one_shot" in difference and REASON in difference
    assert "verify's 4096, 8192 through nccl" in difference
    assert late.startswith("The other ranks wait for rank 1") and "rank 0 40%, rank 1 2%" in late
    assert len(collective_sentences(told(0.2, 0.2))) == 1
    same = Collectives(dispatched=told().dispatched[:1], waits=())
    assert collective_sentences(same) == ["Decode and verify took the same collective backends."]


def test_the_document_lists_every_path() -> None:
    document = as_document(told(0.1, 0.1))
    assert {path["work"] for path in document["paths"]} == {"decode", "verify"}
    assert len(document["paths"]) == 6
    assert document["differences"][0]["verify_because"] == REASON
    assert [wait["rank"] for wait in document["waits"]] == [0, 1]
